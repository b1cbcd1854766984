"""Samples are named by where they come from."""

from pathlib import Path

import numpy as np

from tests.trainer import small
from tests.trainer.small import Road
from trainer.data.glue import GlueBatches, GlueRows
from trainer.data.lineage import name_samples
from trainer.data.order import shuffled


def test_the_rows_of_a_task_are_named_by_their_index(road: Road, tmp_path: Path) -> None:
    rows = GlueRows(small.write_glue(tmp_path / "glue", road.tokenizer, {"train": 5}) / "train.arrow")
    sample_ids = np.arange(5, 8)
    found = name_samples(GlueBatches(rows, 4, rows.pad, seed=1), sample_ids)
    elements = shuffled(sample_ids, 5, 1).tolist()
    assert [row.name for row in found] == [f"row {7 * element}" for element in elements]
    assert str(found[0]) == f"sample 5: row {7 * elements[0]}"
