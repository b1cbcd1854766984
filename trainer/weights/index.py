"""The index of a checkpoint, torch's `.metadata`: which tensors there are, and in which file each part of them lies.

It is a pickle, written so that it depends on the tensors alone. Before it is read, its instructions are looked at:
those that this trainer writes refer to nothing twice and do not go deep, so time and memory are in proportion to the
file. The unpickler builds only what is on a list, and what torch relies on when it reads tensors is checked afterwards.

When a checkpoint is saved, torch also sends pickles from process to process: see `restrict_torch`.
"""

import builtins
import enum
import io
import math
import pickle
import pickletools
import re
import reprlib
from pathlib import Path
from typing import IO, Any

from torch import Tensor
from torch.distributed import distributed_c10d
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from pipelines.errors import UserError
from trainer.weights.records import INDEX

_DCP = "torch.distributed.checkpoint"
INDEX_CLASSES = frozenset(
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
"""The classes in an index that this trainer writes."""
PLAN_CLASSES = INDEX_CLASSES | {
    (f"{_DCP}.planner", "SavePlan"),
    (f"{_DCP}.planner", "WriteItem"),
    (f"{_DCP}.planner", "WriteItemType"),
    (f"{_DCP}.planner", "TensorWriteData"),
    (f"{_DCP}.storage", "WriteResult"),
    (f"{_DCP}.filesystem", "_StoragePrefix"),
    (f"{_DCP}.api", "CheckpointException"),
    ("torch", "OutOfMemoryError"),
    ("traceback", "StackSummary"),
    ("traceback", "FrameSummary"),
    ("pipelines.errors", "UserError"),
}
"""Those that processes send each other when they save a checkpoint, with the error of one that fails."""
CONTAINERS = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD")
INSTRUCTIONS = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2"),
        *("LONG1", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_LIST", "EMPTY_DICT", "STACK_GLOBAL", "REDUCE", "NEWOBJ", *CONTAINERS),
    }
)
"""What a pickle without references is made of: with references, a few bytes can stand for gigabytes."""
DEEPEST = 40
"""Levels of values in values; an index that this trainer writes has a third of them."""


class Pickler(pickle.Pickler):
    """Pickles members of enumerations by value: some Pythons (3.11.2) do it by name, through getattr."""

    def reducer_override(self, value: Any) -> Any:
        """Return how to make such a member again."""
        return (type(value), (value.value,)) if isinstance(value, enum.Enum) else NotImplemented


class Unpickler(pickle.Unpickler):
    """Builds objects of a fixed list of classes only."""

    classes = INDEX_CLASSES

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of the list; raise UnpicklingError for anything else."""
        if (module, name) not in self.classes:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


class PlanUnpickler(Unpickler):
    """Reads what processes send each other when they save a checkpoint."""

    classes = PLAN_CLASSES

    def find_class(self, module: str, name: str) -> Any:
        """Return a class of the list, or one of Python's own errors."""
        kind = getattr(builtins, name, None) if module == "builtins" else None
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind
        return super().find_class(module, name)


def restrict_torch() -> None:
    """Let torch make nothing but plans of checkpoints, and errors, of what other processes send to this one."""
    distributed_c10d._pickler = Pickler  # pyright: ignore[reportPrivateUsage]
    distributed_c10d._unpickler = PlanUnpickler  # pyright: ignore[reportPrivateUsage]


def write_index(index: Metadata, file: IO[bytes]) -> None:
    """Write an index without references: equal values give equal bytes, whether or not they are the same object."""
    pickler = Pickler(file, protocol=4)
    pickler.fast = True
    pickler.dump(index)


def read_index(folder: Path) -> Metadata:
    """Read a checkpoint's index. Raises UserError for any other file, of which nothing is executed."""
    try:
        data = (folder / INDEX).read_bytes()
    except FileNotFoundError:
        raise UserError(f"{folder}: has no {INDEX}, so it is not a checkpoint; name another folder") from None
    try:
        _check_instructions(data)
        index = Unpickler(io.BytesIO(data)).load()
    except Exception as error:  # noqa: BLE001 (whoever made the bytes chose the error too)
        raise UserError(
            f"{folder / INDEX}: not an index of this trainer ({_line(error)}); it was not executed; get the checkpoint "
            "again from a source that you trust"
        ) from None
    if not isinstance(index, Metadata):
        raise UserError(f"{folder / INDEX}: not an index of this trainer; get the checkpoint again")
    return index


def _check_instructions(data: bytes) -> None:
    """Raise UnpicklingError for an instruction that an index does not need, and for values that are too deep."""
    depths: list[int] = []
    marks: list[int] = []
    for opcode, *_ in pickletools.genops(data):
        if opcode.name not in INSTRUCTIONS:
            raise pickle.UnpicklingError(f"it uses {opcode.name}")
        if opcode.name == "MARK":
            marks.append(len(depths))
        if opcode.name in ("MARK", "MEMOIZE"):
            continue
        before = [each.name for each in opcode.stack_before]
        start = marks.pop() - before.index("mark") if "mark" in before else len(depths) - len(before)
        popped = depths[start:]
        del depths[start:]
        own = popped[:1] if opcode.name in CONTAINERS else []
        depth = max([*own, *(1 + depth for depth in popped[len(own) :])], default=0)
        if depth > DEEPEST:
            raise pickle.UnpicklingError(f"its values are more than {DEEPEST} levels deep")
        depths += [depth] * len(opcode.stack_after)


