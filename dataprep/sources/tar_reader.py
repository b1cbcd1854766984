"""Archives of text and HTML files, and archives of such archives, read once from front to back.

OpenWebText comes as `openwebtext.tar.xz`, a tar of `urlsf_subset00-1_data.xz`, each a tar of text
files (and on the Hub as `subsets/urlsf_subset00.tar`, tars of the same). Nothing is ever written by a
member's name; links and devices are counted, not followed; compressed data that grow beyond measure
end the archive they are in. Damage ends one archive, and the one it lies in goes on.
"""

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tarfile import EmptyHeaderError, EOFHeaderError, HeaderError, ReadError  # pyright: ignore[reportAttributeAccessIssue]
from typing import IO, Any, cast

from dataprep.sources.records import Broken, Record
from dataprep.sources.text_reader import DAMAGE, document_of, is_plain_file, raise_unless_damage
from pipelines import store
from pipelines.errors import UserError

TAR_SUFFIXES = (".tar", ".tgz", ".txz", *(f".tar{suffix}" for suffix in store.COMPRESSED))
MAX_DEPTH = 3
"""Archives within archives; OpenWebText has two."""
MAX_GROWTH = 200
"""Most bytes that a compressed one may become: text grows 3 to 10 times, logs 100 times, bombs 1000 times."""
GROWTH_FREE_BYTES = 64 << 20
"""Growth is measured from here on."""
_MAX_EXTENSION_BYTES = 1 << 20
"""Largest extended header (long names, pax): it is held in memory."""
_EXTENSIONS = (b"x", b"g", b"X", b"L", b"K")
_BLOCK = 512
_BUFFER = 1 << 18
_COMPRESSED = (*store.COMPRESSED, ".tgz", ".txz")


class DecompressionBombError(Exception):
    """Compressed data became larger than any text would."""


TAR_DAMAGE = (*DAMAGE, tarfile.TarError, DecompressionBombError, OverflowError, RecursionError)
"""What a broken or hostile archive raises: in its bytes, in its headers, by numbers or chains without sense."""


def is_tar(file: Path) -> bool:
    """Whether a file is a tar archive: by its name, or, where that says only how it is compressed, by its start."""
    name = file.name.lower()
    if name.endswith(TAR_SUFFIXES):
        return True
    if not name.endswith(store.COMPRESSED) or PurePosixPath(file.stem).suffix:
        return False
    try:
        with file.open("rb") as opened:
            return _holds_tar(unpacked(opened, file.name))
    except TAR_DAMAGE as error:
        raise_unless_damage(error)
        return False


def read_tar(file: Path, max_bytes: int) -> Iterator[Record]:
    """Every document in an archive, in the order of its members, each at most `max_bytes` large.

    Raises UserError when the file is no archive at all.
    """
    first = True
    with file.open("rb") as opened:
        for record in _read_archive(unpacked(opened, file.name), file.name, "", max_bytes, 1):
            if first and isinstance(record, Broken) and record.url == file.name:
                raise UserError(f"{file}: not a readable tar archive ({record.value}); fetch or make it again")
            first = False
            yield record


def each_member(archive: io.BufferedReader) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """What lies in an archive, folders apart, with its bytes, which must be read before the next is asked for.

    Links, devices and files with holes (of which 512 bytes may stand for terabytes) have none. Raises one of
    TAR_DAMAGE where the archive is broken or cut off.
    """
    stream: Any = _Pieces(archive)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER, tarinfo=_Header, errors="backslashreplace") as tar:
        while (member := tar.next()) is not None:
            cast(Any, tar).members.clear()  # or the headers of millions of files would stay in memory
            if not member.isdir():
                yield member, (tar.extractfile(member) if not why_no_file(member) else None) or io.BytesIO()


def why_no_file(member: tarfile.TarInfo) -> str:
    """What a member is that has no bytes of its own; empty for an ordinary file."""
    if member.issparse():
        return "a file with holes"
    if member.isreg():
        return ""
    return f"a link to {member.linkname}" if member.linkname else "a device"


def unpacked(stream: IO[bytes], name: str) -> io.BufferedReader:
    """The decompressed bytes of a file of this name; raises DecompressionBombError when they are too many."""
    packed: Any = _Counted(stream)
    match PurePosixPath(name.lower()).suffix:
        case ".gz" | ".tgz":
            plain: Any = gzip.GzipFile(fileobj=packed)
        case ".xz" | ".txz":
            plain = lzma.LZMAFile(packed)  # noqa: SIM115 (whoever reads closes the file below)
        case ".bz2":
            plain = bz2.BZ2File(packed)
        case ".zst":
            plain = io.BufferedReader(store.ZstdFile(packed), _BUFFER)
        case _:
            return io.BufferedReader(packed, _BUFFER)
    return io.BufferedReader(_Unpacked(plain, packed), _BUFFER)


