"""ARC files: the archives before WARC, plain and compressed, damaged and with what real ones hold."""

import gzip
from pathlib import Path

import pytest

from dataprep.sources.arc_reader import read_arc
from dataprep.sources.records import Broken, Page, Record, Skipped
from pipelines.errors import UserError
from tests.dataprep.archives import arc_record, http

WARCS = Path(__file__).parents[4] / "shared" / "data" / "warc"
FIRST = (
    b"filedesc://x.arc.gz 0.0.0.0 20100106234911 text/plain 73\n"
    b"1 0 CommonCrawl\nURL IP-address Archive-date Content-type Archive-length\n\n"
)
PAGES = [arc_record(f"http://a.test/{i}", http(b"<p>page %d</p>" % i + b"." * 37 * i)) for i in range(6)]


def read(folder: Path, data: bytes, name: str = "a.arc") -> list[Record]:
    (folder / name).write_bytes(data)
    return list(read_arc(folder / name, 10**6))


@pytest.mark.parametrize("compressed", [False, True])
def test_the_records_come_in_order(compressed: bool, tmp_path: Path) -> None:
    records = [FIRST, *PAGES]
    found = read(tmp_path, b"".join(gzip.compress(each) for each in records) if compressed else b"".join(records))
    assert found[0] == Skipped("filedesc")
    assert [each.url for each in found[1:] if isinstance(each, Page)] == [f"http://a.test/{i}" for i in range(6)]
    assert found[1] == Page("http://a.test/0", b"<p>page 0</p>", "text/html")


def test_lines_of_version_2_and_types_with_spaces_are_read(tmp_path: Path) -> None:
    block = http(b"<p>x</p>")
    second = b"http://a.test/2 192.0.2.1 20091121004501 text/html 200 - - 1234 x.arc.gz %d\n" % len(block)
    spaces = b"http://a.test/a page 2001:db8::1 20091121004501 text/html; charset=utf-8 %d\n" % len(block)
    found = read(tmp_path, FIRST + second + block + b"\n" + spaces + block + b"\n")
    assert [type(each) for each in found] == [Skipped, Page, Page]


def test_what_is_no_page_has_its_reason(tmp_path: Path) -> None:
    data = (
        FIRST
        + arc_record("dns:a.test", b"a.test 1.2.3.4", "text/dns")
        + arc_record("http://a.test/404", http(b"", status="404 Gone"))
        + arc_record("http://a.test/x", b"words")
        + arc_record("http://a.test/big", http(b"<p>" * 400_000))
    )
    found = read(tmp_path, data)
    assert found[1] == Page("dns:a.test", b"a.test 1.2.3.4", "text/dns")
    assert [(each.url, each.rule) for each in found if isinstance(each, Broken)] == [
        ("http://a.test/404", "http_status"),
        ("http://a.test/x", "invalid_http"),
        ("http://a.test/big", "too_large"),
    ]


@pytest.mark.parametrize("length", [3, 200, 50_000, 10**9])
def test_a_wrong_length_costs_its_own_record(length: int, tmp_path: Path) -> None:
    wrong = arc_record("http://a.test/wrong", http(b"<p>one</p>\n<p>two</p>"), length=length)
    found = read(tmp_path, b"".join([FIRST, *PAGES[:3], wrong, *PAGES[3:]]))
    assert [each for each in found if isinstance(each, Page)] == read(tmp_path, b"".join([FIRST, *PAGES]))[1:]
    assert [(each.url, each.rule) for each in found if isinstance(each, Broken)] == [
        ("http://a.test/wrong", "damaged_record")
    ]


def test_a_file_cut_anywhere_gives_what_is_whole(tmp_path: Path) -> None:
    data = FIRST + b"".join(PAGES)
    whole = read(tmp_path, data)
    for size in range(len(FIRST) + 1, len(data)):
        found = read(tmp_path, data[:size])
        good = [each for each in found if not isinstance(each, Broken)]
        assert good == whole[: len(good)], size
        assert len(found) - len(good) <= 1, size


def test_a_damaged_member_costs_its_own_record(tmp_path: Path) -> None:
    members = [gzip.compress(each) for each in [FIRST, *PAGES]]
    members[3] = members[3][:40] + b"\xff" * 10 + members[3][50:]
    found = read(tmp_path, b"".join(members), "a.arc.gz")
    assert [each.url for each in found if isinstance(each, Page)] == [f"http://a.test/{i}" for i in (0, 1, 3, 4, 5)]
    assert [each.rule for each in found if isinstance(each, Broken)] == ["damaged_record"]


def test_a_warc_file_is_no_arc_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a readable ARC file"):
        read(tmp_path, b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n")


@pytest.mark.skipif(not WARCS.exists(), reason="needs the real archives in ../shared/data/warc")
def test_a_real_file_is_read_to_its_last_byte() -> None:
    found = list(read_arc(WARCS / "copycat-cc-small-sample-1262850551027_8.arc", 10**7))
    pages = [each for each in found if isinstance(each, Page)]
    assert (len(found), len(pages)) == (9, 8)
    assert {each.url.split("/")[2] for each in pages} == {"www.coursehero.com"}
    assert all(each.body.rstrip().endswith(b"</html>") for each in pages)
