"""GLUE's TSV distribution: where the files of a task are, and the examples in their rows.

Folders and files may have any common name (`STS-B`, `stsb`; `dev.tsv`, `validation.tsv`), with or without a header and
a byte order mark. Quotes are text and only a newline ends a row, so rows are split without a csv reader.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any

from dataprep.glue.tasks import GlueTask, RowError, Rows, squeeze
from pipelines.errors import UserError, did_you_mean
from pipelines.terminal import counted
from pipelines.utf import text_lines

_ORIGINAL = ("", "original", "raw", "original/raw")
"""Subfolders of a task's folder that may have its files; the first with all of them is used."""
_MRPC_ORIGINAL = ("msrparaphrasetrain", "msrparaphrasetest", "devids")


def task_files(source: Path, task: GlueTask, *, trained: bool = False) -> list[Path]:
    """Return the files of `task` under `source`, in order; raise UserError if its folder or a split is missing.

    Only a task that a model is `trained` on must have a train split: the rows of another are searched for, or scored.
    """
    folder = task_folder(source, task)
    missing: dict[Path, list[str]] = {}
    untrained: list[Path] = []
    for subfolder in [folder / name for name in _ORIGINAL if (folder / name).is_dir()]:
        files = _files(subfolder)
        if original := mrpc_original(files, task):
            return list(original)
        by_split = {split: split_files(files, task, split) for split in task.published}
        missing[subfolder] = [split for split in task.required if not by_split[split]]
        if not missing[subfolder]:
            return list(chain.from_iterable(by_split.values()))
        if missing[subfolder] == ["train"] and not trained:
            untrained = untrained or list(chain.from_iterable(by_split.values()))
    if untrained:
        return untrained
    expected = ", ".join(f"{task.files_of(split)[0]}.tsv" for split in missing[folder])
    raise UserError(
        f"{folder}: has no file for {' and '.join(missing[folder])}: expected {expected}{_mrpc_hint(folder, task)}, "
        f"found {', '.join(path.name for path in _files(folder)) or 'nothing'}"
    )


def _mrpc_hint(folder: Path, task: GlueTask) -> str:
    names = {squeeze(path.stem) for path in _files(folder)}
    incomplete = task.name == "mrpc" and not names.isdisjoint(_MRPC_ORIGINAL)
    return " (or all of msr_paraphrase_train.txt, msr_paraphrase_test.txt, dev_ids.tsv)" if incomplete else ""


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def task_folder(source: Path, task: GlueTask) -> Path:
    """Return the folder of `task`: in `source`, in its `glue_data`, or `source` itself."""
    if not source.is_dir():
        near = did_you_mean(source.name, _folders(source.parent)) if source.parent.is_dir() else ""
        raise UserError(f"{source}: no such folder; name one with GLUE's TSV files, or 'hub'.{near}")
    candidates = [source]
    for name, folder in _folders(source).items():
        candidates += [folder, *(_folders(folder).values() if squeeze(name) in ("glue", "gluedata") else ())]
    matches = [folder for folder in candidates if squeeze(folder.name) in task.folders]
    if len(matches) > 1:
        raise UserError(f"{source}: several folders of {task.name}: {', '.join(map(str, matches))}; keep one")
    if not matches:
        raise UserError(
            f"{source}: no folder of {task.name}; name it {' or '.join(task.folders)}, in any case, "
            f"hyphens allowed.{did_you_mean(task.name, _folders(source))}"
        )
    return matches[0]


def _folders(parent: Path) -> dict[str, Path]:
    return {path.name: path for path in sorted(parent.iterdir()) if path.is_dir()}


def split_files(files: Sequence[Path], task: GlueTask, split: str) -> list[Path]:
    """Return the files of `split` among `files`, by their names: a single one, or the original files it came from."""
    named = {squeeze(path.stem): path for path in reversed(files) if path.suffix.lower() in (".tsv", ".txt")}
    whole = next(([named[name]] for name in task.files_of(split) if name in named), [])
    originals = task.original_files.get(split, ())
    return whole or ([named[name] for name in originals] if named.keys() >= set(originals) else [])


