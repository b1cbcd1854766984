"""Replay: an archive answers in place of the network, whoever made it and however it is compressed."""

import gzip
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from dataprep.download.stage import FETCH_STORE
from pipelines import store
from pipelines.command import StageSpec
from pipelines.documents import read_rows
from pipelines.manifest import MANIFEST, Manifest
from pipelines.stage import run_command
from tests.dataprep.sites import HTML, make_site
from tests.samples import at_hand, find

SPEC = StageSpec.load("dataprep.download")
G = "http://garden.test"
DATE = "2020-02-02T02:02:02Z"


def run(*arguments: object, status: int = 0, workers: int = 1) -> None:
    options = ("--backoff-seconds", "0.02", "--workers", str(workers), "--log-level", "error")
    assert run_command(SPEC, [*map(str, arguments), *options]) == status


def write_list(path: Path, *urls: str) -> Path:
    path.write_text("".join(f"{url}\n" for url in urls))
    return path


def outcomes(folder: Path) -> dict[str, tuple[str, str]]:
    """Rule and value of every URL of the log."""
    return {row["url"]: (row["rule"], row["value"]) for row in log_rows(folder)}


def log_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted((folder / "fetch_log").glob("*.parquet")) for row in read_rows(file)]


def pages(folder: Path) -> dict[str, bytes]:
    """The body of every page, by the URL of the list."""
    found: dict[str, bytes] = {}
    for file in sorted(folder.glob("*.warc.gz")):
        records = gzip.decompress(file.read_bytes()).split(b"WARC/1.1\r\n")
        for record in records:
            if b"WARC-Type: response" in record:
                body = record.split(b"\r\n\r\n", 2)[2].removesuffix(b"\r\n\r\n")
            if b"WARC-Type: metadata" in record:
                listed = record.split(b"list-url: ")[1].split(b"\r\n")[0].decode()
                found[listed] = body
    return found


class Archive:
    """A WARC as other crawlers write it."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._writer = WARCWriter(self._buffer, gzip=True)

    def add(
        self,
        url: str,
        body: bytes = b"",
        status: str = "200 OK",
        headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/html"),),
        kind: str = "response",
        **more: str,
    ) -> None:
        """Append one record."""
        head = StatusAndHeaders(status, list(headers), protocol="HTTP/1.1")
        fields = {"WARC-Date": DATE, **{name.replace("_", "-"): value for name, value in more.items()}}
        record = self._writer.create_warc_record(
            url, kind, payload=io.BytesIO(body), http_headers=head, warc_headers_dict=fields
        )
        self._writer.write_record(record)

    def save(self, path: Path) -> Path:
        """Write what was added so far."""
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self._buffer.getvalue())
        return path


@pytest.fixture(scope="module")
def crawled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a list, a site, and a crawl of it."""
    folder = tmp_path_factory.mktemp("crawled")
    site = make_site(
        folder / "site",
        {"url": f"{G}/old", "status": 301, "location": "/page/0?x=1"},
        {"url": f"{G}/page/0?x=1", "body": HTML.format("moved here")},
        {"url": f"{G}/zipped", "body": HTML.format("ä" * 2000), "headers": {"Content-Language": "de"}},
        pages=6,
    )
    names = ("page/3", "old", "zipped", "never", "page/1", "page/5")
    listed = write_list(folder / "list.txt", *(f"{G}/{name}" for name in names))
    run(listed, folder / "download", "--local-site", site, "--urls-per-segment", 2)
    return folder


def segments(folder: Path) -> dict[str, str]:
    return {file.name: store.sha256(file) for file in sorted(folder.glob("segment-*"))}


