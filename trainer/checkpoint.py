"""Checkpoints: torch.distributed.checkpoint folders `step-00001000/` that any layout can load.

Tensors only, under canonical names: `model.NAME` and `optimizer.exp_avg[_sq].NAME`, in fp32, the embedding at its
true size and the tied head only as the embedding. Everything else is JSON in `run.json`. A checkpoint is written to
a temporary folder, brought to disk and renamed; `files.json` has the size and digest of each of its files. The
library's index `.metadata` is a pickle: it is written the same way each time, and read by an unpickler that knows a
fixed list of classes and nothing else.
"""

import contextlib
import enum
import logging
import pickle
import re
import warnings
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.tensor import DTensor

from pipelines import store
from pipelines.errors import UserError
from trainer.model import TIED, canonical
from trainer.records import FILES, RECORD, DamagedError, damage, file_entry, step_folder
from trainer.shards import fill, like, local

logger = logging.getLogger(__name__)

INDEX = ".metadata"
MOMENTS = ("exp_avg", "exp_avg_sq")

_DCP = "torch.distributed.checkpoint"
SAFE_CLASSES = frozenset(
    {
        (f"{_DCP}.metadata", "Metadata"),
        (f"{_DCP}.metadata", "TensorStorageMetadata"),
        (f"{_DCP}.metadata", "ChunkStorageMetadata"),
        (f"{_DCP}.metadata", "TensorProperties"),
        (f"{_DCP}.metadata", "MetadataIndex"),
        (f"{_DCP}.metadata", "_MEM_FORMAT_ENCODING"),
        (f"{_DCP}.filesystem", "_StorageInfo"),
        ("torch", "Size"),
        ("torch", "float32"),
        ("torch.serialization", "_get_layout"),
    }
)
"""All that an index of ours is made of."""


def model_tensors(weights: Mapping[str, Tensor], vocab_size: int) -> dict[str, Tensor]:
    """This process's weights under canonical names, without padding rows."""
    return {f"model.{canonical(name)}": _stored(name, weight.detach(), vocab_size) for name, weight in weights.items()}


def optimizer_tensors(
    weights: Mapping[str, Tensor], moments: Mapping[str, tuple[Tensor, Tensor]], vocab_size: int
) -> dict[str, Tensor]:
    """AdamW's two moments of each weight under canonical names, likewise. `moments`: this process's parts."""
    return {
        f"optimizer.{moment}.{canonical(name)}": _stored(name, like(weight.detach(), part), vocab_size)
        for name, weight in weights.items()
        for moment, part in zip(MOMENTS, moments[name], strict=True)
    }


def _stored(name: str, tensor: Tensor, vocab_size: int) -> Tensor:
    """What a checkpoint holds: a view of the live tensor, or a copy of the embedding where it is split.

    A part of the embedding with padding is no part of the one without, so that one is put together.
    """
    if canonical(name) != TIED:
        return tensor
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor)[:vocab_size]


def give_embedding(
    tensors: Mapping[str, Tensor], weights: Mapping[str, Tensor], moments: Mapping[str, tuple[Tensor, Tensor]]
) -> None:
    """Give embedding and head what was loaded for them: in `tensors` it may be a copy, and is there once."""
    for name, weight in weights.items():
        if canonical(name) == TIED:
            fill(weight.detach(), tensors[f"model.{TIED}"])
            for moment, part in zip(MOMENTS, moments[name], strict=True):
                fill(like(weight.detach(), part), tensors[f"optimizer.{moment}.{TIED}"])


def save(root: Path, step: int, tensors: dict[str, Tensor], record: dict[str, Any]) -> None:
    """Write the checkpoint of `step`; every process calls this. It is there as a whole or not at all."""
    saver = Saver(root)
    saver.save(step, tensors, record)
    saver.close()


