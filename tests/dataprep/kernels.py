"""Which kernels this machine can run, and tests under one of them."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from dataprep.native import kernel as choice


def _native() -> list[Any]:
    try:
        return list(importlib.import_module("dataprep.native._kernel").names())
    except ImportError:
        return [pytest.param("native", marks=pytest.mark.skip(reason="the native kernel is not built here"))]


NATIVE = _native()
KERNELS = ["numpy", *NATIVE]


@contextlib.contextmanager
def using(name: str) -> Iterator[choice.Kernel | None]:
    """Everything in this process is computed by the kernel of this name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(choice.VARIABLE, name)
        choice.kernel.cache_clear()
        try:
            yield choice.kernel()
        finally:
            patch.undo()
            choice.kernel.cache_clear()
            choice.kernel()  # the compiled module remembers what was chosen last
