"""Writes a submission to GLUE's leaderboard: the predictions of all its test splits in one zip.

output folders of finetune and glue_score, with their submission/*.tsv -> OUTPUT.zip

    python -m trainer.glue_submission glue.zip runs/RUN/finetune/* runs/RUN/glue_score/ax

The leaderboard only accepts a zip with all eleven files. `--fill-missing` adds placeholders for missing files, with the
same answer in each row; their scores mean nothing.
"""

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pipelines import exits, store
from pipelines.arguments import Place, check_words
from pipelines.errors import ConfigError, UserError
from pipelines.helptext import run_tyro
from pipelines.terminal import print_error, print_line
from trainer.glue.submission import FILES, HEADER, SUBMISSION, TestFile

OPTIONS = ("--help", "--fill-missing", "--no-fill-missing", "--overwrite", "--no-overwrite")
_TIME = (1980, 1, 1, 0, 0, 0)
"""The time of every file in a zip, so that equal predictions give equal bytes."""


def collect(folders: Sequence[Path]) -> dict[str, Path]:
    """Return a submission's files by name; raise UserError for one that occurs twice, is not GLUE's or is not whole."""
    known = {file.name: file for file in FILES.values()}
    collected: dict[str, Path] = {}
    for folder in folders:
        files = sorted((folder / SUBMISSION).glob("*.tsv"))
        if not files:
            raise UserError(
                f"{folder}: has no {SUBMISSION}/*.tsv; give finetune or glue_score a task with a test split"
            )
        for path in files:
            if path.stem not in known:
                raise UserError(f"{path}: not one of GLUE's files ({', '.join(known)}); leave the folder out")
            if path.stem in collected:
                if path.samefile(collected[path.stem]):
                    raise UserError(f"{folder}: named twice; name it once")
                raise UserError(f"{path}: the same task as {collected[path.stem]}; name only one of the two folders")
            _check(path, known[path.stem])
            collected[path.stem] = path
    return {name: collected[name] for name in known if name in collected}


def _check(path: Path, expected: TestFile) -> None:
    header, *lines = path.read_text(encoding="utf-8").splitlines() or [""]
    if header != HEADER or any(line.partition("\t")[0] != str(i) for i, line in enumerate(lines)):
        raise UserError(
            f"{path}: expected the columns index and prediction and the rows 0, 1, ...; run its stage again"
        )
    if len(lines) != expected.rows:
        raise UserError(
            f"{path}: {len(lines)} rows, but GLUE's test split has {expected.rows}; use all of GLUE's own test file"
        )


def is_submission(path: Path) -> bool:
    """Return whether a file is a zip of GLUE's files and of nothing else."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return {*archive.namelist()} <= {f"{file.name}.tsv" for file in FILES.values()}


def write_zip(output: Path, files: dict[str, Path], *, fill_missing: bool) -> list[str]:
    """Write the zip, with equal bytes for equal predictions; return the names of the missing files."""
    missing = [file.name for file in FILES.values() if file.name not in files]
    with store.create(output) as opened, zipfile.ZipFile(opened, "w") as archive:
        for expected in FILES.values():
            if expected.name not in files and not fill_missing:
                continue
            rows = "".join(
                f"{line}\n" for line in (HEADER, *(f"{i}\t{expected.placeholder}" for i in range(expected.rows)))
            )
            content = files[expected.name].read_bytes() if expected.name in files else rows.encode()
            entry = zipfile.ZipInfo(f"{expected.name}.tsv", _TIME)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return missing


def main() -> int:
    """Run the command and return its exit status."""
    from tyro.conf import Positional, arg

    def glue_submission(
        output: Positional[Annotated[Path, arg(help="the zip to write", metavar="OUTPUT.zip")]],
        folders: Positional[
            Annotated[
                tuple[Path, ...],
                arg(
                    help="output folders of finetune and glue_score",
                    metavar="FOLDERS...",
                    help_behavior_hint="(all eleven files, or --fill-missing)",
                ),
            ]
        ],
        fill_missing: Annotated[bool, arg(help="add placeholders for missing files")] = False,
        overwrite: Annotated[bool, arg(help="replace a zip that exists")] = False,
    ) -> None:
        if output.suffix != ".zip":
            raise ConfigError(f"{output}: GLUE takes a zip; name a file that ends with .zip")
        store.real_path(output)  # refuses a pipe, before it is read
        if output.exists() and not overwrite:
            raise UserError(f"{output}: exists already; --overwrite replaces it")
        if output.exists() and not is_submission(output):
            raise UserError(f"{output}: not a submission to GLUE; choose another name, or remove it yourself")
        missing = write_zip(output, collect(folders), fill_missing=fill_missing)
        print_line(f"{output}: {len(FILES) if fill_missing else len(FILES) - len(missing)} of {len(FILES)} files")
        if missing:
            what = (
                "placeholders"
                if fill_missing
                else "missing, but GLUE takes only all files (--fill-missing --overwrite)"
            )
            print(f"{', '.join(missing)}: {what}", file=sys.stderr)

    places = (Place("OUTPUT.zip"), Place("FOLDERS", many=True))
    try:
        check_words(sys.argv[1:], dict.fromkeys(OPTIONS), places)
        run_tyro(glue_submission, "trainer.glue_submission", __doc__ or "", places, sys.argv[1:])
    except UserError as error:
        print_error(error)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    exits.run(main)
