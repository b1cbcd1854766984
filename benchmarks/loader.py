"""Rows of 1,025 tokens per second as torch tensors ready to be moved, from one process, beside other loaders.

    python -m benchmarks.loader TOKENS [--venv VENV] [--tokens 100000000] [--batch 256] [--rounds 5]

TOKENS: a folder of token shards of real text; its documents are copied in seeded orders until there are enough.
VENV: where the rivals' torch and datasets are (default: here). Every loader reads the same tokens from files that are
in the page cache, in a random order of its own kind, with one thread; rounds are interleaved, the best one counts.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from pipelines import store
from pipelines.manifest import Counts, FileEntry, Manifest
from pipelines.tokens import MAX_TOKENS, open_tokens, write_tokens
from trainer.batches import PretrainBatches
from trainer.config import PretrainConfig

Tokens = np.ndarray
LENGTH = 1024
STEP_TOKENS = 2**19
"""GPT-2's batch: 512 rows of 1,024 tokens."""
TARGET = 2_000_000
"""Tokens a second that the fastest training should be able to eat."""
MODES = {
    "stream": {},
    "stream, document_mask": {"document_mask": True},
    "document": {"packing": "document"},
    "bestfit": {"packing": "bestfit"},
    "mixture of two": {"mixture": ("again",), "mixture_weights": (2.0, 1.0)},
}


def make_corpus(source: Path, folder: Path, tokens: int) -> int:
    """Shards of at least so many tokens in all, and the same as nanoGPT's .bin beside them; returns their number."""
    shards = open_tokens(source)
    meta = shards[0].meta
    documents = [
        shard.tokens[start:end]
        for shard in shards
        for start, end in zip(shard.offsets[:-1].tolist(), shard.offsets[1:].tolist(), strict=True)
    ]
    size = sum(len(document) for document in documents)
    rounds = max(1, -(-tokens // size))
    orders = [np.random.default_rng(number).permutation(len(documents)) for number in range(rounds)]
    order = np.concatenate(orders).tolist()
    for number, rows in enumerate(_shards([documents[i] for i in order])):
        write_tokens(folder / f"part-{number:05d}.arrow", rows, [bytes(16)] * len(rows), meta)
        with folder.with_suffix(".bin").open("ab") as file:
            file.write(np.concatenate(rows).data)
    files = {
        file.name: FileEntry(None, file.stat().st_size, store.sha256(file)) for file in sorted(folder.glob("*.arrow"))
    }
    Manifest(files, Counts()).save(folder / "manifest.json")
    return rounds * size


def _shards(documents: list[Tokens]) -> Iterator[list[Tokens]]:
    """Documents by the shard, each as long as `tokenize` makes them."""
    ends = np.cumsum([len(document) for document in documents])
    first = 0
    while first < len(documents):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + MAX_TOKENS, side="right")))
        yield documents[first:last]
        first = last


def open_mode(folder: Path, changes: dict[str, object], batch: int) -> PretrainBatches:
    """Our loader in one of its modes."""
    config = dataclasses.replace(PretrainConfig(sequence_length=LENGTH, global_batch_size=batch), **changes)
    folders = [folder] * (1 + len(config.mixture))
    return PretrainBatches.of(config, folders, ["corpus"] * len(folders), folder.parent / "index")


def measure(next_batch: Callable[[int], object], batch: int, seconds: float) -> tuple[float, float]:
    """Rows per second by the clock, and by the processor's."""
    next_batch(0)
    number, clock, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - clock < seconds:
        number += 1
        next_batch(number)
    rows = number * batch
    return rows / (time.perf_counter() - clock), rows / (time.process_time() - processor)


def measure_rivals(
    python: Path, file: Path, folder: Path, batch: int, seconds: float
) -> dict[str, tuple[float, float]]:
    """The same of the other loaders, in a process of their own."""
    script = Path(__file__).with_name("loader_rivals.py")
    command = [str(python), str(script), str(file), str(folder), str(batch), str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {name: (wall, cpu) for name, wall, cpu in json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """Make the corpus, measure in turns, print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="TOKENS")
    parser.add_argument("--venv", type=Path)
    parser.add_argument("--tokens", type=int, default=100_000_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement")
    call = parser.parse_args()
    torch.set_num_threads(1)
    python = call.venv / "bin/python" if call.venv else Path(sys.executable)
    best: dict[str, tuple[float, float]] = {}

    def note(name: str, found: tuple[float, float]) -> None:
        before = best.get(name, (0.0, 0.0))
        best[name] = (max(before[0], found[0]), max(before[1], found[1]))

    with tempfile.TemporaryDirectory(prefix="loader-") as root:
        folder = Path(root) / "tokens"
        tokens = make_corpus(call.source, folder, call.tokens)
        modes = {name: open_mode(folder, changes, call.batch) for name, changes in MODES.items()}
        for corpus in [corpus for batches in modes.values() for corpus in batches.corpora]:
            for shard in corpus.stream.shards:
                shard.tokens[:: LENGTH // 2].sum()  # pages of a mapping are slow when they are first touched
        for _ in range(call.rounds):
            for name, batches in modes.items():
                found = measure(lambda n, b=batches: b.collate(b.places(n * call.batch)), call.batch, call.seconds)
                note(f"Millrace, {name}", found)
            for name, found in measure_rivals(
                python, folder.with_suffix(".bin"), folder, call.batch, call.seconds
            ).items():
                note(name, found)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(
        f"{tokens:,} tokens, batches of {call.batch} rows of {LENGTH + 1} tokens; {os.cpu_count()} cores, load {load}\n"
    )
    print("| loader | rows/s | rows per CPU second | share of a step at 2M tokens/s |\n| --- | --- | --- | --- |")
    for name, (wall, cpu) in best.items():
        share = (STEP_TOKENS / LENGTH / wall) / (STEP_TOKENS / TARGET)
        print(f"| {name} | {wall:,.0f} | {cpu:,.0f} | {share:.2%} |")


if __name__ == "__main__":
    main()
