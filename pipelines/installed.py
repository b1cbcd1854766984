"""Where the code is installed, and the project's files that belong to it: the graph, `configs/`, the settings of DVC.

In a checkout they stand beside the packages; setup.py puts a copy into each wheel.
"""

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

CODE = Path(__file__).resolve().parents[1]
"""The folder that holds the packages: a checkout, or site-packages."""
_PACKED = CODE / "pipelines" / "project" / "files"
IS_WHEEL = _PACKED.is_dir()
PROJECT_FILES = _PACKED if IS_WHEEL else CODE
READ = {
    "dataprep": ("dataprep/lists/*.txt",),
    "trainer": ("trainer/*.j2", "trainer/reporting/*.js", "trainer/reporting/uplot/*"),
}
"""Package -> what its stages read beside their code."""


def has_code(folder: Path) -> bool:
    """Whether a folder is a checkout: `python -m` runs the code that it holds."""
    return (folder / "pipelines" / "installed.py").is_file()


def code_files(package: str = "dataprep") -> list[Path]:
    """Return what the stages of a package run and read: modules, lists of words and names, templates."""
    found = [file for folder in ("pipelines", package) for file in (CODE / folder).rglob("*.py")]
    read = [file for pattern in READ[package] for file in CODE.glob(pattern)]
    return sorted(file for file in [*found, *read] if not file.is_relative_to(_PACKED))


@functools.cache
def code_digest(package: str = "dataprep") -> str:
    """Return a digest of the code of a package's stages, the same for a checkout and an installed wheel."""
    return _digest(code_files(package))


@functools.cache
def kernels_digest(package: str = "dataprep") -> str:
    """Return a digest of the compiled kernels of a package's stages; another compiler makes other ones."""
    return _digest(sorted(file for folder in ("pipelines", package) for file in (CODE / folder).rglob("*.so")))


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(CODE).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
