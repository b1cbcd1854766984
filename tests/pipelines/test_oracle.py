"""Oracles: which rows a library checks, and what a difference does, by its version."""

import logging
import re
from pathlib import Path

import pyarrow as pa
import pytest

from pipelines import oracle
from pipelines.errors import UserError
from pipelines.manifest import Counts

IDS = [number.to_bytes(16, "big") for number in range(20_000)]


def test_the_proven_versions_are_those_that_the_tests_run_with() -> None:
    pinned = dict(
        re.findall(r"(?m)^([\w.-]+)==(\S+)$", Path(__file__).parents[2].joinpath("constraints.txt").read_text())
    )
    assert {name: pinned[name] for name in oracle.PROVEN} == oracle.PROVEN
    assert all(map(oracle.is_proven, oracle.PROVEN))


def test_the_first_rows_are_checked_and_a_share_of_the_others_by_their_ids() -> None:
    sample = oracle.Sample(first=2, one_in=100)
    taken = [doc_id for doc_id in IDS if sample.takes(doc_id)]
    assert taken[:2] == IDS[:2]
    assert 150 < len(taken) < 250
    again = oracle.Sample(first=0, one_in=100)
    assert {doc_id for doc_id in reversed(IDS) if again.takes(doc_id)} | {*IDS[:2]} == {*taken}
    assert not again.takes(None)


def test_a_column_of_ids_is_sampled_as_its_rows_are_one_by_one() -> None:
    ids = [None if number % 50 == 7 else doc_id for number, doc_id in enumerate(IDS)]
    one_by_one, by_columns = oracle.Sample(first=20, one_in=100), oracle.Sample(first=20, one_in=100)
    expected = [row for row, doc_id in enumerate(ids) if one_by_one.takes(doc_id)]
    column = pa.array(ids, pa.binary(16))
    pieces = [(start, column.slice(start, 1024)) for start in range(0, len(ids), 1024)]
    assert [start + row for start, piece in pieces for row in by_columns.rows(piece)] == expected


def test_a_difference_from_the_proven_version_is_an_error_with_document_and_version() -> None:
    counts = Counts()
    name = oracle.name_of(IDS[10], "http://a.test/")
    oracle.compare(counts, "ftfy", equal=True, row=name, what="the repaired text")
    with pytest.raises(UserError, match=r"^document 0{31}a \(http://a.test/\): the repaired text .* ftfy 6.3.1 gives"):
        oracle.compare(counts, "ftfy", equal=False, row=name, what="the repaired text")


def test_another_version_is_said_and_its_differences_are_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(oracle, "installed", lambda library: "7.0")
    counts = Counts()
    for equal in (True, False, True):
        oracle.compare(counts, "ftfy", equal=equal, row="a document", what="the repaired text")
    with caplog.at_level(logging.WARNING):
        stats = oracle.report("clean", ("ftfy", "langdetect"), counts)
    assert stats == {"ftfy": {"version": "7.0", "checked": 3, "different": 1}}
    assert "ftfy is 7.0, equal results are proven for 6.3.1: of 3 checked rows, 1 differ" in caplog.text
    assert counts.totals == {}
