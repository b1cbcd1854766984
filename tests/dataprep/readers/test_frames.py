"""Records of any archive: where they stand, what is said of those that are lost, where reading can begin."""

import gzip
from pathlib import Path

import pytest

from dataprep.readers.frames import RawRecord, read_raw_records
from dataprep.readers.warc import WARC
from pipelines.errors import UserError
from tests.dataprep.archives import http, packed, response, small_records


def raw_records(
    folder: Path, data: bytes, limit: int = 10**5, start: int = 0, end: int | None = None
) -> list[RawRecord]:
    (folder / "a.warc").write_bytes(data)
    return list(read_raw_records(folder / "a.warc", WARC, limit, start, end))


def test_a_frame_says_where_it_stands_and_what_its_head_says(tmp_path: Path) -> None:
    records = small_records(3)
    for data, offset in ((b"".join(records), len(records[0])), (packed(records), len(packed(records[:1])))):
        found = raw_records(tmp_path, data)[1]
        assert (found.location, found.offset) == (f"a.warc at byte {offset}", offset)
        assert found.head
        assert found.head.fields["warc-target-uri"] == "http://a.test/1"
        assert found.head.length == len(found.content)
    inside = raw_records(tmp_path, gzip.compress(b"".join(records)))[1]
    assert inside.offset is None
    assert inside.location == f"a.warc at byte 0 ({len(records[0])} bytes into what is compressed there)"


def test_a_range_holds_the_records_that_begin_in_it(tmp_path: Path) -> None:
    data = packed(small_records(6))
    offsets = [record.offset for record in raw_records(tmp_path, data)]
    assert [record.offset for record in raw_records(tmp_path, data, 10**5, offsets[2] or 0, offsets[4])] == offsets[2:4]


def test_what_is_lost_is_said(tmp_path: Path) -> None:
    records = small_records(3)
    cases = [
        (records[0] + b"garbage" + records[1], "damaged_record", "bytes that are no record"),
        (records[0] + records[1][:-50], "truncated_record", "48 of 94 bytes"),
        (records[0] + b"WARC/1.0\r\nWARC-Type: x", "truncated_record", "the head of a record has no end"),
        (records[0] + b"WARC/1.0\r\nWARC-Type: x\r\n\r\n", "truncated_record", "the head has no Content-Length"),
        (packed(records[:2])[:-3], "truncated_record", "94 bytes: the compressed data are cut off"),
        (packed(records[:2])[:-3] + packed(records[2:]), "damaged_record", "94 bytes: Error -3 while decompressing"),
        (packed(records[:1]) + b"\x1f\x8b" * 50, "damaged_record", "unknown compression method"),
    ]
    for data, rule, value in cases:
        lost = [record for record in raw_records(tmp_path, data) if record.rule]
        assert len(lost) == 1, value
        assert lost[0].rule == rule, value
        assert value in lost[0].value, lost[0].value


def test_many_wrong_lengths_in_one_member_are_found_without_end(tmp_path: Path) -> None:
    """Each could hide all that follows; a compressed file is not decompressed again for every one of them."""
    wrong = response("http://a.test/wrong", http(b"<p>x"), Content_Length="1000000000")
    found = raw_records(tmp_path, gzip.compress(wrong * 500 + b"".join(small_records(5))))
    assert [record.rule for record in found] == ["damaged_record"] * 500 + [""] * 5


def test_a_file_of_another_kind_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.warc: not a readable WARC file \(bytes that are no record\)"):
        raw_records(tmp_path, b"%PDF-1.7\n" * 1000)
