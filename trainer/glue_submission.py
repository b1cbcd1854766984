"""A submission to GLUE's leaderboard: predictions of test splits in its format, and all of them in one zip.

Folders of finetune and glue_score, with their submission/*.tsv -> OUTPUT.zip

    python -m trainer.glue_submission glue.zip runs/RUN/finetune/* runs/RUN/glue_score/ax

The leaderboard takes a zip only with all eleven files. `--fill-missing` adds placeholders for what is missing, the same
answer in each row, whose scores say nothing.
"""

import logging
import sys
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pipelines import store
from pipelines.errors import ConfigError, UserError

logger = logging.getLogger(__name__)

SUBMISSION = "submission"
"""The folder of a stage's files."""
HEADER = "index\tprediction"
MOST_FILLED = 0.1
"""Share of GLUE's rows that may be missing at the end; a split that lacks more is another one."""
_TIME = (1980, 1, 1, 0, 0, 0)
"""Of every file in a zip, so that equal predictions give equal bytes."""


@dataclass(frozen=True, slots=True)
class TestFile:
    """What the leaderboard expects of one test split."""

    name: str
    rows: int
    placeholder: str = "0"
    scores: tuple[float, float] | None = None
    """The lowest and the highest score of a regression."""

    __test__ = False

    @property
    def words(self) -> bool:
        """Whether it wants the names of classes; else their numbers."""
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
    """Write submission/NAME.tsv: the prediction of every row from 0 on, in order, and say how many those are.

    `names`: of the classes, none for a score. A row that never came to the model, as it could not be read, gets the
    commonest prediction (the mean of scores); the last ones are known by the number of rows that GLUE has. A split of
    no GLUE task has the file SPLIT.tsv with names of classes.
    """
    wanted = FILES.get((task, split), TestFile(split, 0, "name" if names else "0"))
    by_index = dict(zip(indexes, predictions, strict=True))
    if len(by_index) < len(indexes) or min(by_index) < 0:
        raise UserError(f"{task}/{split}: an index stands twice or is negative; run glue_download again")
    rows = max(by_index) + 1
    if rows < wanted.rows and len(by_index) >= (1 - MOST_FILLED) * wanted.rows:
        rows = wanted.rows
    stand_in = Counter(predictions).most_common(1)[0][0] if names else sum(predictions) / len(predictions)
    lines = [f"{i}\t{_cell(by_index.get(i, stand_in), names, wanted)}" for i in range(rows)]
    with store.create(folder / SUBMISSION / f"{wanted.name}.tsv") as file:
        file.write("".join(f"{line}\n" for line in (HEADER, *lines)).encode())
    filled = rows - len(by_index)
    if filled:
        cell = _cell(stand_in, names, wanted)
        logger.warning("%s/%s: %d of %d rows were not predicted: %s stands there", task, split, filled, rows, cell)
    if wanted.rows not in (0, rows):
        logger.info("%s/%s: %d rows, GLUE's own has %d: not for its leaderboard", task, split, rows, wanted.rows)
    return {wanted.name: {"rows": rows, "filled": filled}}


def _cell(prediction: Any, names: Sequence[str], wanted: TestFile) -> str:
    if not names:
        low, high = wanted.scores or (prediction, prediction)
        return f"{min(max(prediction, low), high):.3f}"
    # A name of the user's own may hold a tab.
    return " ".join(names[int(prediction)].split()) if wanted.words else str(prediction)


def collect(folders: Sequence[Path]) -> dict[str, Path]:
    """The files of a submission by name; UserError for one that stands twice, is none of GLUE's or not whole."""
    known = {file.name: file for file in FILES.values()}
    found: dict[str, Path] = {}
    for folder in folders:
        files = sorted((folder / SUBMISSION).glob("*.tsv"))
        if not files:
            raise UserError(
                f"{folder}: has no {SUBMISSION}/*.tsv; give finetune or glue_score a task with a test split"
            )
        for path in files:
            if path.stem not in known:
                raise UserError(f"{path}: no file of GLUE's, which are {', '.join(known)}; leave the folder out")
            if path.stem in found:
                if path.samefile(found[path.stem]):
                    raise UserError(f"{folder}: given twice; give it once")
                raise UserError(f"{path}: the same task as {found[path.stem]}; give one of the two folders")
            _check(path, known[path.stem])
            found[path.stem] = path
    return {name: found[name] for name in known if name in found}


def _check(path: Path, wanted: TestFile) -> None:
    header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    if header != HEADER or any(line.partition("\t")[0] != str(i) for i, line in enumerate(lines)):
        raise UserError(f"{path}: not the rows 0, 1, ... below index and prediction; run its stage again")
    if len(lines) != wanted.rows:
        raise UserError(
            f"{path}: {len(lines)} rows, GLUE's test split has {wanted.rows}; take GLUE's own test file, whole"
        )


def write_zip(output: Path, files: dict[str, Path], *, fill_missing: bool) -> list[str]:
    """The zip, the same bytes for the same predictions; returns the names of the files that are missing."""
    missing = [file.name for file in FILES.values() if file.name not in files]
    with store.create(output) as opened, zipfile.ZipFile(opened, "w") as archive:
        for wanted in FILES.values():
            if wanted.name not in files and not fill_missing:
                continue
            rows = "".join(
                f"{line}\n" for line in (HEADER, *(f"{i}\t{wanted.placeholder}" for i in range(wanted.rows)))
            )
            content = files[wanted.name].read_bytes() if wanted.name in files else rows.encode()
            entry = zipfile.ZipInfo(f"{wanted.name}.tsv", _TIME)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return missing


def main() -> int:
    """The command; returns its exit status."""
    import tyro
    from tyro.conf import Positional, arg

    def glue_submission(
        output: Positional[Annotated[Path, arg(help="the zip to write")]],
        folders: Positional[Annotated[tuple[Path, ...], arg(help="folders of finetune and glue_score")]],
        fill_missing: Annotated[bool, arg(help="placeholders for the files that are missing")] = False,
        overwrite: Annotated[bool, arg(help="replace a zip that exists")] = False,
    ) -> None:
        if output.suffix != ".zip" or not folders:
            raise ConfigError("expected OUTPUT.zip and the folders of finetune or glue_score; see --help")
        if output.exists() and not overwrite:
            raise UserError(f"{output}: exists already; --overwrite replaces it")
        missing = write_zip(output, collect(folders), fill_missing=fill_missing)
        print(f"{output}: {len(FILES) if fill_missing else len(FILES) - len(missing)} of {len(FILES)} files")
        if missing:
            what = "placeholders" if fill_missing else "missing, and GLUE takes only all (--fill-missing --overwrite)"
            print(f"{', '.join(missing)}: {what}", file=sys.stderr)

    try:
        tyro.cli(glue_submission, prog="python -m trainer.glue_submission", description=__doc__)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
