"""A prepared corpus, brought into the download folder under names that `extract` knows.

Files of records (JSONL, Parquet, WARC, tar...) are linked as documents-NNNNN-NAME.*; a very large tar is split
into tars of its members, so that several workers can read it; a Megatron pair gets its tokenizer beside it; texts
and pages with a file each are packed into tars, under their paths in the corpus. The bytes of a tar that is written
here follow from the names and contents of its members alone.
"""

import logging
import shutil
import tarfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from dataprep.readers.kinds import Input, find_inputs, is_arc, kind_of, name_of
from dataprep.readers.megatron import IDX, TOKENIZER, check_pair, find_tokenizer, is_tokenizer_file, load_byte_level
from dataprep.readers.records import CUT, PACKED, passthrough_name
from dataprep.readers.tar import TAR_DAMAGE, each_member, unpacked, why_no_file
from dataprep.readers.text import is_plain_file, plain_suffix
from pipelines import store
from pipelines.command import Output, Part, Source
from pipelines.compression import raise_unless_damage
from pipelines.config import given
from pipelines.documents import (
    REJECTED,
    REJECTED_SCHEMA,
    UNREADABLE_FILE,
    TableWriter,
    open_parquet,
    reason_of,
    rejected_rows,
)
from pipelines.errors import UserError, describe
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.terminal import counted

logger = logging.getLogger(__name__)

LARGE_BYTES = 1 << 30
"""A tar larger than this is split: openwebtext.tar.xz (12 GB) is, a subset from the Hub (0.6 GB) is not."""
TAR_BYTES = 256 << 20
"""Most bytes of members in each tar that a large one is split into, unless a single member is larger."""
_COMPRESSIONS = {".tgz": ".gz", ".txz": ".xz"} | {suffix: suffix for suffix in store.COMPRESSED}


def link_documents(run: StageRun, documents: Source | None, output: Output, kind: str = "auto") -> int:
    """Bring the files of one kind, or of any, from a prepared corpus into the output; return the number of parts.

    It is 0 without a corpus. Raises UserError if nothing in the corpus can be read.
    """
    path = given(documents.path) if documents else None
    if path is None:
        return 0
    listing = find_inputs(path, kind)
    if listing.unread:
        logger.warning("%s: %d files are not passed on: %s", run.name, len(listing.unread), describe(listing.unread))
    root = path if path.is_dir() else path.parent
    parts = [(each.kind, Part(_part_name(i, each, root), _files(each))) for i, each in enumerate(listing.inputs)]
    alone = len(parts) == 1
    for each in sorted({kind for kind, _ in parts}):
        run.map(pass_part, [part for kind, part in parts if kind == each], each, str(root), alone, into=output)
    if output.counts.rejected.get(UNREADABLE_FILE):
        unreadable = rejected_rows(output.folder, UNREADABLE_FILE)
        if len(unreadable) == len(parts):
            raise UserError(f"{path}: none of its files can be read: {describe(unreadable)}")
        logger.warning(
            "%s: %s could not be read: %s", run.name, counted(len(unreadable), "files"), describe(unreadable)
        )
    return len(parts)


def _part_name(number: int, inputs: Input, root: Path) -> str:
    """Return the user's name for an input, without the ending that `_link` adds."""
    file = inputs.files[0]
    if inputs.kind in ("html", "text"):
        return passthrough_name(number, file.name if len(inputs.files) == 1 else root.name)
    return passthrough_name(number, file.name, _ending(file, inputs.kind))


def _ending(file: Path, kind: str) -> str:
    """Return the ending of a linked file's name: its present one, if that tells its kind."""
    name = file.name.lower()
    last = PurePosixPath(name).suffix
    packed = last if last in _COMPRESSIONS else ""
    if kind_of(file)[0] == kind:
        return plain_suffix(name) + (packed if packed in store.COMPRESSED else "")
    return f".{kind}{_COMPRESSIONS.get(packed, '')}"


def _files(inputs: Input) -> tuple[Path, ...]:
    """Return the files that a part depends on; for a Megatron pair: the .bin, the .idx, then the tokenizer's."""
    if inputs.kind != "megatron":
        return inputs.files
    file = inputs.files[0]
    tokenizer = find_tokenizer(file)
    beside = sorted(tokenizer.iterdir()) if tokenizer.is_dir() else [tokenizer]
    return (
        file,
        file.with_suffix(IDX),
        *(each for each in beside if each.is_file() and (is_tokenizer_file(each.name) or each == tokenizer)),
    )


def pass_part(part: Part, folder: Path, kind: str, root: str, alone: bool) -> Counts:
    """Link one part of a corpus, under the names that `extract` looks for.

    A part that cannot be read is rejected; it raises UserError if it is `alone`, the only part.
    """
    try:
        return _link(part, folder, kind, root)
    except UserError as error:
        if alone:
            raise
        name = name_of(part.files[0], Path(root))
        row = (name, UNREADABLE_FILE, reason_of(error, part.files[0]))
        return write_rejected([row], folder / REJECTED / f"{part.name}.parquet", Counts())


def _link(part: Part, folder: Path, kind: str, root: str) -> Counts:
    match kind:
        case "html" | "text":
            return _pack(part.files, Path(root), kind, folder / f"{part.name}{PACKED}.tar")
        case "megatron":
            return _link_pair(part, folder)
        case _:
            return _link_file(part, folder, kind)