class Saver:
    """Saves one checkpoint after the other; `in_background` while training goes on, from a copy in the host's memory.

    Every process makes the same calls. At most one checkpoint is being written: the next one waits for it.
    """

    def __init__(self, root: Path, *, in_background: bool = False) -> None:
        self._root = root
        # A group of its own: the exchanges of a thread must not come between those of training.
        self._group: Any = cast(Any, dist).new_group(backend="gloo") if in_background else None
        self._staging = _Staging()
        self._pending: tuple[Path, Future[Metadata]] | None = None

    def save(
        self,
        step: int,
        tensors: dict[str, Tensor],
        record: dict[str, Any],
        published: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the checkpoint of `step`, or begin to; then the first process calls `published`.

        Raises UserError when this one, or the one before that was written in the background, could not be.
        """
        self.wait()
        final = step_folder(self._root, step)
        writer = _Writer(final, record, published)
        with _errors_of(final):
            if self._group is None:
                state_dict_saver.save(tensors, storage_writer=writer)
                return
            self._pending = (
                final,
                cast(
                    "Future[Metadata]",
                    state_dict_saver.async_save(
                        tensors, storage_writer=writer, async_stager=self._staging, process_group=self._group
                    ),
                ),
            )

    def wait(self) -> None:
        """Until the checkpoint that is being written is there. Raises UserError, in every process, when it failed."""
        if self._pending is None:
            return
        (final, future), self._pending = self._pending, None
        with _errors_of(final):
            future.result()

    def close(self) -> None:
        """Wait, also when training failed; that error is the one to be raised, so one of the save is only logged."""
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001 (whatever a thread and processes that are gone can raise)
            logger.warning("%s", error)
        if self._group is not None:
            cast(Any, dist).destroy_process_group(self._group)


@contextlib.contextmanager
def _errors_of(final: Path) -> Generator[None, None, None]:
    """What failed in any process, as one line in all of them."""
    try:
        yield
    except CheckpointException as error:
        causes = "; ".join(sorted({str(wrapped[0]) for wrapped in error.failures.values()}))
        raise UserError(f"{final}: could not be written ({causes}); mend the cause and run again") from None


class _Staging(AsyncStager):
    """Copies in the host's memory, in the same place each time; on a GPU pinned, so that the copying is fast."""

    _synchronize_after_execute = False

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """The tensors as they are now, split as they are."""
        on_gpu = False
        for name, tensor in state_dict.items():
            part = local(tensor)
            if name not in self._copies:
                self._copies[name] = torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda)
            self._copies[name].copy_(part, non_blocking=True)
            on_gpu |= part.is_cuda
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        return {name: like(tensor, self._copies[name]) for name, tensor in state_dict.items()}


def require_whole(folder: Path, *, alone: bool = False) -> None:
    """Raise DamagedError unless all files are those that were written.

    Every process calls this and looks at its share, or one `alone` without a process group.
    """
    found: list[str | None] = [damage(folder)] if alone else [None] * dist.get_world_size()
    if not alone:
        cast(Any, dist).all_gather_object(found, damage(folder, dist.get_rank(), len(found)))
    if problem := next(filter(None, found), None):
        raise DamagedError(problem)


def load(folder: Path, tensors: dict[str, Tensor], *, alone: bool = False) -> None:
    """Fill `tensors` in place from a checkpoint; every process calls this, or one `alone` without a process group.

    Raises UserError unless the checkpoint holds each of them, with its size, as an fp32 tensor.
    """
    index = read_index(folder)
    _check_index(folder, index, tensors)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        state_dict_loader.load(tensors, storage_reader=_Reader(folder, index), no_dist=alone)


def read_index(folder: Path) -> Metadata:
    """The checkpoint's index, through an unpickler that builds nothing but its own classes."""
    try:
        with (folder / INDEX).open("rb") as file:
            index = _IndexUnpickler(file).load()
    except FileNotFoundError:
        raise UserError(f"{folder}: has no {INDEX}, so it is no checkpoint; name another folder") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, TypeError, ValueError, IndexError) as error:
        raise UserError(
            f"{folder / INDEX}: not an index of ours ({error}); it was not executed. Get the checkpoint again from "
            "whom you trust"
        ) from None
    if not isinstance(index, Metadata):
        raise UserError(f"{folder / INDEX}: not an index of ours; get the checkpoint again")
    return index


