"""Texts of the user's own to look for in documents: one item per line, JSON lines or plain text.

`name=FILE` from the command line, or a folder of such files, each called by its file's name. A JSON line has
its `text`; any other file is UTF-8, and each of its lines that is not blank is an item. Items go by the
number of their line, from 1.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines import store
from pipelines.documents import is_jsonl
from pipelines.errors import ConfigError, UserError
from pipelines.jsonl import MAX_LINE_BYTES, BrokenLineError, read_jsonl

ITEMS = "items"
"""The only split of a target."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def find_targets(against: Sequence[str], folder: Path | None) -> dict[str, Path]:
    """Name -> file of every target. Raises ConfigError for a name that is wrong or given twice."""
    named = [split_name(each) for each in against]
    if folder:
        named += [(_stem(file), file) for file in _files_of(folder)]
    targets: dict[str, Path] = {}
    for name, file in named:
        if name in targets:
            raise ConfigError(f"decontaminate: two targets are called {name} ({targets[name]}, {file}); rename one")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"decontaminate: {name!r} cannot be a target's name: letters, digits, - _ . only")
        targets[name] = file
    return targets


def split_name(each: str) -> tuple[str, Path]:
    """`name=FILE` in two; ConfigError for anything else."""
    name, equals, path = each.partition("=")
    if not equals or not path:
        raise ConfigError(f"decontaminate.against: expected name=FILE, got {each!r}")
    file = Path(path)
    if not file.is_file():
        problem = "is a folder; name its files, or give it with --targets" if file.is_dir() else "no such file"
        raise ConfigError(f"decontaminate.against: {file}: {problem}")
    return name, file


def _files_of(folder: Path) -> list[Path]:
    if not folder.exists():
        raise ConfigError(f"decontaminate.targets: {folder}: no such file or folder")
    files = [folder] if folder.is_file() else sorted(path for path in folder.iterdir() if path.is_file())
    found = [file for file in files if not file.name.startswith(".")]
    if not found:
        raise UserError(f"{folder}: holds no file to look for; put JSON lines or plain text there")
    return found


def _stem(file: Path) -> str:
    """`a.b.jsonl.gz` -> `a.b`."""
    path = Path(file.stem) if file.suffix in store.COMPRESSED else file
    return path.stem


def read_target(file: Path) -> Iterator[tuple[int, str | BrokenLineError]]:
    """The lines of a target that are not blank, by number: the item, or why it is none."""
    if is_jsonl(file):
        for number, row in read_jsonl(file):
            yield number, row if isinstance(row, BrokenLineError) else row["text"]
        return
    for number, line in enumerate(store.read_lines(file, MAX_LINE_BYTES), start=1):
        if line.strip():
            yield number, _plain_item(line)


def _plain_item(line: bytes) -> str | BrokenLineError:
    if len(line) > MAX_LINE_BYTES:
        return BrokenLineError("too_large", f"longer than {MAX_LINE_BYTES} bytes")
    if b"\0" in line:
        return BrokenLineError("not_text", f"a zero byte at {line.index(0)}")
    try:
        return line.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        return BrokenLineError("invalid_utf8", f"not valid UTF-8 at byte {error.start}")
