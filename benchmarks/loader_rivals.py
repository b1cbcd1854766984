"""The other loaders of `benchmarks/loader.py`: run by it, in the virtual environment that has them.

    python benchmarks/loader_rivals.py TOKENS.bin FOLDER BATCH SECONDS

nanoGPT's get_batch (karpathy/nanoGPT: train.py): a new memory map per batch, int64 copies of each row, stacked.
torch's DataLoader over a Dataset of rows of the mapped file, shuffled, no workers (workers are slower: each batch
goes through shared memory). datasets: rows of a mapped Arrow dataset by random indexes, one by one and in batches.
The last line of the output is JSON: [name, rows/s, rows per CPU second].
"""

import json
import sys
import time

import numpy as np
import torch

LENGTH = 1024


def measure(next_batch, batch, seconds):
    """Rows per second by the clock, and by the processor's."""
    next_batch()
    number, clock, processor = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - clock < seconds:
        number += 1
        next_batch()
    rows = number * batch
    return rows / (time.perf_counter() - clock), rows / (time.process_time() - processor)


def nanogpt(file, batch):
    """Inputs and targets as its training loop makes them."""

    def next_batch():
        data = np.memmap(file, dtype=np.uint16, mode="r")
        ix = torch.randint(len(data) - LENGTH, (batch,))
        x = torch.stack([torch.from_numpy((data[i : i + LENGTH]).astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + LENGTH]).astype(np.int64)) for i in ix])
        return x, y

    return next_batch


class Rows(torch.utils.data.Dataset):
    """Rows of the mapped file, as int64 tensors."""

    def __init__(self, file):
        self.tokens = np.memmap(file, dtype=np.uint16, mode="r")

    def __len__(self):
        return (len(self.tokens) - 1) // LENGTH

    def __getitem__(self, row):
        return torch.from_numpy(self.tokens[row * LENGTH : row * LENGTH + LENGTH + 1].astype(np.int64))


def dataloader(file, batch):
    """Shuffled batches, epoch after epoch."""
    loader = torch.utils.data.DataLoader(Rows(file), batch_size=batch, shuffle=True, drop_last=True)
    epoch = iter(())

    def next_batch():
        nonlocal epoch
        try:
            return next(epoch)
        except StopIteration:
            epoch = iter(loader)
            return next(epoch)

    return next_batch


def hugging_face(file, folder, batch, *, batched):
    """Rows of a dataset on disk, as torch tensors, at random indexes."""
    from pathlib import Path

    import datasets
    import pyarrow as pa

    saved = Path(folder).with_name("rows.hf")
    if not saved.exists():
        tokens = np.fromfile(file, np.uint16)
        tokens = tokens[: len(tokens) // (LENGTH + 1) * (LENGTH + 1)]
        table = pa.table({"tokens": pa.FixedSizeListArray.from_arrays(pa.array(tokens), LENGTH + 1)})
        datasets.disable_progress_bars()
        datasets.Dataset(table).save_to_disk(str(saved))
    rows = datasets.load_from_disk(str(saved)).with_format("numpy")
    rng = np.random.default_rng(0)

    def next_batch():
        indexes = rng.integers(0, len(rows), batch).tolist()
        found = rows[indexes]["tokens"] if batched else np.stack([rows[i]["tokens"] for i in indexes])
        return torch.from_numpy(found)

    return next_batch


def main(file, folder, batch, seconds):
    """Measure each once."""
    torch.set_num_threads(1)
    loaders = {
        "nanoGPT's get_batch": nanogpt(file, batch),
        "torch DataLoader, no workers": dataloader(file, batch),
        "datasets, row by row": hugging_face(file, folder, batch, batched=False),
        "datasets, in batches": hugging_face(file, folder, batch, batched=True),
    }
    print(json.dumps([[name, *measure(loader, batch, seconds)] for name, loader in loaders.items()]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
