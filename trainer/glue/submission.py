"""The files of a submission to GLUE's leaderboard: predictions of test splits in its format.

`python -m trainer.glue_submission` collects them in one zip.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.errors import UserError

logger = logging.getLogger(__name__)

SUBMISSION = "submission"
"""The folder of the files within a stage's output."""
HEADER = "index\tprediction"
MOST_FILLED = 0.1
"""Fraction of GLUE's rows that may be missing at the end; a split that lacks more is not GLUE's."""


@dataclass(frozen=True, slots=True)
class TestFile:
    """The file that the leaderboard expects for one test split."""

    name: str
    rows: int
    placeholder: str = "0"
    scores: tuple[float, float] | None = None
    """The lowest and highest score of a regression."""

    __test__ = False

    @property
    def words(self) -> bool:
        """Whether the file holds names of classes rather than their numbers."""
        return self.placeholder.isalpha()


FILES = {
    ("cola", "test"): TestFile("CoLA", 1063),
    ("sst2", "test"): TestFile("SST-2", 1821),
    ("mrpc", "test"): TestFile("MRPC", 1725),
    ("stsb", "test"): TestFile("STS-B", 1379, "0.000", (0.0, 5.0)),
    ("mnli", "test_matched"): TestFile("MNLI-m", 9796, "entailment"),
    ("mnli", "test_mismatched"): TestFile("MNLI-mm", 9847, "entailment"),
    ("qnli", "test"): TestFile("QNLI", 5463, "entailment"),
    ("qqp", "test"): TestFile("QQP", 390965),
    ("rte", "test"): TestFile("RTE", 3000, "entailment"),
    ("wnli", "test"): TestFile("WNLI", 146),
    ("ax", "test"): TestFile("AX", 1104, "entailment"),
}
"""By task and split, in GLUE's order."""


def write_submission(
    folder: Path, task: str, split: str, indexes: Sequence[int], predictions: Sequence[Any], names: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Write submission/NAME.tsv, the predictions of all rows from 0 on, in order; return its numbers of rows.

    `names`: of the classes, empty for a regression. A row that was not predicted because it could not be read gets the
    most common prediction (the mean, for scores); missing last rows follow from the size of GLUE's split. A split of
    any other task is written to SPLIT.tsv, with names of classes.
    """
    expected = FILES.get((task, split), TestFile(split, 0, "name" if names else "0"))
    by_index = dict(zip(indexes, predictions, strict=True))
    if len(by_index) < len(indexes) or min(by_index) < 0:
        raise UserError(f"{task}/{split}: an index occurs twice or is negative; run glue_download again")
    rows = max(by_index) + 1
    if rows < expected.rows and len(by_index) >= (1 - MOST_FILLED) * expected.rows:
        rows = expected.rows
    filler = Counter(predictions).most_common(1)[0][0] if names else sum(predictions) / len(predictions)
    lines = [f"{i}\t{_cell(by_index.get(i, filler), names, expected)}" for i in range(rows)]
    with store.create(folder / SUBMISSION / f"{expected.name}.tsv") as file:
        file.write("".join(f"{line}\n" for line in (HEADER, *lines)).encode())
    filled = rows - len(by_index)
    if filled:
        cell = _cell(filler, names, expected)
        logger.warning("%s/%s: %d of %d rows were not predicted: %s stands there", task, split, filled, rows, cell)
    if expected.rows not in (0, rows):
        logger.info("%s/%s: %d rows, GLUE's own has %d: not for its leaderboard", task, split, rows, expected.rows)
    return {expected.name: {"rows": rows, "filled": filled}}


def _cell(prediction: Any, names: Sequence[str], expected: TestFile) -> str:
    if not names:
        low, high = expected.scores or (prediction, prediction)
        return f"{min(max(prediction, low), high):.3f}"
    # The name of a custom class may contain a tab.
    return " ".join(names[int(prediction)].split()) if expected.words else str(prediction)
