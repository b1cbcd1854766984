"""What the engine `ray` costs beside the local one, on one machine, with all of its processes.

    python -m benchmarks.clusters tiny     # 10,000 shards of one short document
    python -m benchmarks.clusters large    # shards of 64 MB of text

Both run `clean`, in turn, with as many workers as there are cores. Ray is started anew for each run, and its start and
end count. The published folders are compared byte for byte.
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.processes import measure
from dataprep.clean.stage import STAGE
from pipelines.stage import run_command
from tests.dataprep.corpora import digests

ARTICLES = Path("dataprep/sample/articles")
ROUNDS = 2
TINY, LARGE = 10_000, 6
LARGE_BYTES = 64_000_000


def tiny(folder: Path) -> None:
    """Write 10,000 files of one document."""
    for number in range(TINY):
        text = f"The mill has wheel number {number}, and the miller is proud of it. " * 12
        (folder / f"{number:05d}.jsonl").write_text(json.dumps({"url": f"http://m.test/{number}", "text": text}))


def large(folder: Path) -> None:
    """Write files of 64 MB of articles whose sentences are shuffled."""
    generator = random.Random(0)
    sentences = [each for file in sorted(ARTICLES.glob("*.txt")) for each in file.read_text().split(". ")]
    for number in range(LARGE):
        size = 0
        with (folder / f"{number}.jsonl").open("w") as file:
            while size < LARGE_BYTES:
                line = json.dumps(
                    {"url": f"http://m.test/{number}/{size}", "text": ". ".join(generator.sample(sentences, 60))}
                )
                size += file.write(line + "\n")


def main() -> None:
    """Print seconds and CPU seconds of each engine in turn."""
    kind = sys.argv[1]
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base)
        (folder / "in").mkdir()
        {"tiny": tiny, "large": large}[kind](folder / "in")
        source = folder / "in"
        if kind == "large":  # shards as a stage finds them, one for each file
            assert (
                run_command(STAGE, [str(source), str(folder / "shards"), "--min-tokens", "0", "--log-level", "error"])
                == 0
            )
            source = folder / "shards"
            sizes = [file.stat().st_size for file in source.glob("*.parquet")]
            print(f"{len(sizes)} shards, {sum(sizes) / 1e6:,.0f} MB compressed")
        for number in range(ROUNDS):
            for engine in ("local", "ray"):
                output = folder / f"{engine}-{number}"
                command = [
                    sys.executable,
                    "-m",
                    STAGE.command,
                    source,
                    output,
                    "--engine",
                    engine,
                    "--log-level",
                    "error",
                ]
                usage = measure([str(word) for word in command])
                print(f"{kind}, {engine}: {usage.seconds:.1f} s, {usage.cpu:.1f} CPU s", flush=True)
            assert digests(folder / f"local-{number}") == digests(folder / f"ray-{number}")
            subprocess.run(["rm", "-rf", folder / f"local-{number}", folder / f"ray-{number}"], check=True)


if __name__ == "__main__":
    main()