def _check_index(folder: Path, index: Metadata, tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        entry = index.state_dict_metadata.get(name)
        # Anything but a tensor would be unpickled without limits by the library.
        if not isinstance(entry, TensorStorageMetadata):
            raise UserError(f"{folder}: has no tensor {name}; it is a checkpoint of another model")
        if entry.size != tensor.shape or entry.properties.dtype != tensor.dtype:
            found = f"{tuple(entry.size)} of {entry.properties.dtype}"
            raise UserError(f"{folder}: {name} is {found}, expected {tuple(tensor.shape)} of {tensor.dtype}")
    for info in (index.storage_data or {}).values():
        if not re.fullmatch(r"__\d+_\d+\.distcp", info.relative_path) or info.transform_descriptors:
            raise UserError(f"{folder}: its index names the file {info.relative_path!r}; get the checkpoint again")


class _IndexPickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Members of enumerations by value: some Pythons (3.11.2) write them by name, through getattr."""
        return (type(value), (value.value,)) if isinstance(value, enum.Enum) else NotImplemented


class _IndexUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SAFE_CLASSES:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    """Reads tensors by an index that has been checked."""

    def __init__(self, folder: Path, index: Metadata) -> None:
        super().__init__(folder)
        self._index = index

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._index


class _Writer(FileSystemWriter):
    """Writes a checkpoint beside its place, and moves it there once all processes have theirs on disk.

    Its index depends on the tensors alone: no ids, no paths, sorted. What fails in one process fails in all.
    """

    def __init__(self, final: Path, record: dict[str, Any], published: Callable[[], None]) -> None:
        self._folder = final.with_name(f".{final.name}.tmp")
        self._final = final
        self._record = record
        self._published = published
        super().__init__(self._folder, overwrite=True)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Nothing: the first process makes the folder."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """In the first process, before any process writes."""
        store.remove(self._folder)
        self._folder.mkdir(parents=True)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Write this process's file; what it wrote, and the file's size and digest."""
        # Where processes share a folder over a network, one may not see yet what another has made.
        self._folder.mkdir(exist_ok=True)
        written = super().write_data(plan, planner).wait()
        entries = {path.name: file_entry(path) for path in sorted(self._folder.glob(f"{plan.storage_data.prefix}*"))}
        result: Any = torch.futures.Future()
        result.set_result((written, entries))
        return result

    def finish(self, metadata: Metadata, results: Any) -> None:
        """In the first process, once all have written."""
        entries = {result.index: result.storage_data for written, _ in results for result in written}
        ordered = sorted(entries, key=lambda index: (index.fqn, tuple(index.offset or ())))
        metadata.state_dict_metadata = dict(sorted(metadata.state_dict_metadata.items()))
        for entry in metadata.state_dict_metadata.values():
            if isinstance(entry, TensorStorageMetadata):
                # In pinned memory or not: the same tensor.
                entry.properties.pin_memory = False
        metadata.storage_data = {index: entries[index] for index in ordered}
        metadata.planner_data = dict(sorted(metadata.planner_data.items()))
        metadata.storage_meta = None
        with store.create(self._folder / INDEX) as file:
            pickler = _IndexPickler(file, protocol=4)
            # No memo: equal values give equal bytes, whether or not they are the same object.
            pickler.fast = True
            pickler.dump(metadata)
        store.write_json(self._folder / RECORD, self._record)
        files = {name: entry for _, entries in results for name, entry in entries.items()}
        files |= {name: file_entry(self._folder / name) for name in (INDEX, RECORD)}
        store.write_json(self._folder / FILES, files)
        store.remove(self._final)
        store.rename(self._folder, self._final)
        self._published()
