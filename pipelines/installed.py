"""Where the code is installed, and the project's files that belong to it: the graph, `configs/`, the settings of DVC.

In a checkout they stand beside the packages; setup.py puts a copy into each wheel.
"""

import functools
import hashlib
from pathlib import Path

CODE = Path(__file__).resolve().parents[1]
"""The folder that holds the packages: a checkout, or site-packages."""
_PACKED = CODE / "pipelines" / "project" / "files"
IS_WHEEL = _PACKED.is_dir()
PROJECT_FILES = _PACKED if IS_WHEEL else CODE


def has_code(folder: Path) -> bool:
    """Whether a folder is a checkout: `python -m` runs the code that it holds."""
    return (folder / "pipelines" / "installed.py").is_file()


@functools.cache
def code_digest() -> str:
    """Return a digest of the code of the data stages, the same for a checkout and an installed wheel."""
    digest = hashlib.sha256()
    for file in sorted(file for package in ("pipelines", "dataprep") for file in (CODE / package).rglob("*.py")):
        if not file.is_relative_to(_PACKED):
            digest.update(file.relative_to(CODE).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
