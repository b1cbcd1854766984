"""Finds the modules in C: one that was built from other sources, as after `git pull`, is not used until built again."""

import importlib
from typing import Any


def load(name: str, interface: int) -> Any:
    """Import a compiled module. Raise ImportError if it was not built, or its functions are those of other sources."""
    module = importlib.import_module(name)
    if getattr(module, "interface", 1) != interface:
        raise ImportError(f"{name} was built from other sources")
    return module
