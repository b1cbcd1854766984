"""Rows of 1,025 tokens per second as torch tensors ready to be moved, from one process, beside other loaders.

    python -m benchmarks.loader TOKENS [--venv VENV] [--tokens 100000000] [--batch 256] [--rounds 5]

TOKENS: a folder of token shards of real text; its documents are copied in seeded orders until there are enough.
VENV: where the rivals' numpy, torch and datasets are (default: here). Every loader reads the same tokens from files
that are in the page cache, in a random order of its own kind, with one thread; rounds are interleaved, the best one
counts.

The other loaders are measured in a process of their own, from the root of the repository; our packages may be missing
there. The last line of the output is JSON: [name, rows/s, rows per CPU second].

    VENV/bin/python -m benchmarks.loader rivals TOKENS.bin FOLDER BATCH SECONDS

nanoGPT's get_batch (karpathy/nanoGPT: train.py): a new memory map per batch, int64 copies of each row, stacked.
torch's DataLoader over a Dataset of rows of the mapped file, shuffled, no workers (workers are slower: each batch
goes through shared memory). datasets: rows of a mapped Arrow dataset by random indexes, one by one and in batches.
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
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from trainer.data.batches import PretrainBatches

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
    from pipelines import store
    from pipelines.manifest import Counts, FileEntry, Manifest
    from pipelines.tokens import MAX_TOKENS, open_tokens, write_tokens

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
    for number, rows in enumerate(_shards([documents[i] for i in order], MAX_TOKENS)):
        write_tokens(folder / f"part-{number:05d}.arrow", rows, [bytes(16)] * len(rows), meta)
        with folder.with_suffix(".bin").open("ab") as file:
            file.write(np.concatenate(rows).data)
    files = {
        file.name: FileEntry(None, file.stat().st_size, store.sha256(file)) for file in sorted(folder.glob("*.arrow"))
    }
    Manifest(files, Counts()).save(folder / "manifest.json")
    return rounds * size


def _shards(documents: list[Tokens], most: int) -> Iterator[list[Tokens]]:
    """Documents by the shard, each as long as `tokenize` makes them."""
    ends = np.cumsum([len(document) for document in documents])
    first = 0
    while first < len(documents):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield documents[first:last]
        first = last


def open_mode(folder: Path, changes: dict[str, object], batch: int) -> "PretrainBatches":
    """Our loader in one of its modes."""
    from trainer.config import PretrainConfig
    from trainer.data.batches import PretrainBatches

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
    arguments = map(str, (file, folder, batch, seconds))
    command = [str(python), "-m", "benchmarks.loader", "rivals", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {name: (wall, cpu) for name, wall, cpu in json.loads(done.stdout.splitlines()[-1])}


def nanogpt(file: Path, batch: int) -> Callable[[int], object]:
    """Inputs and targets as its training loop makes them."""

    def next_batch(_: int) -> object:
        data = np.memmap(file, dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - LENGTH, (batch,))
        x = torch.stack([torch.from_numpy((data[i : i + LENGTH]).astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + LENGTH]).astype(np.int64)) for i in ix])
        return x, y

    return next_batch


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows of the mapped file, as int64 tensors."""

    def __init__(self, file: Path) -> None:
        self.tokens = np.memmap(file, dtype=np.uint16, mode="r")

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.from_numpy(self.tokens[row * LENGTH : row * LENGTH + LENGTH + 1].astype(np.int64))


def dataloader(file: Path, batch: int) -> Callable[[int], object]:
    """Shuffled batches, epoch after epoch."""
    loader = torch.utils.data.DataLoader(Rows(file), batch_size=batch, shuffle=True, drop_last=True)
    epoch: Iterator[Any] = iter(())

    def next_batch(_: int) -> object:
        nonlocal epoch
        try:
            return next(epoch)
        except StopIteration:
            epoch = iter(loader)
            return next(epoch)

    return next_batch


def hugging_face(file: Path, folder: Path, batch: int, *, batched: bool) -> Callable[[int], object]:
    """Rows of a dataset on disk, as torch tensors, at random indexes."""
    import datasets
    import pyarrow as pa

    saved = folder.with_name("rows.hf")
    if not saved.exists():
        tokens = np.fromfile(file, np.uint16)
        tokens = tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)]
        table = pa.table({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens), LENGTH + 1)})
        datasets.disable_progress_bars()
        datasets.Dataset(table).save_to_disk(str(saved))
    rows = datasets.load_from_disk(str(saved)).with_format("numpy")
    rng = np.random.default_rng(0)

    def next_batch(_: int) -> object:
        indexes = rng.integers(0, len(rows), batch).tolist()
        found = rows[indexes]["tokens"] if batched else np.stack([rows[i]["tokens"] for i in indexes])
        return torch.from_numpy(found)

    return next_batch


def run_rivals(file: Path, folder: Path, batch: int, seconds: float) -> None:
    """Measure each of the other loaders once, without anything of ours."""
    torch.set_num_threads(1)
    loaders = {
        "nanoGPT's get_batch": nanogpt(file, batch),
        "torch DataLoader, no workers": dataloader(file, batch),
        "datasets, row by row": hugging_face(file, folder, batch, batched=False),
        "datasets, in batches": hugging_face(file, folder, batch, batched=True),
    }
    print(json.dumps([[name, *measure(loader, batch, seconds)] for name, loader in loaders.items()]))


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
                found = measure(lambda n, b=batches: b.collate(b.sample_ids(n * call.batch)), call.batch, call.seconds)
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
    if sys.argv[1:2] == ["rivals"]:
        tokens_file, tokens_folder, rows, duration = sys.argv[2:]
        run_rivals(Path(tokens_file), Path(tokens_folder), int(rows), float(duration))
    else:
        main()
