from pipelines import exits

exits.guard(__name__)