def check_index(folder: Path, index: Metadata, tensors: dict[str, Tensor]) -> None:
    """Raise UserError unless the index has all `tensors`, whole, in files of this folder."""
    try:
        for name, tensor in tensors.items():
            if problem := _problem(folder, index, name, tensor):
                raise UserError(problem)
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 (the same)
        raise UserError(
            f"{folder / INDEX}: not an index of this trainer ({_line(error)}); get the checkpoint again"
        ) from None


def _entries(folder: Path, index: Metadata) -> dict[str, Any]:
    entries = getattr(index, "state_dict_metadata", None)
    if not isinstance(entries, dict) or not isinstance(getattr(index, "storage_data", None), dict):
        raise UserError(f"{folder / INDEX}: not an index of this trainer; get the checkpoint again")
    return entries


def _problem(folder: Path, index: Metadata, name: str, tensor: Tensor) -> str | None:
    """Return what is wrong with a tensor in the index, or None."""
    entry, shape = _entries(folder, index).get(name), tuple(tensor.shape)
    # The library would unpickle anything but a tensor without restrictions.
    if not isinstance(entry, TensorStorageMetadata):
        return f"{folder}: has no tensor {name}; it is a checkpoint of another model"
    if tuple(entry.size) != shape or entry.properties.dtype != tensor.dtype:
        stored = f"{tuple(entry.size)} of {entry.properties.dtype}"
        return f"{folder}: {name} is {stored}, expected {shape} of {tensor.dtype}"
    numbers = 0
    for chunk in entry.chunks:
        place: Any = (index.storage_data or {}).get(MetadataIndex(name, chunk.offsets))
        if problem := _problem_of_part(folder, tuple(chunk.offsets), tuple(chunk.sizes), shape, place):
            return f"{folder / INDEX}: {name}: {problem}; get the checkpoint again"
        numbers += math.prod(chunk.sizes)
    if numbers != math.prod(shape):
        return f"{folder / INDEX}: {name}: its parts have {numbers} numbers, of {math.prod(shape)}; get it again"
    return None


def _problem_of_part(
    folder: Path, offsets: tuple[int, ...], sizes: tuple[int, ...], shape: tuple[int, ...], place: Any
) -> str | None:
    """Return what is wrong with a part of a tensor. `place`: where it lies, as the index says."""
    if len(offsets) != len(shape) or len(sizes) != len(shape):
        return f"a part has the shape {reprlib.repr(sizes)}, of {shape}"
    ends = zip(offsets, sizes, shape, strict=True)
    if not all(_are_whole(*each) and each[0] + each[1] <= each[2] for each in ends):
        return f"its part {sizes} at {offsets} is not inside of {shape}"
    if place is None:
        return f"no file is named for its part at {offsets}"
    if not re.fullmatch(r"__\d+_\d+\.distcp", place.relative_path) or place.transform_descriptors:
        return f"its index names the file {reprlib.repr(place.relative_path)}"
    if not _are_whole(place.offset, place.length):
        return f"it begins at byte {reprlib.repr(place.offset)} and has {reprlib.repr(place.length)} bytes"
    size, end = (folder / place.relative_path).stat().st_size, place.offset + place.length
    return f"it ends at byte {end} of {place.relative_path}, which has {size}" if end > size else None


def _are_whole(*numbers: Any) -> bool:
    """Whether all are whole numbers of at least 0."""
    return all(type(number) is int and number >= 0 for number in numbers)


def check_model(folder: Path, index: Metadata, sizes: dict[str, int]) -> None:
    """Raise UserError unless a model of these sizes, which may be anything, is as large as the one in the index."""
    entries = _entries(folder, index)

    def shape(name: str) -> tuple[int, ...]:
        return tuple(getattr(entries.get(f"model.{name}"), "size", ()))

    layers = {match[1] for name in entries if (match := re.match(r"model\.transformer\.h\.(\d+)\.", str(name)))}
    stored: dict[str, tuple[int, ...]] = {
        "n_layer": (len(layers),),
        "vocab_size": shape("transformer.wte.weight")[:1],
        "n_positions": shape("transformer.wpe.weight")[:1],
        "n_embd": shape("transformer.wpe.weight")[1:],
        "num_labels": shape("score.weight")[:1] or (0,),
    }
    for name, found in stored.items():
        if found != (sizes[name],):
            shown = found[0] if found else "not there"
            raise UserError(f"{folder}: its record says {name} {sizes[name]}, its tensors {shown}; get it again")


def _line(error: BaseException) -> str:
    """Return an error's text in one short line."""
    return " ".join(f"{error or type(error).__name__}".split())[:200]
