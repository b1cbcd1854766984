"""Which files below a path are read, in which order, and as which kind of source.

Kinds are told by names (`a.warc.gz`, `b.jsonl`), so that the order and the choice never depend on
what was read before. Whatever is not read is named.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from dataprep.sources.megatron_reader import BIN, IDX, TOKENIZER, is_tokenizer_file
from dataprep.sources.tar_reader import is_tar
from dataprep.sources.text_reader import HTML_SUFFIXES, TEXT_SUFFIXES, plain_suffix
from pipelines.documents import is_jsonl
from pipelines.errors import UserError, describe
from pipelines.manifest import MANIFEST, Manifest, is_published

ARCHIVES = ("warc", "wet")
KINDS = (*ARCHIVES, "html", "jsonl", "parquet", "text", "tar", "megatron")
"""In the order in which they come out; ARC files, which came before WARC, count as such."""
FILES_PER_PART = 1000
"""Small files (pages, texts) that make one part: part of the result, so a constant and not an option."""
ARC_SUFFIX = ".arc"
_GROUPED = ("html", "text")
_COMPANIONS = (f".{MANIFEST}", ".provenance.json", ".rejected.jsonl", TOKENIZER)
_WAT = "a WAT file holds no text, only what WARC records say of themselves"
_LINKED = "a link to a folder; give the folder that it leads to"
_UNKNOWN = "no kind of source by its name"
_EXPECTED = ".warc .arc .wet .html .jsonl .parquet .txt .tar .bin, also compressed"


@dataclass(frozen=True, slots=True)
class Input:
    """Files of one kind that are read as one part."""

    kind: str
    files: tuple[Path, ...]
    names: tuple[str, ...]
    """The files' paths below the path that was given."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is read, in order, and what is not: name and reason."""

    inputs: tuple[Input, ...]
    unread: tuple[tuple[str, str], ...]


def find_inputs(path: Path, source: str) -> Found:
    """The inputs that `path`, a file or a folder with all below it, stands for.

    With `source` other than "auto", a file is read as that kind; of a folder, the files whose names say
    so, and for pages and texts those whose names say nothing. UserError when nothing can be read.
    """
    if path.is_file():
        kind, why = (source, "") if source != "auto" else kind_of(path)
        if not kind:
            raise UserError(f"{path}: {why}; expected {_EXPECTED}, or say what it is with --source")
        return Found((Input(kind, (path,), (path.name,)),), ())
    by_kind: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    files, linked = _files_below(path)
    unread = [(name_of(folder, path), _LINKED) for folder in linked]
    for file in files:
        kind, why = kind_as(file, source)
        if kind:
            by_kind[kind].append(file)
        else:
            unread.append((name_of(file, path), why))
    if source == "auto" and not is_published(path) and any(files for kind, files in by_kind.items() if kind != "text"):
        # A README beside archives is no document; a folder of texts alone is a corpus.
        unread += [(name_of(file, path), "text beside other sources") for file in by_kind.pop("text")]
    inputs = [each for kind, files in by_kind.items() for each in _group(kind, files, path)]
    if not inputs:
        named = f"; not read: {describe(unread)}" if unread else ""
        raise UserError(f"{path}: holds neither WARC files nor another source that is read ({_EXPECTED}){named}")
    return Found(tuple(inputs), tuple(sorted(unread)))


def kind_as(file: Path, source: str) -> tuple[str, str]:
    """The kind of a file of a corpus of kind `source`, or "" and why it is not read."""
    kind, why = kind_of(file)
    if source in _GROUPED and why == _UNKNOWN:
        return source, ""
    if source not in ("auto", kind):
        return "", why or f"{kind}, not {source}"
    return kind, why


def kind_of(file: Path) -> tuple[str, str]:
    """The kind of a file by its name, or "" and why it has none."""
    suffix = plain_suffix(file.name)
    if suffix == ".wat":
        return "", _WAT
    if suffix == ARC_SUFFIX:
        return "warc", ""
    if suffix.removeprefix(".") in ARCHIVES:
        return suffix.removeprefix("."), ""
    if suffix in HTML_SUFFIXES:
        return "html", ""
    if is_tokenizer_file(file.name):
        return "", "a tokenizer's file"
    if is_jsonl(Path(file.name.lower())):
        return "jsonl", ""
    if suffix == ".parquet":
        return "parquet", ""
    if suffix == BIN:
        return ("megatron", "") if file.with_suffix(IDX).exists() else ("", f"no {file.stem}{IDX} beside it")
    if suffix in TEXT_SUFFIXES:
        return "text", ""
    return ("tar", "") if is_tar(file) else ("", _UNKNOWN)


def is_arc(file: Path) -> bool:
    """Whether an archive is an ARC, by its name."""
    return plain_suffix(file.name) == ARC_SUFFIX


def name_of(file: Path, root: Path) -> str:
    """A file's path below a folder, as text also where it is no UTF-8: old mirrors have names in Latin-1."""
    return os.fsencode(file.relative_to(root).as_posix()).decode("utf-8", "backslashreplace")


def _files_below(root: Path) -> tuple[list[Path], list[Path]]:
    """Regular files in order of their paths; not hidden ones, nor what our outputs hold beside their rows.

    Links to folders are not followed (they may lead in circles) but named: the second list.
    """
    found: list[Path] = []
    linked: list[Path] = []
    for folder, subfolders, names in os.walk(root):
        here = Path(folder)
        published = Manifest.load(here / MANIFEST).files if is_published(here) else None
        subfolders[:] = [] if published is not None else [name for name in subfolders if not name.startswith(".")]
        linked += [here / name for name in subfolders if (here / name).is_symlink()]
        listed = names if published is None else [name for name in published if "/" not in name]
        found += [here / name for name in listed if not _is_companion(here, name)]
    return sorted((file for file in found if file.is_file()), key=lambda file: file.relative_to(root).parts), linked


def _is_companion(folder: Path, name: str) -> bool:
    if name.endswith(IDX):
        return (folder / name).with_suffix(BIN).exists()
    return name.startswith(".") or name.endswith(_COMPANIONS) or name == MANIFEST


def _group(kind: str, files: list[Path], root: Path) -> list[Input]:
    size = FILES_PER_PART if kind in _GROUPED else 1
    groups = [tuple(files[i : i + size]) for i in range(0, len(files), size)]
    return [Input(kind, group, tuple(name_of(file, root) for file in group)) for group in groups]
