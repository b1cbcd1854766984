"""WARC 1.1 records of a page (request, response, metadata), each a gzip member of its own.

Equal outcomes give equal bytes: record ids are uuid5 of the URL and the page, dates are those of the
fetch, and gzip headers hold no time. The page is stored as decoded, and the headers that spoke of
its encoding keep their text under an `X-Crawler-` name, as Common Crawl does.
"""

import base64
import hashlib
import uuid
import zlib
from typing import IO

from dataprep.crawl.fetched import Fetched

_GZIP_LEVEL = 6
_ENCODING_HEADERS = ("content-encoding", "transfer-encoding", "content-length")


def write_warcinfo(file: IO[bytes], name: str, date: str) -> None:
    """The record that opens a segment."""
    headers = {
        "WARC-Type": "warcinfo",
        "WARC-Record-ID": _record_id("warcinfo", name, date),
        "WARC-Date": date,
        "WARC-Filename": name,
        "Content-Type": "application/warc-fields",
    }
    _write(file, headers, b"software: millrace\r\nformat: WARC File Format 1.1\r\nrobots: RFC 9309\r\n")


def write_page(file: IO[bytes], fetched: Fetched) -> None:
    """The three records of one page."""
    names = (fetched.url, fetched.final_url, hashlib.sha256(fetched.body).hexdigest())
    response_id = _record_id("response", *names)
    _write(
        file,
        {
            **_page_headers("request", fetched, _record_id("request", *names)),
            "WARC-Concurrent-To": response_id,
            "Content-Type": "application/http; msgtype=request",
        },
        fetched.request_head.encode("latin-1", "replace"),
    )
    _write(
        file,
        {
            **_page_headers("response", fetched, response_id),
            "WARC-Payload-Digest": _digest(fetched.body),
            "Content-Type": "application/http; msgtype=response",
        },
        response_block(fetched),
    )
    _write(
        file,
        {
            **_page_headers("metadata", fetched, _record_id("metadata", *names)),
            "WARC-Concurrent-To": response_id,
            "Content-Type": "application/warc-fields",
        },
        metadata_block(fetched),
    )


def response_block(fetched: Fetched) -> bytes:
    """Status line, headers and the decoded page."""
    lines = fetched.response_head.removesuffix("\r\n\r\n").split("\r\n")
    headers = [
        f"X-Crawler-{line}" if line.partition(":")[0].strip().lower() in _ENCODING_HEADERS else line for line in lines
    ]
    headers.append(f"Content-Length: {len(fetched.body)}")
    return "\r\n".join(headers).encode("latin-1", "replace") + b"\r\n\r\n" + fetched.body


def metadata_block(fetched: Fetched) -> bytes:
    """How the page was reached: the URL of the list, each redirect, what was done differently."""
    fields = [("list-url", fetched.url), *(("redirect", redirect) for redirect in fetched.redirects)]
    if fetched.note:
        fields.append(("note", fetched.note))
    return "".join(f"{name}: {value}\r\n" for name, value in fields).encode()


def _page_headers(kind: str, fetched: Fetched, record_id: str) -> dict[str, str]:
    headers = {
        "WARC-Type": kind,
        "WARC-Target-URI": fetched.final_url,
        "WARC-Record-ID": record_id,
        "WARC-Date": fetched.started,
    }
    return {**headers, "WARC-IP-Address": fetched.address} if fetched.address and kind != "metadata" else headers


def _record_id(*names: str) -> str:
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, ' '.join(names))}>"


def _digest(data: bytes) -> str:
    # SHA-1 in base 32 is what every WARC tool compares; it guards against damage, not against forgery.
    return "sha1:" + base64.b32encode(hashlib.sha1(data, usedforsecurity=False).digest()).decode()


def _write(file: IO[bytes], headers: dict[str, str], block: bytes) -> None:
    """Append one record, compressed on its own so that any reader can start there."""
    headers = {**headers, "WARC-Block-Digest": _digest(block), "Content-Length": str(len(block))}
    head = "WARC/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n"
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    file.write(compressor.compress(head.encode() + block + b"\r\n\r\n") + compressor.flush())
