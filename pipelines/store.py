"""Where bytes live: every read, write, hash and publish of a stage goes through here.

Local folders today; the calls are the ones an object store could serve too. The rules: a file
appears under its name only when it is whole and on disk (temporary name, fsync, rename, fsync of
the folder), and an output folder is swapped in whole.
"""

import bz2
import contextlib
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import sys
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import xxhash

from pipelines.errors import UserError

COMPRESSED = (".gz", ".zst", ".xz", ".bz2")
_CHUNK = 1 << 20
_ZSTD_WINDOW = 1 << 31
"""Bytes; what `zstd --long=31` makes, the format's usual maximum. Reading such a file takes as much memory."""
_ZSTD_FEED = 8192
"""Compressed bytes at a time: even a run of zeros (32,768 to 1) stays below 256 MiB."""
_GZIP_LEVEL = 6
"""Of libdeflate: 0.40 of the text, as zlib's level 9 has it, in a quarter of its time."""


def open_read(path: Path) -> BinaryIO:
    """Open `path` for reading bytes, decompressed by its last suffix (.gz, .zst, .xz, .bz2, in any case)."""
    try:
        suffix = path.suffix.lower()
        if suffix == ".gz":
            return cast(BinaryIO, gzip.open(path, "rb"))
        if suffix == ".xz":
            return cast(BinaryIO, lzma.open(path, "rb"))
        if suffix == ".bz2":
            return cast(BinaryIO, bz2.open(path, "rb"))
        if suffix == ".zst":
            return cast(BinaryIO, io.BufferedReader(ZstdFile(path.open("rb")), _CHUNK))
        return path.open("rb")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None


class ZstdFile(io.RawIOBase):
    """The plain bytes of an open zstd file of one frame or many, also of long windows; OSError when it is damaged.

    Arrow's stream refuses windows above 128 MiB, and python-zstandard's takes a frame that ends early for the end.
    """

    def __init__(self, file: IO[bytes]) -> None:
        import zstandard

        self._file = file
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        self._error = zstandard.ZstdError
        self._frame: Any = None
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        """Yes, and nothing else."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as the next plain bytes go; 0 at the end of the last frame."""
        while not self._plain:
            left: bytes = self._frame.unused_data if self._frame and self._frame.eof else b""
            packed = left or self._file.read(_ZSTD_FEED)
            if not packed:
                if self._frame and not self._frame.eof:
                    raise OSError("the last frame ends early")
                return 0
            if self._frame is None or self._frame.eof:
                self._frame = self._decompressor.decompressobj()
            try:
                self._plain = memoryview(self._frame.decompress(packed))
            except self._error as error:
                raise OSError(str(error)) from None
        size = min(len(buffer), len(self._plain))
        buffer[:size] = self._plain[:size]
        self._plain = self._plain[size:]
        return size

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


@contextlib.contextmanager
def reading(path: Path) -> Generator[BinaryIO, None, None]:
    """`open_read` for a `with`: UserError when the compressed data turns out to be cut off or damaged."""
    try:
        with open_read(path) as file:
            yield file
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, gzip.BadGzipFile):
            raise
        raise UserError(
            f"{path}: the compressed data is cut off, damaged or of another kind ({error}); fetch or compress the "
            "file again"
        ) from None


def is_compressed(path: Path) -> bool:
    """Whether `open_read` decompresses it, by its last suffix."""
    return path.suffix.lower() in COMPRESSED


def read_lines(path: Path, most_bytes: int = sys.maxsize - 1) -> Iterator[bytes]:
    """The lines of a text file, plain or compressed, without line ends.

    Of a line of more than `most_bytes` the first `most_bytes` + 1 are given; the rest is read past, never held.
    Raises UserError when the compressed data is cut off or damaged.
    """
    return (line for _, line in placed_lines(path, most_bytes))


