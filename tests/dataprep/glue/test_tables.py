"""Rows of a split as items: its index and text columns, whatever they are called."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.glue.tables import find_splits, read_split
from pipelines.errors import UserError


def test_every_text_column_is_read_with_its_index(tmp_path: Path) -> None:
    table = pa.table({"premise": ["a", None], "hypothesis": ["b", "c"], "label": [0, 1], "index": [7, 9]})
    pq.write_table(table, tmp_path / "test.parquet")
    ((indexes, fields),) = read_split(tmp_path / "test.parquet")
    assert indexes == [7, 9]
    assert {name: texts.to_pylist() for name, texts in fields.items()} == {
        "premise": ["a", None],
        "hypothesis": ["b", "c"],
    }


@pytest.mark.parametrize("columns", [{"text": ["a"]}, {"index": [0], "label": [1]}])
def test_a_table_that_is_no_split_is_one_line(tmp_path: Path, columns: dict[str, list[object]]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "test.parquet")
    with pytest.raises(UserError, match="not a split of a task: expected 'index' and columns of text"):
        list(read_split(tmp_path / "test.parquet"))


def test_rejected_rows_and_pairs_of_rows_are_no_task(tmp_path: Path) -> None:
    for name in ("rte/validation", "rejected/rte", "duplicates/rte"):
        (tmp_path / name).parent.mkdir()
        pq.write_table(pa.table({"sentence": ["a"], "index": [0]}), tmp_path / f"{name}.parquet")
    assert find_splits(tmp_path, [], ["validation"]) == [tmp_path / "rte/validation.parquet"]