def _read_archive(archive: io.BufferedReader, name: str, prefix: str, max_bytes: int, depth: int) -> Iterator[Record]:
    """`prefix` stands before the names of the members."""
    place = ""
    try:
        for member, body in each_member(archive):
            place = prefix + member.name.removeprefix("./")
            yield from _read_member(member, body, place, max_bytes, depth)
    except TAR_DAMAGE as error:
        raise_unless_damage(error)
        rule = "decompression_bomb" if isinstance(error, DecompressionBombError) else "damaged_archive"
        yield Broken(name, rule, f"{error}{f' (after {place})' if place else ''}")


def _read_member(member: tarfile.TarInfo, body: IO[bytes], name: str, max_bytes: int, depth: int) -> Iterator[Record]:
    base = PurePosixPath(name.lower())
    if why := why_no_file(member):
        yield Broken(name, "not_a_file", why)
    elif base.name.startswith("."):
        yield Broken(name, "hidden_file", base.name)
    elif base.suffix in (".tar", *_COMPRESSED):
        yield from _read_packed(body, name, max_bytes, depth)
    elif is_plain_file(name):
        yield document_of(name, body.read(max_bytes + 1), max_bytes)
    else:
        yield Broken(name, "unknown_type", base.suffix or "no suffix")


def _read_packed(body: IO[bytes], name: str, max_bytes: int, depth: int) -> Iterator[Record]:
    """A member that is an archive, or one compressed document."""
    stream = unpacked(body, name)
    try:
        is_archive = name.lower().endswith(TAR_SUFFIXES) or _holds_tar(stream)
        if not is_archive and is_plain_file(name):
            yield document_of(name, stream.read(max_bytes + 1), max_bytes)
            return
    except TAR_DAMAGE as error:
        raise_unless_damage(error)
        yield Broken(name, "damaged_file" if is_plain_file(name) else "damaged_archive", str(error))
        return
    if not is_archive:
        yield Broken(name, "unknown_type", "neither an archive nor a text")
    elif depth == MAX_DEPTH:
        yield Broken(name, "nested_too_deep", f"an archive within {depth} archives")
    else:
        yield from _read_archive(stream, name, f"{name}/", max_bytes, depth + 1)


def _holds_tar(stream: io.BufferedReader) -> bool:
    try:
        tarfile.TarInfo.frombuf(stream.peek(_BLOCK)[:_BLOCK], "utf-8", "replace")
    except HeaderError:
        return False
    return True


class _Header(tarfile.TarInfo):
    """A member's header. `TarFile` takes a broken one for the end of the archive, in silence; this does not."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0 or (header.type in _EXTENSIONS and header.size > _MAX_EXTENSION_BYTES):
            raise ReadError(f"a header says {header.size} bytes")
        return header

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(tarfile)
        except EOFHeaderError:
            raise
        except EmptyHeaderError:
            raise ReadError("cut off: there is no end-of-archive mark") from None
        except HeaderError as error:
            raise ReadError(f"broken header: {error}") from None


class _Pieces:
    """Reads what is at hand, so that damage ahead does not take with it the good bytes before."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self.read = stream.read1


class _Counted(io.RawIOBase):
    """A stream that counts what is read from it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.bytes = 0
        self._stream = stream

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """The next bytes."""
        data = self._stream.read(len(buffer))
        buffer[: len(data)] = data
        self.bytes += len(data)
        return len(data)


class _Unpacked(io.RawIOBase):
    """What a decompressor makes of a counted stream, as long as it stays within measure."""

    def __init__(self, plain: Any, packed: _Counted) -> None:
        self._plain = plain
        self._packed = packed
        self._bytes = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """The next bytes; raises DecompressionBombError when they are too many."""
        data = self._plain.read1(len(buffer))
        buffer[: len(data)] = data
        self._bytes += len(data)
        if self._bytes > max(GROWTH_FREE_BYTES, MAX_GROWTH * self._packed.bytes):
            raise DecompressionBombError(f"{self._packed.bytes} bytes became {self._bytes} and more")
        return len(data)
