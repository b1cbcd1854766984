"""What every reader yields: a page to extract, a text that is ready, or the reason why a record has neither.

A reader is `read_NAME(file: Path, ...) -> Iterator[Record]`. Damage inside a file yields a `Broken`, and the reader
goes on; only a file of another kind altogether is an error (UserError). This module also has the names under which
the files of a prepared corpus pass through the download folder.
"""

import re
from dataclasses import dataclass

CUT, PACKED = ".cut", ".pack"
"""End the names of a file that was cut into several tars, and of a tar into which several files were packed."""
_NAME_CHARS = 60
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
# Inside a name these would mark a file as JSON lines, or as rejected rows.
_MISLEADING = re.compile(r"\.(?=(?:jsonl|rejected)(?:\.|$))", re.IGNORECASE)
_PASSTHROUGH = re.compile(
    rf"documents-\d{{5}}-(.+?)(?:{re.escape(CUT)}-\d{{5}}\.tar|{re.escape(PACKED)}\.tar)?", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Page:
    """An HTML page whose text has not been extracted yet."""

    url: str
    body: bytes
    """Decoded from its HTTP encodings, in the page's own character encoding."""
    content_type: str | None = None
    """As declared by the server, if at all."""
    charset: str | None = None
    """As declared by the server; the page itself may declare another."""


@dataclass(frozen=True, slots=True)
class Text:
    """A document whose text is ready."""

    url: str
    text: str
    source: str = ""
    """Where the document comes from; empty for the registered domain of `url`."""
    metadata: str | None = None
    """What else its record holds, as the text of a JSON object (`pipelines.metadata`)."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A record without a document: where it is, the rule it breaks, and the value seen."""

    url: str
    """The record's URL if it has one, else its position: `file.warc.gz at byte 1234`."""
    rule: str
    value: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that is not meant to hold a document, such as a request or metadata; counted by kind."""

    kind: str


Record = Page | Text | Broken | Skipped


def passthrough_name(number: int, name: str, ending: str = "") -> str:
    """Return `documents-NNNNN-NAME` for a file that the stage `download` passes through to `extract`.

    NAME is the file's name without `ending`, reduced to at most 60 letters, digits, `.`, `_` and `-`.
    """
    stem = name[: -len(ending)] if ending and name.lower().endswith(ending) else name
    safe = _MISLEADING.sub("_", _UNSAFE.sub("_", stem))
    return f"documents-{number:05d}-{safe[:_NAME_CHARS]}"


def original_name(name: str) -> str:
    """Return the user's name of a file that was passed through, as far as it was kept; any other name unchanged."""
    match = _PASSTHROUGH.fullmatch(name)
    return match[1] if match else name