@pytest.mark.parametrize("form", ["published", "plain", "zstd", "whole order turned"])
def test_our_own_segments_come_out_byte_for_byte(form: str, crawled: Path, tmp_path: Path) -> None:
    archive = crawled / "download"
    if form != "published":
        archive = tmp_path / "archive"
        archive.mkdir()
        for number, file in enumerate(sorted((crawled / "download").glob("segment-*"))):
            data = gzip.decompress(file.read_bytes())
            if form == "plain":
                (archive / f"{number}.warc").write_bytes(data)
            elif form == "zstd":
                records = [b"WARC/1.1\r\n" + record for record in data.split(b"WARC/1.1\r\n")[1:]]
                frames = b"".join(zstandard.compress(record) for record in records)
                (archive / f"{number}.warc.zst").write_bytes(frames)
            else:
                (archive / f"{9 - number}.warc.gz").write_bytes(file.read_bytes())
    run(crawled / "list.txt", tmp_path / "out", "--replay", archive, "--urls-per-segment", 2)
    assert segments(tmp_path / "out") == segments(crawled / "download")
    assert outcomes(tmp_path / "out")[f"{G}/never"] == ("not_in_archive", "")
    first, second = log_rows(crawled / "download"), log_rows(tmp_path / "out")
    same = ("url", "status", "final_url", "redirects", "bytes", "sha256", "address", "started", "note")
    assert [[row[name] for name in same] for row in second if not row["rule"]] == [
        [row[name] for name in same] for row in first if not row["rule"]
    ]
    assert {row["attempts"] for row in second} == {0}


def test_replaying_needs_neither_network_nor_store_and_no_certain_number_of_workers(
    crawled: Path, tmp_path: Path
) -> None:
    for workers in (1, 2):
        out = tmp_path / str(workers) / "out"
        arguments = (crawled / "list.txt", out, "--replay", crawled / "download", "--urls-per-segment", 2)
        run(*arguments, workers=workers)
        assert not (out.parent / FETCH_STORE).exists()
    assert store.sha256(tmp_path / "1" / "out" / MANIFEST) == store.sha256(tmp_path / "2" / "out" / MANIFEST)


def test_another_list_takes_what_it_names(crawled: Path, tmp_path: Path) -> None:
    """A URL that only a redirect led to is in the archive under its own name too."""
    listed = write_list(tmp_path / "list.txt", f"{G}/page/0?x=1", "HTTP://GARDEN.test/page/5#top", f"{G}/old")
    run(listed, tmp_path / "out", "--replay", crawled / "download")
    found = pages(tmp_path / "out")
    assert list(found) == [f"{G}/page/0?x=1", f"{G}/page/5", f"{G}/old"]
    assert found[f"{G}/page/0?x=1"] == found[f"{G}/old"] == HTML.format("moved here").encode()


def test_an_empty_list_takes_every_page_of_the_archive(crawled: Path, tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"")
    run(tmp_path / "none", tmp_path / "out", "--replay", crawled / "download")
    assert pages(tmp_path / "out") == pages(crawled / "download")
    assert list(outcomes(tmp_path / "out")) == list(pages(crawled / "download")), "in the order of the archive"


def test_an_archive_of_another_crawler_is_decoded_and_judged(tmp_path: Path) -> None:
    html = HTML.format("text " * 100).encode()
    archive = Archive()
    chunked = b"5\r\n" + html[:5] + b"\r\n" + f"{len(html) - 5:x}\r\n".encode() + html[5:] + b"\r\n0\r\n\r\n"
    kind = ("Content-Type", "text/html; charset=utf-8")
    archive.add(f"{G}/zipped", gzip.compress(html), headers=(kind, ("Content-Encoding", "gzip")))
    archive.add(f"{G}/chunked", chunked, headers=(kind, ("Transfer-Encoding", "chunked")))
    archive.add(f"{G}/gone", b"no", "404 Not Found")
    archive.add(f"{G}/image", b"\x89PNG....", headers=(("Content-Type", "image/png"),))
    archive.add(f"{G}/torn", gzip.compress(html)[:-20], headers=(kind, ("Content-Encoding", "gzip")))
    archive.add(f"{G}/large", html * 10)
    archive.add(f"{G}/cut", html, WARC_Truncated="length")
    listed = write_list(
        tmp_path / "list.txt",
        *(f"{G}/{name}" for name in ("zipped", "chunked", "gone", "image", "torn", "large", "cut", "other")),
    )
    file = archive.save(tmp_path / "a.warc.gz")
    run(listed, tmp_path / "out", "--replay", file, "--max-body-bytes", 3000)
    assert pages(tmp_path / "out") == {f"{G}/zipped": html, f"{G}/chunked": html}
    rules = outcomes(tmp_path / "out")
    assert {url.rpartition("/")[2]: rule for url, (rule, _) in rules.items() if rule} == {
        "gone": "http_status",
        "image": "not_html",
        "torn": "bad_encoding",
        "large": "too_large",
        "cut": "truncated_record",
        "other": "not_in_archive",
    }
    assert rules[f"{G}/gone"][1] == "404"
    assert {row["started"] for row in log_rows(tmp_path / "out") if not row["rule"]} == {DATE}
    data = gzip.decompress((tmp_path / "out" / "segment-00000.warc.gz").read_bytes())
    assert b"X-Crawler-Content-Encoding: gzip" in data
    assert b"WARC-Type: request" not in data, "nobody knows what was asked"
    check_with_warcio(tmp_path / "out" / "segment-00000.warc.gz")


