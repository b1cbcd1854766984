"""URL lists as people have them: text or JSON lines, compressed or not, or folders of such, one level deep."""

import json
import logging
from pathlib import Path
from typing import Any, cast

from pipelines import store
from pipelines.documents import is_jsonl
from pipelines.errors import UserError
from pipelines.manifest import MANIFEST

logger = logging.getLogger(__name__)

LIST_SUFFIXES = (".txt", ".urls", ".lst")
SPACE = " \t\n\r\x0b\x0c"
"""What surrounds a line without belonging to it: the white space of ASCII."""
BYTE_ORDER_MARK = "\ufeff"
_MAGIC = {
    b"\x1f\x8b": "gzip data: let its name end in .gz",
    b"\xfd7zXZ": "xz data: let its name end in .xz",
    b"\x28\xb5\x2f\xfd": "zstd data: let its name end in .zst",
    b"BZh": "bzip2 data: let its name end in .bz2",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"PAR1": "a Parquet table: give its URLs as lines",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
}
_SNIFFED = 4096


def url_lists(path: Path) -> list[Path]:
    """The list files that `path` stands for: itself, or those of a folder and of its folders, in order of name."""
    if path.is_file():
        return [path]
    here = sorted(child for child in path.iterdir() if not child.name.startswith("."))
    below = (sorted(child.iterdir()) if child.is_dir() else [child] for child in here)
    files = [file for group in below for file in group if file.is_file() and not file.name.startswith(".")]
    chosen = [file for file in files if is_url_list(file)]
    if left := [str(file.relative_to(path)) for file in files if file not in chosen and file.name != MANIFEST]:
        logger.warning("%s: no URL lists by their names, left out: %s", path, ", ".join(left))
    if not chosen:
        names = ", ".join(LIST_SUFFIXES)
        packed = ", ".join(store.COMPRESSED)
        raise UserError(f"{path}: holds no URL list ({names} or .jsonl, also {packed}); give such a file")
    return chosen


def is_url_list(path: Path) -> bool:
    """Whether a file is a list of URLs by its name, compressed or not; `RS_2017-01.xz` is one too."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in store.COMPRESSED]
    plain = not suffixes or suffixes[-1] in LIST_SUFFIXES
    return path.name != MANIFEST and (plain or is_jsonl(path))


def check_text(start: bytes, file: Path) -> None:
    """Raise UserError when the first bytes of a file are no text."""
    for magic, advice in _MAGIC.items():
        if start.startswith(magic):
            raise UserError(f"{file}: is no list of URLs but {advice}")
    if b"\0" in start[:_SNIFFED]:
        raise UserError(f"{file}: is no list of URLs but binary data (a zero byte in its first {_SNIFFED} bytes)")


class UnreadableLineError(ValueError):
    """A line that holds no URL at all; `rule` is its counted reason."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def read_url(line: bytes, *, in_json: bool) -> str:
    """The URL of a line, as it stands there; raises UnreadableLineError."""
    text = decode(line)
    return record_url(read_record(text)) if in_json else text


def decode(line: bytes) -> str:
    """A line as text; raises UnreadableLineError."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise UnreadableLineError("invalid_utf8", f"not valid UTF-8 at byte {error.start}") from None


def read_record(text: str) -> dict[str, Any]:
    """A line of JSON as an object; raises UnreadableLineError."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableLineError("invalid_json", f"not valid JSON ({error})") from None
    return cast(dict[str, Any], record) if isinstance(record, dict) else {}


def record_url(record: dict[str, Any]) -> str:
    """The URL of a record, halves of surrogate pairs spelled out; raises UnreadableLineError."""
    url = record.get("url")
    if not isinstance(url, str):
        raise UnreadableLineError("no_url", "has no text under the key 'url'")
    return url.encode("utf-8", "backslashreplace").decode()
