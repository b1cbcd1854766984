"""A corpus that is ready, brought into the download folder under names that `extract` knows.

Files of records (JSONL, Parquet, WARC, tar...) are linked as documents-NNNNN-NAME.*; a very large tar is cut
into tars of its members, so that several workers can read it; a Megatron pair gets its tokenizer
beside it; texts and pages of a file each are packed into tars, under their paths in the corpus.
"""

import logging
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from dataprep.sources.finding import Input, find_inputs, is_arc, kind_of, name_of
from dataprep.sources.megatron_reader import (
    IDX,
    TOKENIZER,
    check_pair,
    find_tokenizer,
    is_tokenizer_file,
    load_byte_level,
)
from dataprep.sources.passed_names import CUT, PACKED, passed_name
from dataprep.sources.tar_writer import create_tar, cut_tar, write_rejected
from dataprep.sources.text_reader import is_plain_file, plain_suffix
from pipelines import store
from pipelines.command import Output, Part, Source
from pipelines.config import given
from pipelines.documents import REJECTED, UNREADABLE_FILE, open_parquet, reason_of, rejected_rows
from pipelines.errors import UserError, describe
from pipelines.manifest import Counts
from pipelines.run import StageRun

logger = logging.getLogger(__name__)

LARGE_BYTES = 1 << 30
"""A tar larger than this is cut: openwebtext.tar.xz (12 GB) is, a subset of the Hub's (0.6 GB) is not."""
_COMPRESSIONS = {".tgz": ".gz", ".txz": ".xz"} | {suffix: suffix for suffix in store.COMPRESSED}


def pass_documents(run: StageRun, documents: Source | None, output: Output, kind: str = "auto") -> int:
    """Bring a ready corpus into the output, what is of one kind or of any; the number of parts, 0 without one.

    Raises UserError when nothing in it can be read.
    """
    path = given(documents.path) if documents else None
    if path is None:
        return 0
    found = find_inputs(path, kind)
    if found.unread:
        logger.warning("%s: %d files are not passed on: %s", run.name, len(found.unread), describe(found.unread))
    root = path if path.is_dir() else path.parent
    parts = [(each.kind, Part(_part_name(i, each, root), _files(each))) for i, each in enumerate(found.inputs)]
    alone = len(parts) == 1
    for each in sorted({kind for kind, _ in parts}):
        run.map(pass_part, [part for kind, part in parts if kind == each], each, str(root), alone, into=output)
    if output.counts.rejected.get(UNREADABLE_FILE):
        unreadable = rejected_rows(output.folder, UNREADABLE_FILE)
        if len(unreadable) == len(parts):
            raise UserError(f"{path}: none of its files can be read: {describe(unreadable)}")
        logger.warning("%s: %d file(s) could not be read: %s", run.name, len(unreadable), describe(unreadable))
    return len(parts)


def _part_name(number: int, inputs: Input, root: Path) -> str:
    """The user's name for it, without the ending that `_pass` gives it."""
    file = inputs.files[0]
    if inputs.kind in ("html", "text"):
        return passed_name(number, file.name if len(inputs.files) == 1 else root.name)
    return passed_name(number, file.name, _ending(file, inputs.kind))


def _ending(file: Path, kind: str) -> str:
    """What the name of a linked file ends with: as it does already, if that tells its kind."""
    name = file.name.lower()
    last = PurePosixPath(name).suffix
    packed = last if last in _COMPRESSIONS else ""
    if kind_of(file)[0] == kind:
        return plain_suffix(name) + (packed if packed in store.COMPRESSED else "")
    return f".{kind}{_COMPRESSIONS.get(packed, '')}"


def _files(inputs: Input) -> tuple[Path, ...]:
    """What a part depends on; a Megatron pair's files are the .bin, the .idx, then its tokenizer's."""
    if inputs.kind != "megatron":
        return inputs.files
    file = inputs.files[0]
    tokenizer = find_tokenizer(file)
    beside = sorted(tokenizer.iterdir()) if tokenizer.is_dir() else [tokenizer]
    return (
        file,
        file.with_suffix(IDX),
        *(each for each in beside if is_tokenizer_file(each.name) or each == tokenizer),
    )


def pass_part(part: Part, folder: Path, kind: str, root: str, alone: bool) -> Counts:
    """One part of a corpus, of a kind, under the names that `extract` looks for; one of several may be unreadable."""
    try:
        return _pass(part, folder, kind, root)
    except UserError as error:
        if alone:
            raise
        name = name_of(part.files[0], Path(root))
        row = (name, UNREADABLE_FILE, reason_of(error, part.files[0]))
        return write_rejected([row], folder / REJECTED / f"{part.name}.parquet", Counts())


def _pass(part: Part, folder: Path, kind: str, root: str) -> Counts:
    match kind:
        case "html" | "text":
            return _pack(part.files, Path(root), kind, folder / f"{part.name}{PACKED}.tar")
        case "megatron":
            return _pass_pair(part, folder)
        case _:
            return _pass_file(part, folder, kind)


def _pass_file(part: Part, folder: Path, kind: str) -> Counts:
    """Link a file of records, or cut it, under the user's name for it."""
    file, name = part.file, f"{part.name}{_ending(part.file, kind)}"
    if kind == "tar" and file.stat().st_size > LARGE_BYTES:
        return cut_tar(file, _compression(file.name), f"{name}{CUT}", folder)
    if kind == "parquet":
        with open_parquet(file):  # what is none is named as the user calls it, and of several costs itself alone
            pass
    store.link_or_copy(file.resolve(), folder / name)
    return Counts(totals={"document_files": 1})


def _compression(name: str) -> str:
    return _COMPRESSIONS.get(PurePosixPath(name.lower()).suffix, "")


def pass_records(file: Path, name: str, kind: str, target: Path) -> Counts:
    """Link a file of records that is called `name` as `target`.*; cut it when it is a very large tar."""
    compression = _compression(name)
    if kind == "tar" and file.stat().st_size > LARGE_BYTES:
        return cut_tar(file, compression, target.name, target.parent)
    suffix = ".txt" if kind == "text" else ".arc" if is_arc(Path(name)) else f".{kind}"
    store.link_or_copy(file.resolve(), target.with_name(f"{target.name}{suffix}{compression}"))
    return Counts(totals={"document_files": 1})


def _pass_pair(part: Part, folder: Path) -> Counts:
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
    """What is read only because the user says what it is gets a name that says so too, as does its compression."""
    if is_plain_file(name):
        return name
    suffix = PurePosixPath(name).suffix
    return name + {"html": ".html", "text": ".txt"}[kind] + (suffix if suffix.lower() in store.COMPRESSED else "")
