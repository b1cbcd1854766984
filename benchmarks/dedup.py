"""Deduplication beside datasketch on one corpus: whole processes, in interleaved rounds.

    python -m benchmarks.dedup CORPUS.jsonl [--rounds 3]

Ours: find_duplicates, group_duplicates and remove_duplicates as a user runs them, one worker, JSONL in and
out, every pair verified. The rival: `datasketch.MinHash.bulk` over the same word 5-grams and `MinHashLSH`
(threshold 0.7, 128 permutations), the first document of a bucket kept, nothing verified; its documents are
read and written in the same way.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RIVAL = """
import json, re, sys
from datasketch import MinHash, MinHashLSH
word = re.compile(r"\\w+")
def shingles(text):
    words = word.findall(text.lower())
    return {" ".join(words[i:i + 5]).encode() for i in range(max(1, len(words) - 4))}
rows = [json.loads(line) for line in open(sys.argv[1])]
lsh = MinHashLSH(threshold=0.7, num_perm=128)
kept = []
for start in range(0, len(rows), 1000):
    batch = rows[start:start + 1000]
    sketches = MinHash.bulk([shingles(row["text"]) for row in batch], num_perm=128)
    for number, (row, sketch) in enumerate(zip(batch, sketches)):
        if not lsh.query(sketch):
            lsh.insert(start + number, sketch)
            kept.append(row)
with open(sys.argv[2], "w") as out:
    out.writelines(json.dumps(row) + "\\n" for row in kept)
"""


def ours(corpus: Path, work: Path) -> list[list[str]]:
    """The three commands of our chain."""
    chain = [
        ("find_duplicates", [corpus, work / "pairs"]),
        ("group_duplicates", [work / "pairs", work / "groups"]),
        ("remove_duplicates", [corpus, work / "groups", work / "kept.jsonl"]),
    ]
    return [
        [sys.executable, "-m", f"dataprep.{stage}", *map(str, paths), "--workers", "1", "--log-level", "error"]
        for stage, paths in chain
    ]


def rival(corpus: Path, work: Path) -> list[list[str]]:
    """One script of datasketch's own calls."""
    return [[sys.executable, "-c", RIVAL, str(corpus), str(work / "kept.jsonl")]]


def measure(commands: list[list[str]], kept: Path) -> tuple[float, float, float, int]:
    """(seconds, CPU seconds, peak MiB of one process, documents kept)."""
    before, started, peak = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter(), 0.0
    for command in commands:
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"failed: {' '.join(command)}")
        peak = max(peak, usage.ru_maxrss / 1024)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    with kept.open() as file:
        return time.perf_counter() - started, cpu, peak, sum(1 for _ in file)


def main() -> None:
    """Run the rounds and print a table and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with options.corpus.open() as file:
        documents = sum(1 for _ in file)
    results: dict[str, list[tuple[float, float, float, int]]] = {"millrace": [], "datasketch": []}
    for _ in range(options.rounds):
        for name, commands in (("millrace", ours), ("datasketch", rival)):
            with tempfile.TemporaryDirectory() as folder:
                work = Path(folder)
                results[name].append(measure(commands(options.corpus, work), work / "kept.jsonl"))
    print(f"{documents:,} documents, median of {options.rounds} rounds\n")
    print("| tool | seconds | CPU seconds (range) | documents per CPU second | peak MiB | kept |")
    print("| --- | --- | --- | --- | --- | --- |")
    middle: dict[str, float] = {}
    for name, rounds in results.items():
        seconds, cpu, peak = (statistics.median(column) for column in list(zip(*rounds, strict=True))[:3])
        low, high = min(r[1] for r in rounds), max(r[1] for r in rounds)
        middle[name] = cpu
        figures = f"{seconds:.1f} | {cpu:.1f} ({low:.1f}-{high:.1f}) | {documents / cpu:,.0f} | {peak:,.0f}"
        print(f"| {name} | {figures} | {rounds[0][3]:,} |")
    print(f"\nratio of CPU seconds, datasketch / millrace: {middle['datasketch'] / middle['millrace']:.2f}")


if __name__ == "__main__":
    main()
