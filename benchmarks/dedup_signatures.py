"""Shingling and signatures alone, ours and the rivals': documents per CPU second of one core, start-up left out.

    python -m benchmarks.dedup_signatures CORPUS.jsonl

prints seconds and CPU seconds of ours, from texts in an Arrow array (as the stage has them) to 128-permutation
signatures of word 5-grams, folding included; `benchmarks.dedup_rivals` does it for the others from Python strings.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from benchmarks.dedup_runs import RIVALS, environment
from dataprep.dedup.minhash import Permutations, sign_texts
from dataprep.dedup.shingles import Shingle
from dataprep.text.folding import fold_texts, raw_texts, text_pieces

ONE_CORE = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}


def sign(corpus: Path) -> dict[str, float]:
    """Ours, of all texts of a JSONL file."""
    with corpus.open() as lines:
        texts = pa.array([json.loads(line)["text"] for line in lines], pa.large_string())
    shingle, permutations = Shingle("word", 5), Permutations.draw(128, 1234)
    sign_texts(fold_texts(raw_texts(texts[:10])), shingle, permutations)  # loads the kernel
    wall, cpu = time.perf_counter(), time.process_time()
    for _, piece in text_pieces(texts):
        sign_texts(fold_texts(raw_texts(piece)), shingle, permutations)
    return {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "documents": len(texts)}


def signature_table(corpus: Path, venvs: Mapping[str, Path], rounds: int) -> None:
    """Interleaved rounds, a process each."""
    commands = {"Millrace": [sys.executable, "-m", "benchmarks.dedup_signatures", str(corpus)]}
    for tool in ("rensa", "datasketch"):
        if venv := environment(tool, venvs):
            commands[tool] = [str(venv / "bin" / "python"), str(RIVALS), f"sign_{tool}", str(corpus)]
    cpu: dict[str, list[float]] = {tool: [] for tool in commands}
    documents = 0
    for _ in range(rounds):
        for tool, command in commands.items():
            said = subprocess.run(command, env={**os.environ, **ONE_CORE}, stdout=subprocess.PIPE, check=True).stdout
            took = json.loads(said.splitlines()[-1])
            cpu[tool].append(took["cpu"])
            documents = took["documents"]
    print("| tool | documents per CPU second, median (range) | times the CPU seconds of Millrace |")
    print("| --- | --- | --- |")
    for tool, seconds in cpu.items():
        slow, middle, fast = (documents / f(seconds) for f in (max, statistics.median, min))
        times = statistics.median(theirs / ours for theirs, ours in zip(seconds, cpu["Millrace"], strict=True))
        print(f"| {tool} | {middle:,.0f} ({slow:,.0f}-{fast:,.0f}) | {times:.1f} |")


if __name__ == "__main__":
    print(json.dumps(sign(Path(sys.argv[1]))))
