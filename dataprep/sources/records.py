"""What every reader of a source yields: a page to extract, a text that is ready, or a reason for nothing.

A reader is `read(file: Path, ...) -> Iterator[Record]`. Damage inside a file is a `Broken` and the
reader goes on; only a file that is of another kind altogether is an error (UserError).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """An HTML page whose text is still to be extracted."""

    url: str
    body: bytes
    """Decoded from its HTTP encodings, in the page's own character encoding."""
    content_type: str | None = None
    """As declared by the server, if it was."""
    charset: str | None = None
    """As declared by the server; the page itself may say another."""


@dataclass(frozen=True, slots=True)
class Text:
    """A document that is ready."""

    url: str
    text: str
    source: str = ""
    """Where it comes from; empty stands for the registered domain of `url`."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A record that gives no document: where it is, the rule that it breaks and the value seen."""

    url: str
    """The record's URL where it has one, else a place: `file.warc.gz at byte 1234`."""
    rule: str
    value: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A record that is there for other reasons than to carry a document: a request, metadata; counted by kind."""

    kind: str


Record = Page | Text | Broken | Skipped
