"""Whether the page of `millrace report` still shows what is there, so that it need not be written again.

A page takes seconds to draw, mostly in matplotlib. Its last line has a digest of the names, sizes and times of all
files that it can be made of, this version's code among them.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def digest(paths: Iterable[str | Path]) -> str:
    """Return 16 hex digits of the names, sizes and times of change of files, and of all files below folders.

    Of a path that is not there, only its name counts.
    """
    hashed = hashlib.sha256()
    for path in paths:
        hashed.update(f"{path}\n".encode("utf-8", "surrogateescape"))
        for file in _files(os.fspath(path)):
            try:
                status = os.lstat(file)  # a corpus has many files, and a Path for each would take longer
            except FileNotFoundError:  # a training deletes old checkpoints meanwhile
                continue
            hashed.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return hashed.hexdigest()[:16]


def ending(made_of: str) -> bytes:
    """Return the last line of a page with this digest; none for an empty one."""
    return f"<!-- made of {made_of} -->\n".encode() if made_of else b""


def shows(page: Path, made_of: str) -> bool:
    """Whether the page is there and was made of this."""
    try:
        with page.open("rb") as file:
            file.seek(-len(ending(made_of)), os.SEEK_END)
            return file.read() == ending(made_of)
    except OSError:  # it is not there, or is shorter
        return False


def _files(path: str) -> Iterator[str]:
    if os.path.isfile(path):  # noqa: PTH113 - os throughout, as above
        yield path
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        yield from (os.path.join(folder, name) for name in sorted(files))  # noqa: PTH118
