"""Archives for tests: WARC and ARC records by hand, and pages as our own crawler packs them."""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

from dataprep.download.outcomes import Fetched
from dataprep.download.warc_writer import pack, warcinfo
from tests.dataprep.sites import HTML, TEXT

DATE = "2026-01-31T12:00:00Z"


def record(kind: str, url: str, block: bytes, content_type: str, **headers: str) -> bytes:
    """A WARC record; `headers` (with _ for -) add to those it needs or replace them."""
    lines = {
        "WARC-Type": kind,
        "WARC-Target-URI": url,
        "WARC-Record-ID": "<urn:uuid:00000000-0000-0000-0000-000000000000>",
        "WARC-Date": DATE,
        "Content-Type": content_type,
        **{name.replace("_", "-"): value for name, value in headers.items()},
        "Content-Length": headers.get("Content_Length", str(len(block))),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"WARC/1.0\r\n{head}\r\n".encode() + block + b"\r\n\r\n"


def arc_record(url: str, block: bytes, content_type: str = "text/html", length: int | None = None) -> bytes:
    """An ARC record, version 1."""
    size = len(block) if length is None else length
    return f"{url} 192.0.2.1 20091121004501 {content_type} {size}\n".encode() + block + b"\n"


def http(body: bytes, *headers: str, status: str = "200 OK", type_: str = "text/html") -> bytes:
    """An HTTP response."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {type_}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def response(url: str, block: bytes, **headers: str) -> bytes:
    """A WARC record of an HTTP response."""
    return record("response", url, block, "application/http; msgtype=response", **headers)


def page(number: int) -> bytes:
    """A page with some text that begins with its number."""
    return HTML.format(f"{number} {TEXT}").encode()


def chunked(*chunks: bytes) -> bytes:
    """A body in HTTP's chunked transfer encoding."""
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


def small_records(number: int) -> list[bytes]:
    """WARC records of little pages, each of another size."""
    return [response(f"http://a.test/{i}", http(b"<p>page %d</p>" % i + b"." * 37 * i)) for i in range(number)]


def packed(records: Sequence[bytes]) -> bytes:
    """One gzip member per record."""
    return b"".join(gzip.compress(each, mtime=0) for each in records)


def damage_response(archive: Path, number: int) -> None:
    """Overwrite some bytes in the middle of a page of `archive_of` (whose members are a request, it, and metadata)."""
    data = bytearray(archive.read_bytes())
    ends = [0]
    while ends[-1] < len(data):
        inflater = zlib.decompressobj(31)
        inflater.decompress(bytes(data[ends[-1] :]))
        ends.append(len(data) - len(inflater.unused_data))
    middle = sum(ends[2 + 3 * number : 4 + 3 * number]) // 2
    data[middle : middle + 10] = b"\xff" * 10
    archive.write_bytes(data)


def archive_of(path: Path, numbers: range) -> Path:
    """A segment as our own crawler makes it, with a campaign's parameter in every URL."""
    members = [warcinfo(path.name, DATE)]
    for i in numbers:
        url = f"http://garden.test/{i}?utm_source=x"
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
        fetched = Fetched(
            url=url,
            final_url=url,
            started=DATE,
            request_head="GET / HTTP/1.1\r\n\r\n",
            response_head=head,
            body=page(i),
        )
        members.append(pack(fetched).members)
    path.write_bytes(b"".join(members))
    return path
