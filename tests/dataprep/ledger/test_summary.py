"""The summary of a ledger: counts that add up, equal examples each time, and values beside their threshold."""

import random
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataprep.ledger.measures import BINS, histogram, histograms, measure
from dataprep.ledger.summary import Smallest, Sums, fetch_days, length_bin
from dataprep.ledger.texts import read_texts
from pipelines.documents import DOCUMENT_SCHEMA, TableWriter


def row(offset: int, **values: Any) -> dict[str, Any]:
    usual = {"doc_id": f"{offset:032x}", "url": f"http://x.test/{offset}", "domain": "x.test", "fate": "rejected"}
    usual |= {"stage": "clean", "rule": "r", "value": "1", "threshold": None, "number": None, "language": None}
    return {**usual, "characters": None, "url_date": None, "shard": "s", "offset": offset, **values}


def test_examples_do_not_depend_on_the_order_of_the_rows() -> None:
    rows = [row(i) for i in range(200)]
    shuffled = random.Random(7).sample(rows, len(rows))
    first, second = Smallest(5), Smallest(5)
    for one, other in zip(rows, shuffled, strict=True):
        first.offer(one)
        second.offer(other)
    assert first.rows() == second.rows()
    assert len(first.rows()) == 5


def test_rows_are_counted_by_fate_rule_length_domain_and_year() -> None:
    sums = Sums()
    sums.add(row(1, fate="train", stage="split", rule="", characters=1000, url_date="2020-05"))
    sums.add(row(2, characters=40, number=3.5, threshold="at least 4", language="de", url_date="2019"))
    sums.add(row(3, domain=None))
    assert sums.fates == {"train": 1, "rejected": 2}
    rule = sums.rules["clean", "r"]
    assert (rule.rows, rule.threshold, list(rule.numbers)) == (2, "at least 4", [3.5])
    assert (sums.lengths[True], sums.lengths[False]) == ({length_bin(1000): 1}, {length_bin(40): 1})
    assert (sums.dates[True], sums.dates[False]) == ({"2020": 1}, {"2019": 1})
    assert (sums.domains[False], sums.languages) == ({"x.test": 1}, {"de": 1})


@pytest.mark.parametrize("characters", [1, 2, 3, 100, 4096, 10**7])
def test_a_bin_of_lengths_begins_at_a_power_of_the_root_of_two(characters: int) -> None:
    assert 2 ** (length_bin(characters) / 2) <= characters * (1 + 1e-9)
    assert characters < 2 ** ((length_bin(characters) + 1) / 2) * (1 + 1e-9)


def test_rules_are_measured_in_kept_texts_and_binned_with_what_they_rejected() -> None:
    measured = measure(["A short text with a few words. And another sentence here.", "{ } { }"])
    unit, values = measured["c4_max_curly_brackets"]
    assert (unit, values.tolist()) == ("brackets", [0, 2])
    (shown,) = histograms({"c4_max_curly_brackets": (unit, values)}, {"c4_max_curly_brackets": np.array([9.0, 9.0])})
    assert sum(shown["kept"]) == sum(shown["rejected"]) == 2
    assert (shown["rule"], shown["rejected"][-1]) == ("c4_max_curly_brackets", 2)


def test_a_measure_that_is_the_same_everywhere_has_bins_too() -> None:
    shown = histogram(np.zeros(3), np.empty(0))
    assert (shown["low"], shown["high"], shown["kept"]) == (0, 1, [3] + [0] * (BINS - 1))


def test_nothing_kept_is_nothing_measured() -> None:
    assert measure([]) == {}


def test_long_crawls_are_counted_by_month(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("url", pa.string()), pa.field("started", pa.string())])
    with TableWriter(tmp_path / "fetch-00000.parquet", schema) as writer:
        for day in range(60):
            writer.write({"url": "x", "started": f"{date(2026, 1, 1) + timedelta(days=day)}T10:00:00Z"})
        writer.write({"url": "never sent", "started": ""})
    assert fetch_days(tmp_path) == {"2026-01": 31, "2026-02": 28, "2026-03": 1}
    assert fetch_days(None) == {}


def test_texts_are_read_from_any_row_group_in_the_order_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "part-00000.parquet"
    with TableWriter(file, DOCUMENT_SCHEMA) as writer:
        for i in range(2500):
            writer.write({"doc_id": bytes(16), "url": "", "text": f"text {i}", "source": ""})
    wanted = [2499, 0, 1024, 1023, 0]
    assert read_texts([(file, i) for i in wanted]) == [f"text {i}" for i in wanted]
