"""Where the code is installed, and the project's files that belong to it: the graph, `configs/`, the settings of DVC.

In a checkout they stand beside the packages; setup.py puts a copy into each wheel.
"""

from pathlib import Path

CODE = Path(__file__).resolve().parents[1]
"""The folder that holds the packages: a checkout, or site-packages."""
_PACKED = CODE / "pipelines" / "project" / "files"
IS_WHEEL = _PACKED.is_dir()
PROJECT_FILES = _PACKED if IS_WHEEL else CODE


def has_code(folder: Path) -> bool:
    """Whether a folder is a checkout: `python -m` runs the code that it holds."""
    return (folder / "pipelines" / "installed.py").is_file()
