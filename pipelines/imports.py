"""Keep pyarrow from importing pandas in commands and their workers, which have no use for it.

To recognize pandas objects, pyarrow imports pandas, if it is installed, with the first array that it makes of Python
values or turns into NumPy's: 0.4 s of each process.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _NoPandas(PathFinder):
    """Python's own finder of modules, which does not find pandas."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname == "pandas" else super().find_spec(fullname, path, target)


def hide_pandas() -> None:
    """Make pandas look as if it were not installed, from now on."""
    sys.meta_path[:] = [_NoPandas if finder is PathFinder else finder for finder in sys.meta_path]


def show_pandas() -> None:
    """Allow imports of pandas again, for a library that cannot do without; pyarrow itself goes on without it."""
    sys.meta_path[:] = [PathFinder if finder is _NoPandas else finder for finder in sys.meta_path]
