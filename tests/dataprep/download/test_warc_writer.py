"""WARC members of a page: what every reader finds in them, and that equal pages give equal bytes."""

import dataclasses
import gzip
import hashlib
import io
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from fastwarc.warc import ArchiveIterator
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from dataprep.download.outcomes import Fetched, Outcome, Packed
from dataprep.download.warc_writer import pack, response_block, warcinfo
from tests.samples import Data

G = "http://garden.test"
HTML = "<!doctype html><title>ä</title><p>ä</p>"


def a_page(**changes: Any) -> Fetched:
    values = {
        "url": f"{G}/old",
        "final_url": f"{G}/new?x=ä",
        "redirects": (f"301 {G}/old",),
        "started": "2026-01-31T12:00:00Z",
        "status": 200,
        "address": "93.184.216.34",
        "request_head": "GET /new HTTP/1.1\r\nHost: garden.test\r\n\r\n",
        "response_head": "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Encoding: gzip\r\n"
        "Content-Length: 20\r\nTransfer-Encoding: chunked\r\n\r\n",
        "body": HTML.encode(),
        **changes,
    }
    return Fetched(**values)


def archive(*pages: Fetched) -> bytes:
    return warcinfo("segment-00000.warc.gz", "2026-01-31T12:00:00Z") + b"".join(pack(page).members for page in pages)


def test_warcio_reads_the_records_and_finds_their_digests_right() -> None:
    records = [
        (record.rec_type, record.rec_headers, record.http_headers, record.content_stream().read())
        for record in WarcioIterator(io.BytesIO(archive(a_page())), check_digests="raise")
    ]
    assert [kind for kind, *_ in records] == ["warcinfo", "request", "response", "metadata"]
    _, headers, http, body = records[2]
    assert headers.protocol == "WARC/1.1"
    assert headers["WARC-Target-URI"] == f"{G}/new?x=ä"
    assert headers["WARC-IP-Address"] == "93.184.216.34"
    assert body == a_page().body
    assert http["Content-Length"] == str(len(body))
    assert http["X-Crawler-Content-Encoding"] == "gzip"
    assert http["Content-Encoding"] is None
    assert {headers["WARC-Concurrent-To"] for kind, headers, *_ in records if kind in ("request", "metadata")} == {
        headers["WARC-Record-ID"]
    }
    assert records[3][3].decode() == f"list-url: {G}/old\r\nredirect: 301 {G}/old\r\n"


def test_fastwarc_reads_the_records_and_finds_their_digests_right() -> None:
    stream = io.BytesIO(archive(a_page(), a_page(url=f"{G}/other", body=b"x" * 100_000)))
    found = []
    for record in ArchiveIterator(stream, parse_http=False):
        record.freeze()
        assert record.verify_block_digest()
        record.parse_http()
        found.append((str(record.record_type).rpartition(".")[2], record.reader.read()))
    assert [kind for kind, _ in found] == ["warcinfo", *("request", "response", "metadata") * 2]
    assert [body for kind, body in found if kind == "response"] == [a_page().body, b"x" * 100_000]


def test_the_checker_of_warcio_accepts_a_whole_archive(tmp_path: Path) -> None:
    file = tmp_path / "segment-00000.warc.gz"
    file.write_bytes(archive(a_page(), a_page(body=b"", address="")))
    checked = subprocess.run(
        [sys.executable, "-m", "warcio.cli", "check", "-v", str(file)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.count("digest pass") == 7, "every record has a digest, and it is right"
    assert "failed" not in checked.stdout


def test_each_record_is_a_gzip_member_of_its_own() -> None:
    data, members = pack(a_page()).members, []
    while data:
        inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
        members.append(inflater.decompress(data))
        data = inflater.unused_data
    assert [member[:8] for member in members] == [b"WARC/1.1"] * 3
    assert all(member.endswith(b"\r\n\r\n") for member in members)


def test_equal_pages_give_equal_bytes_without_a_time_of_their_own() -> None:
    assert pack(a_page()) == pack(a_page())
    assert pack(a_page()).members[4:8] == bytes(4), "the time in a gzip header"


def test_record_ids_follow_from_the_page() -> None:
    def ids(page: Fetched) -> set[str]:
        return {record.rec_headers["WARC-Record-ID"] for record in WarcioIterator(io.BytesIO(pack(page).members))}

    assert ids(a_page()) == ids(a_page(started="2027-01-01T00:00:00Z"))
    assert not ids(a_page()) & ids(a_page(body=b"<html>other</html>"))
    assert len(ids(a_page())) == 3


def test_a_header_without_a_colon_stays_as_it_is() -> None:
    block = response_block(a_page(response_head="HTTP/1.1 200 \r\nodd line\r\n\r\n", body=b"x"))
    assert block == b"HTTP/1.1 200 \r\nodd line\r\nContent-Length: 1\r\n\r\nx"


def test_the_outcome_of_a_page_tells_its_size_and_digest() -> None:
    outcome = pack(a_page()).outcome
    assert (outcome.bytes, outcome.sha256) == (len(HTML.encode()), hashlib.sha256(HTML.encode()).hexdigest())
    assert (outcome.url, outcome.redirects, outcome.attempts) == (f"{G}/old", (f"301 {G}/old",), 0)


def test_a_url_without_a_page_has_no_members() -> None:
    packed = pack(a_page(rule="http_status", value="500", body=b""))
    assert packed == Packed(dataclasses.replace(packed.outcome, bytes=0, sha256=""), b"")


@pytest.mark.parametrize("note", ["", "ä\n\ud800", '"'])
def test_an_outcome_goes_through_json_unchanged(note: str) -> None:
    outcome = pack(a_page(note="", rule="x", value=note)).outcome
    assert Outcome.from_json(outcome.to_json()) == outcome


def test_pages_are_no_larger_than_zlib_makes_them(data: Data) -> None:
    files = sorted((data.folder / "html" / "scrapinghub" / "html").glob("*.gz"))
    bodies = [gzip.decompress(file.read_bytes()) for file in files[:20]]
    packed = sum(len(pack(a_page(body=body)).members) for body in bodies)
    heads = sum(len(pack(a_page(body=b"")).members) for _ in bodies)
    assert packed - heads < 1.01 * sum(len(zlib.compress(body, 6)) for body in bodies)
