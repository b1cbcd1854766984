"""Bring the batches of a step to the device, and meanwhile read those of the next one.

On a GPU a thread reads the next step's samples into pinned memory while the GPU computes; on a CPU the thread would
only compete for the cores. Samples read ahead do not count towards the run's position: a step asks by position, and
anything else that was read is dropped.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch

from trainer.data.batch import Batch, Batches, Rounding, TokenRows
from trainer.data.order import Ids, local_slice, split

Loading = list["Future[Batch | TokenRows]"]


class Feed:
    """The batches of one data-parallel process, step by step."""

    def __init__(
        self,
        batches: Batches,
        rank: int,
        ranks: int,
        batch_size: int,
        device: torch.device,
        *,
        ahead: bool | None = None,
        rounding: Rounding | None = None,
    ) -> None:
        """`batch_size`: samples per batch; 0: the process's whole share of a step.

        `ahead`: whether a thread reads ahead; None: only on a GPU. `rounding`: of a classifier's batches, which then
        all have `batch_size` rows.
        """
        self.batches = batches
        self.rank, self.ranks = rank, ranks
        self.batch_size = batch_size
        self.device = device
        self.ahead = device.type == "cuda" if ahead is None else ahead
        self.rounding = rounding
        self._thread: ThreadPoolExecutor | None = None
        self._ready: dict[int, Loading] = {}

    def step(self, position: int) -> Iterator[Batch]:
        """Yield this process's batches of the global batch after `position` samples, on the device."""
        if not self._parts(position):  # fewer samples than processes
            yield self._load(self.batches.sample_ids(position)[:1]).to(self.device).ignored()
            return
        if not self.ahead:
            for part in self._parts(position):
                yield self._load(part).to(self.device)
            return
        loading = self._ready.pop(position, None) or self._start(position)
        self._drop()
        following = position + len(self.batches.sample_ids(position))
        self._ready[following] = self._start(following)
        for each in loading:
            yield each.result().to(self.device)

    def close(self) -> None:
        """Stop the thread; a later step starts another one."""
        self._drop()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def __enter__(self) -> "Feed":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _parts(self, position: int) -> list[Ids]:
        return split(local_slice(self.batches.sample_ids(position), self.rank, self.ranks), self.batch_size)

    def _start(self, position: int) -> Loading:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "feed", initializer=self._on_device)
        return [self._thread.submit(self._load, part) for part in self._parts(position)]

    def _on_device(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # a new thread uses the first GPU, and pinning would initialise it

    def _load(self, part: Ids) -> Batch | TokenRows:
        rows = self.batches.collate(part)
        if self.rounding is not None and isinstance(rows, Batch):
            rows = self.rounding.rounded(rows, self.batch_size)
        return rows.pinned() if self.device.type == "cuda" else rows

    def _drop(self) -> None:
        for loading in self._ready.values():
            for each in loading:
                each.cancel()
        self._ready.clear()
