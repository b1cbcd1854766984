"""WARC and ARC files, whole and broken in every way: each record comes out, or has its reason."""

import gzip
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import zstandard
from fastwarc.warc import ArchiveIterator, WarcRecordType
from warcio.archiveiterator import ArchiveIterator as WarcioIterator

from dataprep.readers.records import Broken, Page, Record, Skipped, Text
from dataprep.readers.warc import read_arc, read_warc
from pipelines.errors import UserError
from tests.dataprep.archives import arc_record, http, packed, record, response, small_records
from tests.samples import at_hand, find, real_files

LIMIT = 10**6
DAMAGE = ("damaged_record", "truncated_record")


def zstd_frames(records: Sequence[bytes]) -> bytes:
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    return b"".join(compressor.compress(each) for each in records)


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[i : i + size] for i in range(0, len(data), size)]


FORMS: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "plain": b"".join,
    "gzip": packed,
    "zstd": zstd_frames,
    "one_gzip_member": lambda records: gzip.compress(b"".join(records), mtime=0),
    "gzip_members_at_odd_places": lambda records: packed(pieces_of(b"".join(records), 333)),
}


def read(folder: Path, data: bytes, name: str = "a.warc", **options: int) -> list[Record]:
    (folder / name).write_bytes(data)
    return list(read_warc(folder / name, options.get("limit", LIMIT)))


def rules(records: Sequence[Record]) -> list[str]:
    return [each.rule for each in records if isinstance(each, Broken)]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_file_gives_the_same_records(form: str, tmp_path: Path) -> None:
    records = small_records(12)
    found = read(tmp_path, FORMS[form](records))
    assert [each.url for each in found if isinstance(each, Page)] == [f"http://a.test/{i}" for i in range(12)]
    assert found == read(tmp_path, b"".join(records))
    assert isinstance(found[3], Page)
    assert (found[3].body[:14], found[3].content_type) == (b"<p>page 3</p>.", "text/html")


@pytest.mark.parametrize("form", FORMS)
def test_a_file_cut_anywhere_gives_what_is_whole_and_one_reason(form: str, tmp_path: Path) -> None:
    records = small_records(4)
    data, whole = FORMS[form](records), read(tmp_path, b"".join(records))
    ends = {len(FORMS[form](records[:i])) for i in range(5)} if form != "one_gzip_member" else {len(data)}
    for size in range(1, len(data)):
        try:
            found = read(tmp_path, data[:size])
        except UserError:
            assert size < len(FORMS[form](records[:1])), "only a file that ends in its first record is no archive"
            continue
        good = [each for each in found if isinstance(each, Page)]
        assert good == whole[: len(good)], size
        assert len(found) - len(good) <= 1, (size, found)
        if size not in ends and form not in ("plain", "gzip_members_at_odd_places"):
            assert set(rules(found)) <= {*DAMAGE}, size
            assert len(rules(found)) == 1, (size, found)


@pytest.mark.parametrize("form", ["gzip", "zstd"])
def test_a_flipped_bit_costs_one_record(form: str, tmp_path: Path) -> None:
    records = small_records(6)
    data, whole = FORMS[form](records), read(tmp_path, b"".join(records))
    chance = random.Random(1)
    for _ in range(400):
        position = chance.randrange(len(data))
        damaged = bytearray(data)
        damaged[position] ^= 1 << chance.randrange(8)
        found = read(tmp_path, bytes(damaged), f"a.warc.{'gz' if form == 'gzip' else 'zst'}")
        good = [each for each in found if not isinstance(each, Broken)]
        assert len(good) >= 5, position
        assert [each for each in good if each not in whole] == [], position
        assert len(good) == 6 or len(rules(found)) == 1, position


