"""`make bench`: the benchmarks that need nothing of your own, one after the other.

    python -m benchmarks

The sample road stage by stage (from the provenance of the last `dvc repro`), deduplication beside
datasketch on mixtures of the sample's articles, and, where there is a GPU, pretraining on it and the layouts' speeds.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ARTICLES = Path("dataprep/sample/articles")


def corpus(path: Path, documents: int) -> Path:
    """Articles with their sentences shuffled, a tenth of them copied with small edits."""
    generator = random.Random(0)
    texts = [file.read_text() for file in sorted(ARTICLES.glob("*.txt"))]
    with path.open("w") as file:
        for number in range(documents):
            sentences = " ".join(generator.sample(texts, 3)).replace("\n", " ").split(". ")
            generator.shuffle(sentences)
            text = ". ".join(sentences)
            for copy in range(2 if number % 10 == 0 else 1):
                words = text.split()
                words[copy * 7] = "edited" if copy else words[0]
                file.write(json.dumps({"url": f"http://bench.test/{number}/{copy}", "text": " ".join(words)}) + "\n")
    return path


def stage_times() -> None:
    """A table of the seconds of each stage of the active profile's last run."""
    params = yaml.safe_load(Path("params.yaml").read_text())
    folders = [Path("provenance") / name for name in (params["corpus"]["name"], "glue", params["run"])]
    print("| stage | seconds | rows per second |\n| --- | --- | --- |")
    for file in [file for folder in folders for file in sorted(folder.glob("*.json"))]:
        record = json.loads(file.read_text())
        print(f"| {file.stem} | {record['seconds']:.1f} | {record['rows_per_second']:,.0f} |")


def main() -> None:
    """Everything, with a heading each."""
    print("## Stages of the last dvc repro\n", flush=True)
    stage_times()
    print("\n## Deduplication beside datasketch\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = corpus(Path(folder) / "articles.jsonl", 5000)
        subprocess.run([sys.executable, "-m", "benchmarks.dedup", str(file)], check=True)
        import torch

        if torch.cuda.is_available():
            print("\n## The trainer on GPUs\n", flush=True)
            subprocess.run([sys.executable, "benchmarks/gpu.py", f"{folder}/gpu"], check=True)
            speeds = ["--speed", "--no-parity"]
            subprocess.run([sys.executable, "-m", "benchmarks.layouts", f"{folder}/layouts", *speeds], check=True)


if __name__ == "__main__":
    main()
