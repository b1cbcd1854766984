"""Segments and fetch log of a plan: every outcome in its place, every byte from the store as it is."""

import gzip
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator, WarcRecordType

from dataprep.download.fetch_store import FetchStore
from dataprep.download.outcomes import Fetched, Outcome
from dataprep.download.segments import FETCH_LOG_SCHEMA, PlanReader, plan_line, write_fetch_log, write_segment
from dataprep.download.warc_writer import pack, warcinfo
from pipelines.command import Part
from pipelines.documents import read_rows
from pipelines.errors import UserError

DATE = "2026-01-31T12:00:00Z"


def page(number: int) -> Fetched:
    url = f"http://garden.test/{number}"
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    return Fetched(
        url=url, final_url=url, status=200, started=DATE, response_head=head, body=b"<html>%d" % number * 500
    )


def failed(number: int, *, transient: bool = False) -> Fetched:
    return Fetched(url=f"http://garden.test/{number}", rule="http_status", value="500", transient=transient)


OUTCOMES = [page(1), failed(2), page(3), failed(4, transient=True)]
DUPLICATE = Outcome(url="http://garden.test/1#again", rule="duplicate", value="http://garden.test/1")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan over a store: the outcomes backwards, then a line of the list that was never asked for."""
    with FetchStore(tmp_path / "store", "r", "s") as store:
        refs = [store.append(pack(fetched)) for fetched in OUTCOMES]
    file = tmp_path / "segment-00000.jsonl"
    file.write_bytes(b"".join(plan_line(entry) for entry in [*reversed(refs), DUPLICATE]))
    return file


def test_a_segment_is_warcinfo_and_the_members_of_its_pages(plan: Path, tmp_path: Path) -> None:
    counts = write_segment(Part("segment-00000", (plan,)), tmp_path, str(tmp_path / "store"), 10**9)
    assert (counts.rows_in, counts.rows_out) == (5, 2)
    assert counts.rejected == {"http_status": 2, "duplicate": 1}
    assert counts.totals == {"transient": 1, "page_bytes": 2 * 7 * 500}
    expected = [warcinfo("segment-00000.warc.gz", DATE), *(pack(page(i)).members for i in (3, 1))]
    assert (tmp_path / "segment-00000.warc.gz").read_bytes() == b"".join(expected)
    rejected = list(read_rows(tmp_path / "rejected" / "segment-00000.parquet"))
    assert [(row["url"][-1], row["rule"]) for row in rejected] == [
        ("4", "http_status"),
        ("2", "http_status"),
        ("n", "duplicate"),
    ]


def test_a_range_that_is_too_large_for_one_file_goes_on_in_the_next(plan: Path, tmp_path: Path) -> None:
    size = len(pack(page(1)).members)
    write_segment(Part("segment-00000", (plan,)), tmp_path, str(tmp_path / "store"), size + 500)
    files = sorted(tmp_path.glob("*.warc.gz"))
    assert [file.name for file in files] == ["segment-00000.warc.gz", "segment-00000_0001.warc.gz"]
    targets = [
        record.headers["WARC-Target-URI"]
        for file in files
        for record in ArchiveIterator(str(file), record_types=WarcRecordType.response, fsspec_args=False)
    ]
    assert targets == [page(3).url, page(1).url], "in the order of the list"
    assert all(gzip.decompress(file.read_bytes()).startswith(b"WARC/1.1\r\nWARC-Type: warcinfo") for file in files)


def test_a_range_without_pages_has_an_empty_segment(tmp_path: Path) -> None:
    plan = tmp_path / "plan.jsonl"
    plan.write_bytes(plan_line(DUPLICATE))
    counts = write_segment(Part("segment-00007", (plan,)), tmp_path, str(tmp_path / "store"), 1)
    assert (counts.rows_in, counts.rows_out) == (1, 0)
    assert (tmp_path / "segment-00007.warc.gz").read_bytes() == b""


def test_the_fetch_log_has_a_row_for_every_url(plan: Path, tmp_path: Path) -> None:
    counts = write_fetch_log(Part("fetch-00000", (plan,)), tmp_path, str(tmp_path / "store"), "")
    rows = list(read_rows(tmp_path / "fetch-00000.parquet"))
    assert counts.rows_out == 5
    assert list(rows[0]) == FETCH_LOG_SCHEMA.names
    assert [row["rule"] for row in rows] == ["http_status", "", "http_status", "", "duplicate"]
    assert [row["bytes"] for row in rows] == [0, 3500, 0, 3500, 0]
    assert [row["sha256"] for row in rows] == [
        bytes.fromhex(pack(fetched).outcome.sha256) or None for fetched in reversed(OUTCOMES)
    ] + [None]


def test_the_log_is_made_from_the_outcomes_alone(plan: Path, tmp_path: Path) -> None:
    """Damage in a page is found by who reads the page, and not by who only wants to know of it."""
    log = tmp_path / "store" / "fetch-00000.log"
    members = pack(page(1)).members
    log.write_bytes(log.read_bytes().replace(members, members[:-1] + b"?"))
    write_fetch_log(Part("fetch-00000", (plan,)), tmp_path, str(tmp_path / "store"), "")
    with pytest.raises(UserError, match="is damaged"):
        write_segment(Part("segment-00000", (plan,)), tmp_path, str(tmp_path / "store"), 10**9)


def test_a_plan_may_name_more_logs_than_are_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataprep.download.segments._OPEN_LOGS", 2)
    refs = []
    for number in range(5):
        with FetchStore(tmp_path / "store", "r", str(number)) as store:
            refs.append(store.append(pack(page(number))))
    plan = tmp_path / "plan.jsonl"
    plan.write_bytes(b"".join(plan_line(ref) for ref in refs * 2))
    with PlanReader(tmp_path / "store") as reader:
        found = [outcome.url for outcome in reader.outcomes(plan)]
    assert found == [page(number).url for number in range(5)] * 2