def placed_lines(
    path: Path, most_bytes: int = sys.maxsize - 1, start: int = 0, stop: int | None = None
) -> Iterator[tuple[int, bytes]]:
    """`read_lines` with the place of each line's first byte in the text; of a plain file those in `start` to `stop`."""
    with reading(path) as file:
        lines = io.BufferedReader(cast(io.RawIOBase, file), _CHUNK)
        try:
            place = _first_line_from(lines, start, stop) if start else 0
            while (stop is None or place < stop) and (line := lines.readline(most_bytes + 1)):
                yield place, line.rstrip(b"\r\n")
                place += len(line)
                while len(line) > most_bytes and not line.endswith(b"\n"):
                    line = lines.readline(most_bytes + 1)
                    place += len(line)
        finally:
            lines.detach()


def _first_line_from(lines: IO[bytes], start: int, stop: int | None) -> int:
    """Go to the first line that begins at `start` or later, and say where that is; not much further than `stop`."""
    place = lines.seek(start - 1)
    while (stop is None or place < stop) and (piece := lines.readline(_CHUNK)):
        place += len(piece)
        if piece.endswith(b"\n"):
            break
    return place


@contextlib.contextmanager
def create(path: Path, *, durable: bool = True) -> Generator[BinaryIO, None, None]:
    """Write a file that appears under `path` only when complete and, if it is to be `durable`, on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        rename(temporary, path, durable=durable)
    finally:
        temporary.unlink(missing_ok=True)


def pack(data: bytes, suffix: str) -> bytes:
    """`data` compressed as a suffix says, the same bytes each time (no time stamps); plain for any other suffix.

    The result is whole in itself, and the concatenation of any number of them is a file of that kind: gzip members,
    zstd frames, xz and bzip2 streams.
    """
    if suffix == ".gz":
        import deflate

        return bytes(deflate.gzip_compress(data, _GZIP_LEVEL))
    if suffix == ".zst":
        import zstandard

        return zstandard.ZstdCompressor(level=3).compress(data)
    if suffix == ".xz":
        return lzma.compress(data)
    return bz2.compress(data) if suffix == ".bz2" else data


def concatenate(chunks: Iterable[Path], path: Path) -> tuple[int, str]:
    """Write the bytes of all chunks as one file, and remove each as soon as it is in. Returns bytes and SHA-256."""
    size, digest = 0, hashlib.sha256()
    with create(path) as file:

        def append(data: bytes) -> int:
            digest.update(data)
            return file.write(data)

        for chunk in chunks:
            with chunk.open("rb") as opened:
                while data := opened.read(_CHUNK):
                    size += append(data)
            chunk.unlink()
        if not size:  # a compressed file of nothing is one member of nothing
            size = append(pack(b"", path.suffix))
    return size, digest.hexdigest()


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write `value` as indented JSON with sorted keys: equal values give equal bytes."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    with create(path, durable=durable) as file:
        # A file name that is no UTF-8 has halves of surrogate pairs; JSON readers take them back the same way.
        file.write(text.encode("utf-8", "surrogatepass") + b"\n")


def read_json(path: Path) -> Any:
    """Parse a JSON file of ours; UserError when it is missing or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None


def sha256(path: Path) -> str:
    """Hex digest of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def xxh3(path: Path) -> str:
    """Hex digest of the file's bytes, ten times faster, where a file is compared with what it was before only."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while data := file.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


def list_files(folder: Path) -> list[Path]:
    """All regular files below `folder`, in sorted order of their relative paths."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def rename(source: Path, target: Path, *, durable: bool = True) -> None:
    """Rename within a filesystem, and if it is to be `durable` do not return before the folder entries are on disk."""
    os.replace(source, target)
    if durable:
        sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Bring a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Bring a file's bytes to disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file's bytes; a copy where the filesystem has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_file(target)


def remove(path: Path) -> None:
    """Delete a file or a folder tree, if there is one."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def publish(staged: Path, output: Path, previous: Path) -> None:
    """Swap `staged` in as `output`; an old output rests in `previous` until the swap is done.

    A crash between the two renames leaves the old output in `previous`: see `restore`.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.exists():
        remove(previous)
        rename(output, previous)
    rename(staged, output)
    remove(previous)


def restore(output: Path, previous: Path) -> None:
    """Undo a swap that a crash cut in half: the old output goes back to its place."""
    if not previous.exists():
        return
    if output.exists():
        remove(previous)
    else:
        rename(previous, output)
