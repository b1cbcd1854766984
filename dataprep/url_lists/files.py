"""URL lists as people have them: text or JSONL files, compressed or not, or folders of such."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from pipelines import store
from pipelines.documents import is_jsonl
from pipelines.errors import UserError
from pipelines.manifest import MANIFEST

logger = logging.getLogger(__name__)

LIST_SUFFIXES = (".txt", ".urls", ".lst")


def url_lists(path: Path) -> list[Path]:
    """The list files that `path` stands for, in order of name."""
    if path.is_file():
        return [path]
    files = [file for file in sorted(path.iterdir()) if file.is_file() and not file.name.startswith(".")]
    chosen = [file for file in files if is_url_list(file)]
    if left := [file.name for file in files if file not in chosen and file.name != MANIFEST]:
        logger.warning("%s: no URL lists by their names, left out: %s", path, ", ".join(left))
    if not chosen:
        names = ", ".join(LIST_SUFFIXES)
        raise UserError(f"{path}: holds no URL list ({names} or .jsonl, also .gz, .zst, .xz); give such a file")
    return chosen


def is_url_list(path: Path) -> bool:
    """Whether a file is a list of URLs by its name, compressed or not."""
    suffixes = [suffix for suffix in path.suffixes if suffix not in store.COMPRESSED]
    plain = not suffixes or suffixes[-1] in LIST_SUFFIXES
    return path.name != MANIFEST and (plain or is_jsonl(path))


def numbered_lines(file: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that hold something: no blank lines, no `#` comments, no byte order mark."""
    for number, line in enumerate(store.read_lines(file), start=1):
        stripped = line.strip().removeprefix(b"\xef\xbb\xbf")
        if stripped and not stripped.startswith(b"#"):
            yield number, stripped


class UnreadableLineError(ValueError):
    """A line that holds no URL at all; `rule` is its counted reason."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule


def read_url(line: bytes, *, in_json: bool) -> str:
    """The URL of a line, as it stands there; raises UnreadableLineError."""
    try:
        text = line.decode()
        if not in_json:
            return text
        record = json.loads(text)
    except UnicodeDecodeError as error:
        raise UnreadableLineError("invalid_utf8", f"not valid UTF-8 at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableLineError("invalid_json", f"not valid JSON ({error})") from None
    url: Any = cast(dict[str, Any], record).get("url") if isinstance(record, dict) else None
    if not isinstance(url, str):
        raise UnreadableLineError("no_url", "has no text under the key 'url'")
    return url.encode("utf-8", "backslashreplace").decode()
