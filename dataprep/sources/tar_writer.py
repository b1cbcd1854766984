"""Tars whose bytes follow from the names and contents of their members alone, and a large tar cut into such."""

import shutil
import tarfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from dataprep.sources.tar_reader import TAR_DAMAGE, each_member, unpacked, why_no_file
from dataprep.sources.text_reader import raise_unless_damage
from pipelines.documents import REJECTED, REJECTED_SCHEMA, TableWriter
from pipelines.errors import UserError
from pipelines.manifest import Counts

TAR_BYTES = 256 << 20
"""Most bytes of members in a tar that a large one is cut into, unless one alone is larger."""


class TarWriter:
    """Appends members to an open file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, name: str, size: int, body: IO[bytes]) -> None:
        """Append a member. Raises EOFError when `body` has not `size` bytes; then nothing is appended."""
        start = self._file.tell()
        header = tarfile.TarInfo(name)
        header.size = size
        try:
            self._file.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
            first = self._file.tell()
            shutil.copyfileobj(body, self._file, 1 << 20)
            if (written := self._file.tell() - first) != size:
                raise EOFError(f"{name}: {written} of {size} bytes")
        except BaseException:
            self._file.seek(start)
            self._file.truncate()
            raise
        self._file.write(bytes(-size % tarfile.BLOCKSIZE))

    def finish(self) -> None:
        """Write the end-of-archive mark."""
        self._file.write(bytes(2 * tarfile.BLOCKSIZE))


@contextmanager
def create_tar(path: Path) -> Generator[TarWriter]:
    """A new tar."""
    with path.open("wb") as file:
        writer = TarWriter(file)
        yield writer
        writer.finish()


def cut_tar(file: Path, compression: str, stem: str, folder: Path, tar_bytes: int = TAR_BYTES) -> Counts:
    """The members of a tar as `stem`-00000.tar and so on; what is no file, and damage, is counted and rejected.

    Raises UserError when the file is no tar at all.
    """
    members = 0
    rejected: list[tuple[str, str, str]] = []
    with _Shards(folder, stem, tar_bytes) as shards, file.open("rb") as opened:
        try:
            for member, body in each_member(unpacked(opened, f"{stem}{compression}")):
                if why := why_no_file(member):
                    rejected.append((member.name, "not_a_file", why))
                else:
                    shards.add(member.name, member.size, body)
                    members += 1
        except TAR_DAMAGE as error:
            raise_unless_damage(error)
            if not members:
                raise UserError(f"{file}: not a readable tar archive ({error}); fetch or make it again") from None
            rejected.append((file.name, "damaged_archive", f"{error} (after {members} files)"))
    return write_rejected(rejected, folder / REJECTED / f"{stem}.parquet", Counts(totals={"document_files": members}))


def write_rejected(rejected: list[tuple[str, str, str]], path: Path, counts: Counts) -> Counts:
    """Count and write down what is not passed on: name, rule, value; `counts`, with these in it."""
    if rejected:
        with TableWriter(path, REJECTED_SCHEMA) as table:
            for name, rule, value in rejected:
                table.write({"doc_id": None, "url": name, "rule": rule, "value": value})
                counts.rows_in += 1
                counts.reject(rule)
    return counts


class _Shards:
    """Tars of a limited size, one after the other."""

    def __init__(self, folder: Path, stem: str, limit: int) -> None:
        self._folder = folder
        self._stem = stem
        self._limit = limit
        self._number = 0
        self._bytes = 0
        self._open = ExitStack()
        self._tar: TarWriter | None = None

    def add(self, name: str, size: int, body: IO[bytes]) -> None:
        """Append a member to the tar at hand, or to a new one when that is full."""
        if self._tar is None or (self._bytes and self._bytes + size > self._limit):
            self._open.close()
            self._tar = self._open.enter_context(create_tar(self._folder / f"{self._stem}-{self._number:05d}.tar"))
            self._number += 1
            self._bytes = 0
        self._tar.add(name, size, body)
        self._bytes += size

    def __enter__(self) -> "_Shards":
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()
