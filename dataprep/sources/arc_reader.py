"""Records of ARC files, the archives of the Internet Archive and Common Crawl before WARC (versions 1 and 2).

A record is one line (`URL IP-address date type length`, version 2 with more before the length), its
content and a line feed (https://archive.org/web/researcher/ArcFileFormat.php).
"""

import re
from collections.abc import Iterator
from pathlib import Path

from dataprep.sources.frames import Dialect, Frame, Head, read_frames
from dataprep.sources.records import Broken, Record, Skipped
from dataprep.sources.warc_reader import EXTRA_BYTES, Span, normal_url, page_of, read_http

_LINE = re.compile(
    rb"^([A-Za-z][A-Za-z0-9+.-]{1,15}:[^\r\n]{1,8000}) ([0-9A-Fa-f:.]{2,45}) (\d{14})((?: [^\s]{0,2000}){0,12}) "
    rb"(\d{1,18})[ \t]*\r?\n",
    re.MULTILINE,
)


def parse_head(data: bytes) -> Head | None:
    """The line before a record's content."""
    found = _LINE.match(data)
    if found is None:
        return None
    kind = (found[4].split() or [b""])[0]
    fields = {"url": found[1].decode("utf-8", "replace"), "type": kind.decode("latin-1")}
    fields |= {"ip": found[2].decode(), "date": found[3].decode()}
    return Head(found.end(), int(found[5]), fields)


ARC = Dialect("ARC", _LINE, re.compile(rb"\n"), parse_head, b"\n")


def read_arc(file: Path, max_bytes: int, span: Span = (0, None)) -> Iterator[Record]:
    """Every record of an ARC file, in order; or of the part that `span` is.

    Raises UserError when the file is no ARC at all.
    """
    for frame in read_frames(file, ARC, max_bytes + EXTRA_BYTES, *span):
        yield read_record(frame, max_bytes)


def read_record(frame: Frame, max_bytes: int) -> Record:
    """What one record gives."""
    fields = frame.head.fields if frame.head else {}
    url = normal_url(fields.get("url", ""))
    if frame.rule:
        return Broken(url or frame.place, frame.rule, f"{frame.value}, {frame.place}" if url else frame.value)
    if url.startswith("filedesc:"):
        return Skipped("filedesc")
    if url.lower().startswith(("http:", "https:")):
        return read_http(url, frame.content, max_bytes)
    return page_of(url, frame.content, fields["type"] or None, max_bytes)
