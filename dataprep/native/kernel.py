"""The native kernel: folding, shingles, signatures and set sizes in C, for many texts at a time.

Installing the package builds it where there is a C compiler (setup.py); elsewhere `kernel()` is None and
NumPy does the work, as it does, with a warning, where what was built cannot be loaded. Both give the same bytes.
The environment variable MILLRACE_KERNEL can choose: `numpy`, or one of the instruction sets that the kernel is
compiled for (`portable`, `avx2`, `avx512`); without it the fastest that this processor has.

Texts are given as in `dataprep.text.folding.Texts`: UTF-8 bytes, and where each text starts and ends.
"""

import functools
import importlib
import logging
import multiprocessing
import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dataprep.text.characters import character_flags
from pipelines.errors import ConfigError

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Span = tuple[Array, Array, Array]
"""Data, starts and ends of some texts."""
Unit = Literal["word", "char"]

VARIABLE = "MILLRACE_KERNEL"
_MODULE = "dataprep.native._kernel"
_UNITS: dict[Unit, int] = {"word": 0, "char": 1}
_SLACK = 64
"""Bytes that folding needs beyond its result: SLACK in kernel.h."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """The compiled module for one instruction set."""

    name: str
    module: Any

    def unstable(self, texts: Span) -> Array:
        """The numbers of the texts that NFC or case folding may change beyond ASCII."""
        marks = np.empty(len(texts[1]), np.uint8)
        self.module.unstable(*_flat(texts), character_flags(), marks)
        return np.flatnonzero(marks)

    def fold(self, texts: Span) -> Span:
        """ASCII letters in lower case, white space collapsed."""
        data, starts, ends = _flat(texts)
        out = np.empty(int((ends - starts).sum()) + _SLACK, np.uint8)
        new_starts, new_ends = np.empty_like(starts), np.empty_like(ends)
        used = self.module.fold(data, starts, ends, character_flags(), out, new_starts, new_ends)
        return out[:used], new_starts, new_ends

    def shingles(self, texts: Span, unit: Unit, size: int, *, distinct: bool) -> tuple[Array, Array]:
        """Hashes of all shingles, and where each text's begin; sorted and each once if `distinct`."""
        data, starts, ends = _flat(texts)
        out = np.empty(int((ends - starts).sum()), np.uint64)  # no more shingles than bytes
        first = np.empty(len(starts) + 1, np.int64)
        used = self.module.shingles(data, starts, ends, character_flags(), _UNITS[unit], size, distinct, out, first)
        return out[:used], first

    def sign(self, texts: Span, unit: Unit, size: int, a: Array, b: Array) -> Array:
        """MinHash signatures for the permutations a*h + b, (num_texts, num_perm) uint32."""
        out = np.empty((len(texts[1]), len(a)), np.uint32)
        factors = (np.ascontiguousarray(each, np.uint32) for each in (a, b))
        self.module.sign(*_flat(texts), character_flags(), _UNITS[unit], size, *factors, out)
        return out

    def shared(self, arrays: tuple[Array, ...], a: Span, b: Span) -> Array:
        """How many values the sets of each pair share, (num_pairs,) int64.

        The sorted, distinct sets lie in `arrays`, of uint64; `a` and `b` say in which, and where they start and end.
        """
        out = np.empty(len(a[0]), np.int64)
        places = (np.ascontiguousarray(each, np.int64) for each in (*a, *b))
        self.module.shared(tuple(np.ascontiguousarray(each, np.uint64) for each in arrays), *places, out)
        return out


def _flat(texts: Span) -> Span:
    """With the types and the layout that the compiled module reads."""
    data, starts, ends = texts
    return (
        np.ascontiguousarray(data, np.uint8),
        np.ascontiguousarray(starts, np.int64),
        np.ascontiguousarray(ends, np.int64),
    )


@functools.cache
def kernel() -> Kernel | None:
    """The kernel to use, or None for NumPy. Raises ConfigError when MILLRACE_KERNEL asks for one that is not here."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "numpy":
        return None
    module = _compiled()
    names: list[str] = list(module.names()) if module else []
    if wanted and wanted not in names:
        raise ConfigError(f"{VARIABLE}={wanted}: expected one of {', '.join(('numpy', *names))} on this machine")
    if not module:
        return None
    name = wanted or names[-1]
    module.choose(name)
    return Kernel(name, module)


def _compiled() -> Any:
    """The compiled module; None where it was not built, and, with a warning, where it cannot be loaded."""
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == _MODULE
        if not missing and multiprocessing.parent_process() is None:  # once, and not by each worker
            logger.warning(
                "the native kernel cannot be loaded (%s), so NumPy does its work, more slowly; build it again: "
                "python setup.py build_ext --inplace, or install the package again",
                " ".join(str(error).split()),
            )
        return None


def kernel_name() -> str:
    """What does the work, for the log and the provenance: `numpy`, `portable`, `avx2` or `avx512`."""
    chosen = kernel()
    return chosen.name if chosen else "numpy"
