"""Archives of text and HTML files, and archives of such archives, read once from front to back.

OpenWebText comes as `openwebtext.tar.xz`, a tar of files like `urlsf_subset00-1_data.xz`, each a tar of text files
(on the Hub as `subsets/urlsf_subset00.tar`, tars of the same files). No file is ever written under a member's name;
links and devices are counted, not followed; a decompression bomb ends the archive that contains it. Damage ends only
the innermost archive; the one around it is read on.
"""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tarfile import EmptyHeaderError, EOFHeaderError, HeaderError, ReadError  # pyright: ignore[reportAttributeAccessIssue]
from typing import IO, Any, cast

from dataprep.readers.records import Broken, Record
from dataprep.readers.text import document_of, is_plain_file
from pipelines import store
from pipelines.compression import DAMAGE, DecompressionBombError, open_bounded, raise_unless_damage
from pipelines.errors import UserError

TAR_SUFFIXES = (".tar", ".tgz", ".txz", *(f".tar{suffix}" for suffix in store.COMPRESSED))
MAX_DEPTH = 3
"""Archives within archives; OpenWebText has two."""
MAX_GROWTH = 200
"""Most bytes that a compressed byte may become: text grows 3 to 10 times, logs 100 times, bombs 1000 times."""
GROWTH_FREE_BYTES = 64 << 20
"""Decompressed bytes before the growth is checked."""
_MAX_EXTENSION_BYTES = 1 << 20
"""Largest extended header (long names, pax), which is held in memory."""
_EXTENSIONS = (b"x", b"g", b"X", b"L", b"K")
_BLOCK = 512
_BUFFER = 1 << 18
_SHORT = {".tgz": ".gz", ".txz": ".xz"}


TAR_DAMAGE = (*DAMAGE, tarfile.TarError, DecompressionBombError, OverflowError, RecursionError)
"""What a broken or hostile archive raises: for its bytes, its headers, absurd numbers or endless chains."""


def is_tar(file: Path) -> bool:
    """Return whether a file is a tar archive, by its name, or by its start if the name only shows a compression."""
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
    """Yield every document in an archive, in the order of its members, each of at most `max_bytes`.

    Raises UserError if the file is not an archive at all.
    """
    first = True
    with file.open("rb") as opened:
        for record in _read_archive(unpacked(opened, file.name), file.name, "", max_bytes, 1):
            if first and isinstance(record, Broken) and record.url == file.name:
                raise UserError(f"{file}: not a readable tar archive ({record.value}); fetch or make it again")
            first = False
            yield record


def each_member(archive: io.BufferedReader) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    """Yield every member but folders with its bytes, which must be read before the next member is requested.

    Links, devices and sparse files (whose 512 bytes may stand for terabytes) have no bytes. Raises one of TAR_DAMAGE
    where the archive is broken or truncated.
    """
    stream: Any = _AvailableBytes(archive)
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER, tarinfo=_Header, errors="backslashreplace") as tar:
        while (member := tar.next()) is not None:
            cast(Any, tar).members.clear()  # or the headers of millions of files would stay in memory
            if not member.isdir():
                yield member, (tar.extractfile(member) if not why_no_file(member) else None) or io.BytesIO()


def why_no_file(member: tarfile.TarInfo) -> str:
    """Return what a member is that is not an ordinary file; empty for an ordinary file."""
    if member.issparse():
        return "a file with holes"
    if member.isreg():
        return ""
    return f"a link to {member.linkname}" if member.linkname else "a device"


def unpacked(stream: IO[bytes], name: str) -> io.BufferedReader:
    """Return a stream of a file's bytes, decompressed by its name; raises DecompressionBombError on too many."""
    suffix = PurePosixPath(name.lower()).suffix
    return open_bounded(stream, _SHORT.get(suffix, suffix), MAX_GROWTH, GROWTH_FREE_BYTES)


def _read_archive(archive: io.BufferedReader, name: str, prefix: str, max_bytes: int, depth: int) -> Iterator[Record]:
    """Yield the documents of an archive; `prefix` is put before the names of its members."""
    member_name = ""
    try:
        for member, body in each_member(archive):
            member_name = prefix + member.name.removeprefix("./")
            yield from _read_member(member, body, member_name, max_bytes, depth)
    except TAR_DAMAGE as error:
        raise_unless_damage(error)
        rule = "decompression_bomb" if isinstance(error, DecompressionBombError) else "damaged_archive"
        yield Broken(name, rule, f"{error}{f' (after {member_name})' if member_name else ''}")


def _read_member(member: tarfile.TarInfo, body: IO[bytes], name: str, max_bytes: int, depth: int) -> Iterator[Record]:
    base = PurePosixPath(name.lower())
    if why := why_no_file(member):
        yield Broken(name, "not_a_file", why)
    elif base.name.startswith("."):
        yield Broken(name, "hidden_file", base.name)
    elif base.suffix in (".tar", *store.COMPRESSED, *_SHORT):
        yield from _read_packed(body, name, max_bytes, depth)
    elif is_plain_file(name):
        yield document_of(name, body.read(max_bytes + 1), max_bytes)
    else:
        yield Broken(name, "unknown_type", base.suffix or "no suffix")


def _read_packed(body: IO[bytes], name: str, max_bytes: int, depth: int) -> Iterator[Record]:
    """Yield the documents of a member that is an archive or a compressed document."""
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
    """A member's header. `TarFile` silently takes a broken one for the end of the archive; this class raises."""

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


class _AvailableBytes:
    """A stream that returns the bytes at hand, so that damage further on does not cost the good bytes before it."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self.read = stream.read1