@pytest.mark.parametrize("form", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("size", [1, 40, 3000, 300_000])
def test_bytes_between_records_cost_no_record(form: str, size: int, tmp_path: Path) -> None:
    records = small_records(5)
    pieces = [FORMS[form]([each]) for each in records]
    garbage = random.Random(2).randbytes(size).replace(b"\x1f\x8b", b"..").replace(b"\n", b".")
    found = read(tmp_path, b"".join(pieces[:2]) + garbage + b"".join(pieces[2:]))
    assert [each for each in found if isinstance(each, Page)] == read(tmp_path, b"".join(records))
    broken = [each for each in found if isinstance(each, Broken)]
    assert [each.rule for each in broken] == ["damaged_record"]
    assert broken[0].url == f"a.warc at byte {len(pieces[0] + pieces[1])}"


def test_zeros_at_the_end_of_a_compressed_file_are_padding(tmp_path: Path) -> None:
    assert len(read(tmp_path, packed(small_records(3)) + b"\0" * 70_000)) == 3


@pytest.mark.parametrize("form", ["plain", "gzip", "one_gzip_member", "zstd"])
@pytest.mark.parametrize("length", ["5", "-1", "", "many", "300", "200000", str(10**9), str(10**18), "9" * 100])
def test_a_wrong_length_costs_its_own_record(form: str, length: str, tmp_path: Path) -> None:
    records = small_records(6)
    wrong = response("http://a.test/wrong", http(b"<p>a page</p>"), Content_Length=length)
    found = read(tmp_path, FORMS[form]([*records[:3], wrong, *records[3:]]))
    assert [each for each in found if isinstance(each, Page)] == read(tmp_path, b"".join(records))
    assert rules(found) == ["damaged_record"]
    assert [each.url for each in found if isinstance(each, Broken)] == ["http://a.test/wrong"]


@pytest.mark.parametrize("form", ["plain", "gzip", "one_gzip_member", "zstd"])
def test_a_large_record_is_passed_over_without_being_held(form: str, tmp_path: Path) -> None:
    records = small_records(4)
    # An archive within the archive: its records are no records of this file.
    inner = b"".join(records) + b" " * 3 * LIMIT
    large = response("http://a.test/large", http(inner))
    found = read(tmp_path, FORMS[form]([records[0], large, records[1]]))
    assert [type(each) for each in found] == [Page, Broken, Page]
    assert rules(found) == ["too_large"]


def test_a_bomb_is_passed_over(tmp_path: Path) -> None:
    bomb = gzip.compress(response("http://a.test/bomb", http(b" " * 50 * LIMIT)), 9)
    found = read(tmp_path, packed(small_records(1)) + bomb + packed(small_records(2)))
    assert rules(found) == ["too_large"]
    assert len(found) == 4


@pytest.mark.parametrize(
    "head",
    [
        b"WARC/1.0\r\n" + b"a: b\r\n" * 100_000,
        b"WARC/1.0\r\na: " + b"b" * 1_000_000,
        b"WARC/1.0\r\n" * 50_000,
        b"x: WARC/1.0\r\n" * 50_000,
        b"WARC/1.0\r\n\r\n" * 2000,
    ],
    ids=["many_fields", "long_field", "many_starts", "starts_in_fields", "empty_heads"],
)
@pytest.mark.parametrize("form", ["plain", "one_gzip_member"])
def test_a_head_without_an_end_is_given_up(form: str, head: bytes, tmp_path: Path) -> None:
    records = small_records(2)
    found = read(tmp_path, FORMS[form]([records[0], head + b"\r\n", records[1]]))
    assert [each for each in found if isinstance(each, Page)] == read(tmp_path, b"".join(records))
    assert set(rules(found)) == {"damaged_record"}


@pytest.mark.parametrize("form", ["plain", "gzip"])
def test_ten_thousand_records_are_read_in_order(form: str, tmp_path: Path) -> None:
    one = record("resource", "http://a.test/", b"<p>x</p>", "text/html")
    data = FORMS[form]([one]) * 10_000
    (tmp_path / "a.warc").write_bytes(data)
    assert sum(isinstance(each, Page) for each in read_warc(tmp_path / "a.warc", LIMIT)) == 10_000


def test_a_zstd_file_with_a_dictionary_is_read(tmp_path: Path) -> None:
    records = small_records(40)
    dictionary = zstandard.train_dictionary(2000, [*records * 5])
    frames = zstandard.ZstdCompressor(dict_data=dictionary)
    for stored in (dictionary.as_bytes(), zstandard.compress(dictionary.as_bytes())):
        head = b"\x5d\x2a\x4d\x18" + len(stored).to_bytes(4, "little") + stored
        data = head + b"".join(frames.compress(each) for each in records)
        assert read(tmp_path, data, "a.warc.zst") == read(tmp_path, b"".join(records))


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"this is no archive\n" * 100, "a.warc"),
        (gzip.compress(b"this is no archive\n" * 100), "a.warc.gz"),
        (b"\x1f\x8b\x08", "a.warc.gz"),
        (b"\x28\xb5\x2f\xfd", "a.warc.zst"),
        (b"<html></html>", "a.warc"),
        (b"<html></html>", "a.warc.gz"),
        (b"\0" * 1000, "a.warc"),
    ],
)
def test_what_is_no_archive_is_an_error(data: bytes, name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a readable WARC file"):
        read(tmp_path, data, name)


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    assert read(tmp_path, b"", "a.warc.gz") == []


def test_the_kinds_of_records(tmp_path: Path) -> None:
    whole = "".join(map(chr, range(0x20, 0x250)))
    data = b"".join(
        [
            record("warcinfo", "", b"software: x\r\n", "application/warc-fields"),
            record("request", "http://a.test/", b"GET / HTTP/1.1\r\n\r\n", "application/http; msgtype=request"),
            record("metadata", "http://a.test/", b"{}", "application/json"),
            record("strange kind", "http://a.test/", b"", "text/html"),
            record("conversion", "<HTTP://A.test/text?utm_source=x>", whole.encode(), "text/plain"),
            record("conversion", "http://a.test/latin", "Müller".encode("latin-1"), "text/plain"),
            record("conversion", "http://a.test/empty", b" \n", "text/plain"),
            record("conversion", "http://a.test/html", b"<p>x</p>", "text/html; charset=utf-8"),
            record("resource", "http://a.test/resource", b"<p>x</p>", "text/html"),
            record("response", "dns:a.test", b"a.test 1.2.3.4", "text/dns"),
            record("revisit", "http://a.test/again", http(b""), "application/http", WARC_Refers_To_Date="2014"),
            response("http://a.test/cut", http(b"<p>x"), WARC_Truncated="length"),
            response("http://a.test/segment", http(b"<p>x"), WARC_Segment_Number="1"),
            response("http://a.test/404", http(b"<p>x", status="404 Not Found")),
            response("http://a.test/big", http(b"<p>x" * 30_000)),
        ]
    )
    found = read(tmp_path, data, limit=100_000)
    assert found == [
        Skipped("warcinfo"),
        Skipped("request"),
        Skipped("metadata"),
        Skipped("unknown"),
        Text("http://a.test/text", whole),
        Broken("http://a.test/latin", "invalid_utf8", "not valid UTF-8 at byte 1"),
        Broken("http://a.test/empty", "empty_text", "record of 2 bytes"),
        Page("http://a.test/html", b"<p>x</p>", "text/html; charset=utf-8", "utf-8"),
        Page("http://a.test/resource", b"<p>x</p>", "text/html"),
        Page("dns:a.test", b"a.test 1.2.3.4", "text/dns"),
        Broken("http://a.test/again", "revisit", "2014"),
        Broken("http://a.test/cut", "truncated_record", "length"),
        Broken("http://a.test/segment", "truncated_record", "1"),
        Broken("http://a.test/404", "http_status", "404"),
        Broken("http://a.test/big", "too_large", "more than 100000 bytes"),
    ]


@pytest.mark.parametrize("archive", at_hand(("warc/sample.warc.gz",), *real_files("warc/*.warc.gz")))
def test_bodies_are_what_fastwarc_reads(archive: str) -> None:
    path = find(archive)
    wanted = WarcRecordType.response | WarcRecordType.resource
    with path.open("rb") as file:
        archive = ArchiveIterator(file, record_types=wanted, parse_http=True, auto_decode="all")
        theirs = [
            each.reader.read() for each in archive if not each.is_http or each.http_headers.status_code in (200, 203)
        ]
    found = list(read_warc(path, 10**7))
    assert [each.body for each in found if isinstance(each, Page)] == theirs
    assert [each for each in found if isinstance(each, Broken) and each.rule in DAMAGE] == []


@pytest.mark.parametrize(("damage", "lost"), [("flipped", {9}), ("cut", {19, 20}), ("noise", set())])
def test_of_a_damaged_archive_all_other_pages_are_read(damage: str, lost: set[int]) -> None:
    """The sample has 20 pages from its sites, and one more at its end."""
    whole = [each for each in read_warc(find("warc/sample.warc.gz"), LIMIT) if isinstance(each, Page)]
    pages = [each for each in whole if "text/html" in (each.content_type or "")]
    assert len(pages) == 21
    found = list(read_warc(find(f"warc-damaged/sample-{damage}.warc.gz"), LIMIT))
    expected = [each for number, each in enumerate(pages) if number not in lost]
    assert [each for each in found if isinstance(each, Page) and each in pages] == expected
    assert [each for each in found if isinstance(each, Page) and each not in whole] == []
    assert [rule for rule in rules(found) if rule in DAMAGE] == [DAMAGE[damage == "cut"]]


def test_invented_types_of_records_are_counted_together(tmp_path: Path) -> None:
    """Or a hostile archive would make as many counters as it has records."""
    names = ("metadata", "alpha", "beta", "ünter")
    (tmp_path / "a.warc").write_bytes(b"".join(record(name, "http://a.test/", b"x", "text/plain") for name in names))
    kinds = [each.kind for each in read_warc(tmp_path / "a.warc", 1000) if isinstance(each, Skipped)]
    assert kinds == ["metadata", "unknown", "unknown", "unknown"]


FILEDESC = (
    b"filedesc://x.arc.gz 0.0.0.0 20100106234911 text/plain 73\n"
    b"1 0 CommonCrawl\nURL IP-address Archive-date Content-type Archive-length\n\n"
)
ARC_PAGES = [arc_record(f"http://a.test/{i}", http(b"<p>page %d</p>" % i + b"." * 37 * i)) for i in range(6)]


def read_arc_bytes(folder: Path, data: bytes, name: str = "a.arc") -> list[Record]:
    (folder / name).write_bytes(data)
    return list(read_arc(folder / name, 10**6))


@pytest.mark.parametrize("compressed", [False, True])
def test_the_records_come_in_order(compressed: bool, tmp_path: Path) -> None:
    records = [FILEDESC, *ARC_PAGES]
    found = read_arc_bytes(
        tmp_path, b"".join(gzip.compress(each) for each in records) if compressed else b"".join(records)
    )
    assert found[0] == Skipped("filedesc")
    assert [each.url for each in found[1:] if isinstance(each, Page)] == [f"http://a.test/{i}" for i in range(6)]
    assert found[1] == Page("http://a.test/0", b"<p>page 0</p>", "text/html")


def test_lines_of_version_2_and_types_with_spaces_are_read(tmp_path: Path) -> None:
    block = http(b"<p>x</p>")
    second = b"http://a.test/2 192.0.2.1 20091121004501 text/html 200 - - 1234 x.arc.gz %d\n" % len(block)
    spaces = b"http://a.test/a page 2001:db8::1 20091121004501 text/html; charset=utf-8 %d\n" % len(block)
    found = read_arc_bytes(tmp_path, FILEDESC + second + block + b"\n" + spaces + block + b"\n")
    assert [type(each) for each in found] == [Skipped, Page, Page]


def test_what_is_no_page_has_its_reason(tmp_path: Path) -> None:
    data = (
        FILEDESC
        + arc_record("dns:a.test", b"a.test 1.2.3.4", "text/dns")
        + arc_record("http://a.test/404", http(b"", status="404 Gone"))
        + arc_record("http://a.test/x", b"words")
        + arc_record("http://a.test/big", http(b"<p>" * 400_000))
    )
    found = read_arc_bytes(tmp_path, data)
    assert found[1] == Page("dns:a.test", b"a.test 1.2.3.4", "text/dns")
    assert [(each.url, each.rule) for each in found if isinstance(each, Broken)] == [
        ("http://a.test/404", "http_status"),
        ("http://a.test/x", "invalid_http"),
        ("http://a.test/big", "too_large"),
    ]


@pytest.mark.parametrize("length", [3, 200, 50_000, 10**9])
def test_a_wrong_length_in_an_arc_file_costs_its_own_record(length: int, tmp_path: Path) -> None:
    wrong = arc_record("http://a.test/wrong", http(b"<p>one</p>\n<p>two</p>"), length=length)
    found = read_arc_bytes(tmp_path, b"".join([FILEDESC, *ARC_PAGES[:3], wrong, *ARC_PAGES[3:]]))
    assert [each for each in found if isinstance(each, Page)] == read_arc_bytes(
        tmp_path, b"".join([FILEDESC, *ARC_PAGES])
    )[1:]
    assert [(each.url, each.rule) for each in found if isinstance(each, Broken)] == [
        ("http://a.test/wrong", "damaged_record")
    ]


def test_a_file_cut_anywhere_gives_what_is_whole(tmp_path: Path) -> None:
    data = FILEDESC + b"".join(ARC_PAGES)
    whole = read_arc_bytes(tmp_path, data)
    for size in range(len(FILEDESC) + 1, len(data)):
        found = read_arc_bytes(tmp_path, data[:size])
        good = [each for each in found if not isinstance(each, Broken)]
        assert good == whole[: len(good)], size
        assert len(found) - len(good) <= 1, size


def test_a_damaged_member_costs_its_own_record(tmp_path: Path) -> None:
    members = [gzip.compress(each) for each in [FILEDESC, *ARC_PAGES]]
    members[3] = members[3][:40] + b"\xff" * 10 + members[3][50:]
    found = read_arc_bytes(tmp_path, b"".join(members), "a.arc.gz")
    assert [each.url for each in found if isinstance(each, Page)] == [f"http://a.test/{i}" for i in (0, 1, 3, 4, 5)]
    assert [each.rule for each in found if isinstance(each, Broken)] == ["damaged_record"]


def test_a_warc_file_is_no_arc_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a readable ARC file"):
        read_arc_bytes(tmp_path, b"WARC/1.0\r\nWARC-Type: warcinfo\r\nContent-Length: 0\r\n\r\n\r\n\r\n")


@pytest.mark.parametrize(
    ("archive", "hosts"),
    at_hand(
        ("warc/sample.arc", {"harbour.test", "kitchen.test"}),
        ("warc/copycat-cc-small-sample-1262850551027_8.arc", {"www.coursehero.com"}),
    ),
)
def test_a_whole_file_is_read_to_its_last_byte(archive: str, hosts: set[str]) -> None:
    found = list(read_arc(find(archive), 10**7))
    pages = [each for each in found if isinstance(each, Page)]
    assert (len(found), len(pages)) == (9, 8)
    assert {each.url.split("/")[2] for each in pages} == hosts
    assert all(each.body.rstrip().endswith(b"</html>") for each in pages)


def test_bodies_are_what_warcio_reads() -> None:
    file = find("warc/sample.arc")
    ours = [(each.url, each.body) for each in read_arc(file, 10**7) if isinstance(each, Page)]
    with file.open("rb") as stream:
        theirs = [
            (each.rec_headers["WARC-Target-URI"], each.content_stream().read())
            for each in WarcioIterator(stream, arc2warc=True)
            if each.rec_type == "response"
        ]
    assert ours == theirs