def mrpc_original(files: Sequence[Path], task: GlueTask) -> tuple[Path, Path, Path] | None:
    """Return MRPC as Microsoft published it, with GLUE's dev ids: (train, test, ids), if all three are there.

    They are preferred because a widely used train.tsv lacks a pair (3,667 rows), and test.tsv has no labels.
    """
    named = {squeeze(path.stem): path for path in files}
    if task.name != "mrpc" or not named.keys() >= set(_MRPC_ORIGINAL):
        return None
    train, test, ids = (named[name] for name in _MRPC_ORIGINAL)
    return train, test, ids


def read_splits(files: Sequence[Path], task: GlueTask) -> Iterator[tuple[str, Path, Rows]]:
    """Yield (split, its first file, rows) for each split of `task` that has a file."""
    if original := mrpc_original(files, task):
        train, test, ids = original
        dev_ids = {tuple(line.split(b"\t")) for line in text_lines(ids)}

        def is_dev(line: bytes) -> bool:
            return tuple(line.split(b"\t")[1:3]) in dev_ids

        yield "train", train, read_tsv(train, task, "train", keep=lambda line: not is_dev(line))
        yield "validation", train, read_tsv(train, task, "validation", keep=is_dev)
        yield "test", test, read_tsv(test, task, "test")
        return
    for split in task.published:
        if sources := split_files(files, task, split):
            numbers = count()
            yield split, sources[0], chain.from_iterable(read_tsv(file, task, split, numbers) for file in sources)


def split_sources(files: Sequence[Path], task: GlueTask) -> list[tuple[str, Path]]:
    """Return each file with examples of `task`, and a split that its rows are of."""
    if original := mrpc_original(files, task):
        return [("train", original[0]), ("test", original[1])]
    return [(split, file) for split in task.published for file in split_files(files, task, split)]


def read_tsv(
    file: Path,
    task: GlueTask,
    split: str,
    numbers: Iterator[int] | None = None,
    *,
    keep: Callable[[bytes], bool] = bool,
) -> Rows:
    """Yield the rows of one file whose line `keep` accepts; `numbers` gives all rows their `index`, by default from 0.

    Raises UserError if the columns of the file are not those of the task.
    """
    return rows_of(enumerate(text_lines(file), start=1), file, task, split, numbers, keep=keep)


def rows_of(
    numbered: Iterator[tuple[int, bytes]],
    file: Path,
    task: GlueTask,
    split: str,
    numbers: Iterator[int] | None = None,
    *,
    keep: Callable[[bytes], bool] = bool,
) -> Rows:
    """Yield the rows of numbered lines of a file, as `read_tsv` does of all."""
    lines = ((number, line) for number, line in numbered if line)
    number, line = next(lines, (1, b""))
    cells = line.decode(errors="replace").split("\t")
    columns = task.header(cells)
    if columns is None:
        columns = task.positional(len(cells), split)
        lines = chain([(number, line)], lines)
    if columns is None:
        layouts = task.unlabelled if split.startswith("test") else task.labelled
        names = ", ".join(aliases[0] for aliases in task.texts.values())
        raise UserError(
            f"{file}: {counted(len(cells), 'columns')} in its first line, which is not a header of {task.name}; "
            f"expected one with {names}, or the columns {' or '.join(layouts)}"
        )
    for (number, line), index in zip(lines, numbers or count(), strict=False):
        if not keep(line):
            continue
        try:
            yield {**parse_line(line, len(cells), task, columns, split), "index": index}
        except RowError as problem:
            yield RowError(problem.rule, f"{file.parent.name}/{file.name}:{number}: {problem}")


def parse_line(line: bytes, width: int, task: GlueTask, columns: dict[str, int], split: str) -> dict[str, Any]:
    """Return one line of `width` columns as an example; raise RowError for a broken one."""
    try:
        cells = line.decode().split("\t")
    except UnicodeDecodeError as error:
        raise RowError("invalid_utf8", f"not valid UTF-8 at byte {error.start}") from None
    if len(cells) != width:
        raise RowError("wrong_column_count", f"{len(cells)} columns, expected {width}")
    return task.example(cells, columns, split)