def _link_file(part: Part, folder: Path, kind: str) -> Counts:
    """Link a file of records, or split it, under the user's name for it."""
    file, name = part.file, f"{part.name}{_ending(part.file, kind)}"
    if kind == "tar" and file.stat().st_size > LARGE_BYTES:
        return split_tar(file, _compression(file.name), f"{name}{CUT}", folder)
    if kind == "parquet":
        with open_parquet(file):  # an unreadable one fails here, under the user's name, and costs only itself
            pass
    store.link_or_copy(file.resolve(), folder / name)
    return Counts(totals={"document_files": 1})


def _compression(name: str) -> str:
    return _COMPRESSIONS.get(PurePosixPath(name.lower()).suffix, "")


def link_records(file: Path, name: str, kind: str, target: Path) -> Counts:
    """Link a file of records named `name` as `target`.*, or split it if it is a very large tar."""
    compression = _compression(name)
    if kind == "tar" and file.stat().st_size > LARGE_BYTES:
        return split_tar(file, compression, target.name, target.parent)
    suffix = ".txt" if kind == "text" else ".arc" if is_arc(Path(name)) else f".{kind}"
    store.link_or_copy(file.resolve(), target.with_name(f"{target.name}{suffix}{compression}"))
    return Counts(totals={"document_files": 1})


def _link_pair(part: Part, folder: Path) -> Counts:
    bin_file, index, *tokenizer = part.files
    check_pair(bin_file)
    decoder = load_byte_level(find_tokenizer(bin_file)) if tokenizer else None
    for file in (bin_file, index):
        store.link_or_copy(file.resolve(), folder / f"{part.name}{file.suffix}")
    if decoder:
        with store.create(folder / f"{part.name}{TOKENIZER}") as opened:
            opened.write(decoder.to_str(pretty=True).encode())
    return Counts(totals={"document_files": 1})


def _pack(files: Sequence[Path], root: Path, kind: str, target: Path) -> Counts:
    with create_tar(target) as tar:
        for file in files:
            name = _plain_name(name_of(file, root), kind)
            with file.open("rb") as body:
                tar.add(name, file.stat().st_size, body)
    return Counts(totals={"document_files": len(files)})


def _plain_name(name: str, kind: str) -> str:
    """Return a name that tells the kind of a file, for one that is read only because the user said its kind."""
    if is_plain_file(name):
        return name
    suffix = PurePosixPath(name).suffix
    return name + {"html": ".html", "text": ".txt"}[kind] + (suffix if suffix.lower() in store.COMPRESSED else "")


class TarWriter:
    """Appends members to a tar in an open file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def add(self, name: str, size: int, body: IO[bytes]) -> None:
        """Append a member; raises EOFError, and appends nothing, if `body` does not have `size` bytes."""
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
    """Open a new tar for writing, and finish it when the block ends."""
    with path.open("wb") as file:
        writer = TarWriter(file)
        yield writer
        writer.finish()


def split_tar(file: Path, compression: str, stem: str, folder: Path, tar_bytes: int = TAR_BYTES) -> Counts:
    """Write the members of a tar as `stem`-00000.tar and so on; reject members that are not files, and damage.

    Raises UserError if the file is not a tar.
    """
    members = 0
    rejected: list[tuple[str, str, str]] = []
    with _TarSeries(folder, stem, tar_bytes) as tars, file.open("rb") as opened:
        try:
            for member, body in each_member(unpacked(opened, f"{stem}{compression}")):
                if why := why_no_file(member):
                    rejected.append((member.name, "not_a_file", why))
                else:
                    tars.add(member.name, member.size, body)
                    members += 1
        except TAR_DAMAGE as error:
            raise_unless_damage(error)
            if not members:
                raise UserError(f"{file}: not a readable tar archive ({error}); fetch or make it again") from None
            rejected.append((file.name, "damaged_archive", f"{error} (after {members} files)"))
    return write_rejected(rejected, folder / REJECTED / f"{stem}.parquet", Counts(totals={"document_files": members}))


def write_rejected(rejected: list[tuple[str, str, str]], path: Path, counts: Counts) -> Counts:
    """Write the rejected rows (name, rule, value), and return `counts` with these rows added."""
    if rejected:
        with TableWriter(path, REJECTED_SCHEMA) as table:
            for name, rule, value in rejected:
                table.write({"doc_id": None, "url": name, "rule": rule, "value": value})
                counts.rows_in += 1
                counts.reject(rule)
    return counts


class _TarSeries:
    """Tars of a limited size, one after another."""

    def __init__(self, folder: Path, stem: str, limit: int) -> None:
        self._folder = folder
        self._stem = stem
        self._limit = limit
        self._number = 0
        self._bytes = 0
        self._open = ExitStack()
        self._tar: TarWriter | None = None

    def add(self, name: str, size: int, body: IO[bytes]) -> None:
        """Append a member to the current tar, or to a new one if that is full."""
        if self._tar is None or (self._bytes and self._bytes + size > self._limit):
            self._open.close()
            self._tar = self._open.enter_context(create_tar(self._folder / f"{self._stem}-{self._number:05d}.tar"))
            self._number += 1
            self._bytes = 0
        self._tar.add(name, size, body)
        self._bytes += size

    def __enter__(self) -> "_TarSeries":
        return self

    def __exit__(self, *_error: object) -> None:
        self._open.close()
