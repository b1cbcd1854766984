"""Checkpoints: torch.distributed.checkpoint folders `step-00001000/` that any layout can load.

Tensors only, under canonical names: `model.NAME` and `optimizer.exp_avg[_sq].NAME`, in fp32, the embedding at its
true size and the tied head only as the embedding. Everything else is JSON in `run.json`. A checkpoint is written to
a temporary folder, brought to disk and renamed. The library's index `.metadata` is a pickle: it is written the same
way each time, and read by an unpickler that knows a fixed list of classes and nothing else.
"""

import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from pipelines import store
from pipelines.errors import UserError
from trainer.model import GPT2, TIED
from trainer.parallel.mesh import Mesh
from trainer.records import RECORD, step_folder

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


def model_tensors(model: GPT2) -> dict[str, Tensor]:
    """The model's weights under canonical names, without padding rows; views, so that loading fills the model."""
    return {f"model.{name}": _true_rows(name, weight.detach(), model) for name, weight in model.named_parameters()}


def optimizer_tensors(model: GPT2, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's two moments of each weight under canonical names, likewise."""
    return {
        f"optimizer.{moment}.{name}": _true_rows(name, optimizer.state[weight][moment], model)
        for name, weight in model.named_parameters()
        for moment in MOMENTS
    }


def set_optimizer_steps(optimizer: torch.optim.Optimizer, steps: int) -> None:
    """AdamW's own counter: the one scalar that every weight has a copy of."""
    for state in optimizer.state.values():
        state["step"].fill_(steps)


def _true_rows(name: str, tensor: Tensor, model: GPT2) -> Tensor:
    return tensor[: model.shape.vocab_size] if name == TIED else tensor


def save(root: Path, step: int, tensors: dict[str, Tensor], record: dict[str, Any], mesh: Mesh) -> None:
    """Write the checkpoint of `step`; every process calls this. It is there as a whole or not at all."""
    final = step_folder(root, step)
    temporary = root / f".{final.name}.tmp"
    if mesh.is_first:
        store.remove(temporary)
        temporary.mkdir(parents=True)
    mesh.barrier()
    try:
        state_dict_saver.save(tensors, storage_writer=_Writer(temporary, overwrite=True))
    except CheckpointException as error:
        causes = "; ".join(sorted({str(wrapped[0]) for wrapped in error.failures.values()}))
        raise UserError(f"{final}: could not be written ({causes}); mend the cause and run again") from None
    if mesh.is_first:
        store.write_json(temporary / RECORD, record)
        store.remove(final)
        store.rename(temporary, final)
    mesh.barrier()


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
    """Writes an index that depends on the tensors alone: no ids, no paths, sorted."""

    def finish(self, metadata: Metadata, results: Any) -> None:
        entries = {result.index: result.storage_data for written in results for result in written}
        ordered = sorted(entries, key=lambda index: (index.fqn, tuple(index.offset or ())))
        metadata.state_dict_metadata = dict(sorted(metadata.state_dict_metadata.items()))
        metadata.storage_data = {index: entries[index] for index in ordered}
        metadata.planner_data = dict(sorted(metadata.planner_data.items()))
        metadata.storage_meta = None
        with store.create(Path(self.path) / INDEX) as file:
            pickler = pickle.Pickler(file, protocol=4)
            # No memo: equal values give equal bytes, whether or not they are the same object.
            pickler.fast = True
            pickler.dump(metadata)
