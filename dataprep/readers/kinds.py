"""Which files below a path are read, in which order, and as which kind of source.

The kind follows from the file's name (`a.warc.gz`, `b.jsonl`), so neither the choice nor the order depends on what was
read before. Files that are not read are reported.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dataprep.readers.megatron import BIN, IDX, TOKENIZER, is_tokenizer_file
from dataprep.readers.tar import TAR_SUFFIXES, is_tar
from dataprep.readers.text import HTML_SUFFIXES, TEXT_SUFFIXES, plain_suffix
from pipelines.config import KINDS
from pipelines.documents import JSONL_SUFFIXES
from pipelines.errors import UserError, describe
from pipelines.manifest import MANIFEST, Manifest, is_published, why_not_read

ARCHIVES = ("warc", "wet")
FILES_PER_PART = 1000
"""Small files (pages, texts) in one part. It shapes the output, so it is a constant and not an option."""
ARC_SUFFIX = ".arc"
SUFFIXES: Mapping[str, tuple[str, ...]] = {kind: (f".{kind}",) for kind in KINDS} | {
    "warc": (".warc", ARC_SUFFIX),
    "html": HTML_SUFFIXES,
    "jsonl": JSONL_SUFFIXES,
    "text": TEXT_SUFFIXES,
    "tar": TAR_SUFFIXES,
    "megatron": (BIN,),
}
"""The suffixes of each kind, in lower case and without that of a compression."""
_KIND_OF_SUFFIX = {suffix: kind for kind, suffixes in SUFFIXES.items() for suffix in suffixes}
_GROUPED = ("html", "text")
_COMPANIONS = (f".{MANIFEST}", ".provenance.json", ".rejected.jsonl", TOKENIZER)
_WAT = "a WAT file holds no text, only what WARC records say of themselves"
_LINKED = "a link to a folder; give the folder it points to"
_UNKNOWN = "no kind of source by its name"
_EXPECTED = f"{' '.join(suffixes[0] for suffixes in SUFFIXES.values())} .arc, also compressed"


@dataclass(frozen=True, slots=True)
class Input:
    """Files of one kind that are read as one part."""

    kind: str
    files: tuple[Path, ...]
    names: tuple[str, ...]
    """The files' paths below the root."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs below a path, in order, and the files that are not read: name and reason."""

    inputs: tuple[Input, ...]
    unread: tuple[tuple[str, str], ...]


def find_inputs(path: Path, source: str) -> Inputs:
    """Return the inputs of `path`: a file, or a folder with everything below it.

    With a `source` other than "auto", a single file is read as that kind. In a folder, files whose names match the
    kind are read; for pages and texts, files with names of no known kind are read too. Raises UserError when nothing
    can be read.
    """
    if path.is_file():
        kind, why = (source, "") if source != "auto" else kind_of(path)
        if not kind:
            raise UserError(f"{path}: {why}; expected {_EXPECTED}, or say what it is with --source")
        return Inputs((Input(kind, (path,), (path.name,)),), ())
    by_kind: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    files, unread = _files_below(path)
    for file in files:
        kind, why = kind_as(file, source)
        if kind:
            by_kind[kind].append(file)
        else:
            unread.append((name_of(file, path), why))
    if source == "auto" and not is_published(path) and any(files for kind, files in by_kind.items() if kind != "text"):
        # A README beside archives is not a document; a folder of only texts is a corpus.
        unread += [(name_of(file, path), "text beside other sources") for file in by_kind.pop("text")]
    inputs = [each for kind, files in by_kind.items() for each in _group(kind, files, path)]
    if not inputs:
        named = f"; not read: {describe(unread)}" if unread else ""
        raise UserError(f"{path}: contains no source of a known kind ({_EXPECTED}){named}")
    return Inputs(tuple(inputs), tuple(sorted(unread)))


def kind_as(file: Path, source: str) -> tuple[str, str]:
    """Return the kind of a file in a corpus of kind `source`, or "" and why it is not read."""
    kind, why = kind_of(file)
    if source in _GROUPED and why == _UNKNOWN:
        return source, ""
    if source not in ("auto", kind):
        return "", why or f"{kind}, not {source}"
    return kind, why


def kind_of(file: Path) -> tuple[str, str]:
    """Return the kind of a file by its name, or "" and why it has none."""
    suffix = plain_suffix(file.name)
    if suffix == ".wat":
        return "", _WAT
    if is_tokenizer_file(file.name):
        return "", "a tokenizer's file"
    if suffix == BIN and not file.with_suffix(IDX).is_file():
        return "", f"no {file.stem}{IDX} beside it"
    kind = _KIND_OF_SUFFIX.get(suffix) or ("tar" if is_tar(file) else "")
    return (kind, "") if kind else ("", _UNKNOWN)


def is_arc(file: Path) -> bool:
    """Return whether an archive is an ARC, by its name."""
    return plain_suffix(file.name) == ARC_SUFFIX


def name_of(file: Path, root: Path) -> str:
    """Return a file's path below a folder. Bytes that are not UTF-8 (old mirrors: Latin-1) become backslash escapes."""
    return os.fsencode(file.relative_to(root).as_posix()).decode("utf-8", "backslashreplace")


def _files_below(root: Path) -> tuple[list[Path], list[tuple[str, str]]]:
    """Return the files below a folder in order of their paths, and name and reason of what else is there.

    Hidden files are left out, and of a published output all files but its rows. Links to folders are not followed,
    since they may form cycles.
    """
    files: list[Path] = []
    unread: list[tuple[str, str]] = []
    for folder, subfolders, names in os.walk(root):
        parent = Path(folder)
        published = Manifest.load(parent / MANIFEST).files if is_published(parent) else None
        subfolders[:] = [] if published is not None else [name for name in subfolders if not name.startswith(".")]
        listed = names if published is None else [name for name in published if "/" not in name]
        children = [parent / name for name in subfolders]
        children += [parent / name for name in listed if not _is_companion(parent, name)]
        for child in children:
            why = why_not_read(child) or (_LINKED if child.is_dir() and child.is_symlink() else "")
            if why:
                unread.append((name_of(child, root), why))
            elif child.is_file():
                files.append(child)
    return sorted(files, key=lambda file: file.relative_to(root).parts), unread


def _is_companion(folder: Path, name: str) -> bool:
    if name.endswith(IDX):
        return (folder / name).with_suffix(BIN).is_file()
    return name.startswith(".") or name.endswith(_COMPANIONS) or name == MANIFEST


def _group(kind: str, files: list[Path], root: Path) -> list[Input]:
    size = FILES_PER_PART if kind in _GROUPED else 1
    groups = [tuple(files[i : i + size]) for i in range(0, len(files), size)]
    return [Input(kind, group, tuple(name_of(file, root) for file in group)) for group in groups]
