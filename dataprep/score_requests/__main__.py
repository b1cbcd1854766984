from pipelines.stage import stage_main

if __name__ == "__main__":
    stage_main("dataprep.score_requests")