def check_with_warcio(file: Path) -> None:
    command = [sys.executable, "-m", "warcio.cli", "check", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_redirects_are_followed_within_the_archive(tmp_path: Path) -> None:
    archive = Archive()

    def redirect(name: str, target: str, status: str = "302 Found") -> None:
        archive.add(f"{G}/{name}", status=status, headers=(("Location", target),))

    redirect("a", "/b", "301 Moved Permanently")
    redirect("b", f"{G}/c?utm_source=x#top")
    archive.add(f"{G}/c?utm_source=x", HTML.format("c").encode())
    redirect("out", "https://elsewhere.test/x")
    redirect("round", "/trip")
    redirect("trip", "/round")
    for number in range(5):
        redirect(f"long/{number}", f"/long/{number + 1}")
    names = ("a", "b", "out", "round", "long/0", "long/2")
    listed = write_list(tmp_path / "list.txt", *(f"{G}/{name}" for name in names))
    arguments = (listed, tmp_path / "out", "--replay", archive.save(tmp_path / "a.warc.gz"), "--max-redirects", 3)
    run(*arguments)
    assert list(pages(tmp_path / "out")) == [f"{G}/a", f"{G}/b"]
    rows = {row["url"]: row for row in log_rows(tmp_path / "out")}
    assert rows[f"{G}/a"]["redirects"] == [f"301 {G}/a", f"302 {G}/b"]
    assert rows[f"{G}/a"]["final_url"] == f"{G}/c?utm_source=x"
    rules = outcomes(tmp_path / "out")
    assert rules[f"{G}/out"] == ("not_in_archive", "https://elsewhere.test/x")
    assert rules[f"{G}/round"] == ("redirect_loop", f"{G}/round")
    assert rules[f"{G}/long/0"] == ("too_many_redirects", "4")
    assert rules[f"{G}/long/2"] == ("not_in_archive", f"{G}/long/5")


def test_an_archive_keeps_to_what_its_pages_say_about_training(tmp_path: Path) -> None:
    archive = Archive()
    html = ("Content-Type", "text/html")
    archive.add(
        f"{G}/a", HTML.format("a").encode(), headers=(html, ("x-robots-tag", "noindex"), ("X-Robots-Tag", "noai"))
    )
    archive.add(f"{G}/b", b"<!doctype html><meta name=tdm-reservation content=1><p>b")
    archive.add(f"{G}/c", HTML.format("c").encode())
    saved = archive.save(tmp_path / "archive.warc.gz")
    listed = write_list(tmp_path / "list.txt", f"{G}/a", f"{G}/b", f"{G}/c")
    run(listed, tmp_path / "all", "--replay", saved)
    assert {rule for rule, _ in outcomes(tmp_path / "all").values()} == {""}
    run(listed, tmp_path / "some", "--replay", saved, "--opt-outs", "robots_tags", "tdmrep")
    assert outcomes(tmp_path / "some") == {
        f"{G}/a": ("x_robots_tag", "noai"),
        f"{G}/b": ("tdm_reserved", "meta"),
        f"{G}/c": ("", ""),
    }
    counts = Manifest.load(tmp_path / "some" / MANIFEST).counts
    assert counts.rejected == {"tdm_reserved": 1, "x_robots_tag": 1}


def test_hash_bang_pages_are_found_as_they_are_requested(tmp_path: Path) -> None:
    archive = Archive()
    archive.add(f"{G}/", HTML.format("start").encode())
    archive.add(f"{G}/?_escaped_fragment_=/a", HTML.format("a").encode())
    saved = archive.save(tmp_path / "archive.warc.gz")
    listed = write_list(tmp_path / "list.txt", f"{G}/#!/a", f"{G}/#!/b", f"{G}/#top")
    run(listed, tmp_path / "out", "--replay", saved)
    assert {url: rule for url, (rule, _) in outcomes(tmp_path / "out").items()} == {
        f"{G}/#!/a": "",
        f"{G}/#!/b": "not_in_archive",
        f"{G}/": "",
    }


def test_of_several_captures_the_last_page_counts(tmp_path: Path) -> None:
    one, two = Archive(), Archive()
    one.add(f"{G}/x", HTML.format("first").encode())
    one.add(f"{G}/x", HTML.format("second").encode())
    two.add(f"{G}/x", b"busy", "503 Busy")
    two.add(f"{G}/x", status="302 Found", headers=(("Location", "/y"),))
    two.add(f"{G}/x", kind="revisit", WARC_Refers_To_Date=DATE)
    two.add(f"{G}/y", kind="revisit", WARC_Refers_To_Date=DATE)
    one.save(tmp_path / "archive" / "1.warc.gz")
    two.save(tmp_path / "archive" / "2.warc.gz")
    listed = write_list(tmp_path / "list.txt", f"{G}/x", f"{G}/y")
    run(listed, tmp_path / "out", "--replay", tmp_path / "archive")
    assert pages(tmp_path / "out") == {f"{G}/x": HTML.format("second").encode()}
    assert outcomes(tmp_path / "out")[f"{G}/y"] == ("revisit", DATE)

    (tmp_path / "none").write_bytes(b"")
    run(tmp_path / "none", tmp_path / "all", "--replay", tmp_path / "archive")
    rules = [(row["url"].removeprefix(G), row["rule"]) for row in log_rows(tmp_path / "all")]
    assert rules == [
        ("/x", "older_capture"),
        ("/x", ""),
        ("/x", "older_capture"),
        ("/x", "older_capture"),
        ("/x", "revisit"),
        ("/y", "revisit"),
    ]


def test_an_archive_that_answers_nothing_is_one_clear_line(
    crawled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = write_list(tmp_path / "list.txt", "http://other.test/a", "http://other.test/b")
    run(listed, tmp_path / "out", "--replay", crawled / "download", status=1)
    assert "none of the 2 URLs is in this archive" in capsys.readouterr().err
    (tmp_path / "a.jsonl").write_text("{}\n")
    run(listed, tmp_path / "out", "--replay", tmp_path / "a.jsonl", status=1)
    assert "holds no archive of a crawl" in capsys.readouterr().err
    (tmp_path / "b.warc").write_bytes(b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n")
    run(listed, tmp_path / "out", "--replay", tmp_path / "b.warc", status=1)
    assert "holds no HTTP response" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_compressed_as_a_whole_is_refused(
    crawled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = gzip.decompress((crawled / "download" / "segment-00000.warc.gz").read_bytes())
    (tmp_path / "whole.warc.gz").write_bytes(gzip.compress(data))
    run(crawled / "list.txt", tmp_path / "out", "--replay", tmp_path / "whole.warc.gz", status=1)
    assert "compress it record by record" in capsys.readouterr().err


def test_damage_costs_the_record_that_it_hits(crawled: Path, tmp_path: Path) -> None:
    file = tmp_path / "segment.warc.gz"
    data = bytearray().join(path.read_bytes() for path in sorted((crawled / "download").glob("segment-*")))
    whole = pages(crawled / "download")
    file.write_bytes(data)
    run(crawled / "list.txt", tmp_path / "whole", "--replay", file)
    assert pages(tmp_path / "whole") == whole
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data[: len(data) - 60])
    run(crawled / "list.txt", tmp_path / "out", "--replay", file)
    found = pages(tmp_path / "out")
    assert len(whole) - 2 <= len(found) < len(whole)
    assert all(whole[url] == body for url, body in found.items())


def test_a_changed_archive_makes_another_result(crawled: Path, tmp_path: Path) -> None:
    archive = Archive()
    listed = write_list(tmp_path / "list.txt", f"{G}/x")
    for text in ("one", "two"):
        archive.add(f"{G}/x", HTML.format(text).encode())
        file = archive.save(tmp_path / "a.warc.gz")
        run(listed, tmp_path / "out", "--replay", file, "--overwrite")
        assert text.encode() in pages(tmp_path / "out")[f"{G}/x"]


NO_PAGES = {"http_status": 2, "not_html": 1, "revisit": 1}


@pytest.mark.parametrize(
    ("archive", "pages_out", "rejected"),
    at_hand(
        ("warc/sample.warc.gz", 21, NO_PAGES),
        ("warc/sample.arc", 8, {}),
        ("warc-damaged/sample-flipped.warc.gz", 20, NO_PAGES | {"damaged_record": 1}),
        ("warc-damaged/sample-cut.warc.gz", 19, {"truncated_record": 1}),
        ("warc-damaged/sample-noise.warc.gz", 21, NO_PAGES),
        ("warc/aut-warc-example.warc.gz", 94, {"http_status": 47, "not_html": 120}),
        ("warc/commoncrawl-whirlwind.warc.gz", 1, {}),
        ("warc/copycat-cc-small-sample-1262850551027_8.arc", 8, {}),
        ("warc/copycat-snapshot-wayback-topic-02.warc.gz", 126, {"older_capture": 2}),
        ("warc/dolma-sample-0000.warc.gz", 22, {}),
        ("warc/pywb-dupes.warc.gz", 1, {"http_status": 1, "not_html": 1, "revisit": 9}),
        ("warc/resiliparse-warcfile.warc.gz", 16, {}),
    ),
)
def test_whole_archives_are_taken(archive: str, pages_out: int, rejected: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "none").write_bytes(b"")
    run(tmp_path / "none", tmp_path / "out", "--replay", find(archive))
    counts = Manifest.load(tmp_path / "out" / MANIFEST).counts
    assert (counts.rows_out, counts.rejected) == (pages_out, rejected)
    assert len(log_rows(tmp_path / "out")) == counts.rows_in
    check_with_warcio(tmp_path / "out" / "segment-00000.warc.gz")


def test_an_archive_that_is_not_there_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(write_list(tmp_path / "list", G), tmp_path / "out", "--replay", tmp_path / "nope.warc", status=1)
    assert "nope.warc: no such file" in capsys.readouterr().err


def test_an_archive_and_a_local_site_are_one_too_many(
    crawled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ("--replay", crawled / "download", "--local-site", crawled / "site")
    run(crawled / "list.txt", tmp_path / "out", *both, status=2)
    assert "download.replay, download.local_site: both would answer" in capsys.readouterr().err


def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    """600 pages of 200 kB are 120 MB."""
    program = """
import resource, sys
from pathlib import Path
from dataprep.download.replay import index_archive
from dataprep.download.outcomes import Fetched
from dataprep.download.warc_writer import pack
from pipelines.command import Part
def run(name, number):
    file = Path(sys.argv[1]) / f"{name}.warc.gz"
    head, date = "HTTP/1.1 200 OK\\r\\nContent-Type: text/html\\r\\n\\r\\n", "2026-01-01T00:00:00Z"
    with file.open("wb") as archive:
        for i in range(number):
            url, body = f"http://garden.test/{i}", b"<html>" + b"x" * 200_000
            archive.write(pack(Fetched(url=url, final_url=url, started=date, response_head=head, body=body)).members)
    assert index_archive(Part("archive-00000", (file,)), file.parent, 10_000_000).rows_out == number
run("warm", 20)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run("large", 600)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30, f"{done.stdout} MB"
