"""Examples of what a stage rejected, per rule: `--sample-rejected 5`, while it runs or of an output that is there."""

import hashlib
import heapq
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from pipelines import store
from pipelines.documents import Row, is_jsonl, read_rows
from pipelines.errors import UserError
from pipelines.manifest import load_checked, manifest_path
from pipelines.outputs import rejected_path

LINE_CHARACTERS = 160
NAME_CHARACTERS = 60
VALUE_CHARACTERS = 48
TEXT_CHARACTERS = 4 * LINE_CHARACTERS
"""Characters of a text that are looked at: runs of unprintable ones become short."""
MANY = 4
_FRACTION = re.compile(r"(?<![\w.])\d+\.\d{3,}(?![\w.])")
_UNPRINTABLE_RUN = re.compile(r"(.)\1*", re.DOTALL)


def show_rejected(output: Path, number: int) -> None:
    """Print `number` examples per rule on standard output; the same ones for equal outputs."""
    examples = sample(rejected_rows(output), number)
    if not examples:
        print(f"{output}: nothing was rejected")
    for rule, (total, rows) in sorted(examples.items(), key=lambda item: (-item[1][0], item[0])):
        print(f"{rule}: {total:,} rejected, {len(rows)} of them:")
        for row in rows:
            print(f"  {one_line(row)}")


def rejected_rows(output: Path) -> Iterator[Row]:
    """The rejected rows of a published output, a folder or a JSONL file; UserError when it is none of ours."""
    if not is_jsonl(output):
        load_checked(output)
        for file in sorted(rejected_path(output).glob("*.parquet")):
            yield from read_rows(file)
        return
    if not manifest_path(output).exists():
        raise UserError(f"{output}: has no {manifest_path(output).name}, so it is no output of a stage")
    rejected = rejected_path(output)
    for line in store.read_lines(rejected) if rejected.exists() else ():
        yield json.loads(line)


def sample(rows: Iterator[Row], number: int) -> dict[str, tuple[int, list[Row]]]:
    """Rule -> (how many rows it rejected, the `number` of them with the smallest hashes)."""
    kept: dict[str, list[tuple[int, int, Row]]] = {}
    totals: dict[str, int] = {}
    for position, row in enumerate(rows):
        heap = kept.setdefault(row["rule"], [])
        totals[row["rule"]] = totals.get(row["rule"], 0) + 1
        # A heap gives up its smallest first, so hashes and positions are negative: those that stay are the smallest.
        entry = (-_hash(row), -position, row)
        if len(heap) < number:
            heapq.heappush(heap, entry)
        else:
            heapq.heappushpop(heap, entry)
    return {rule: (totals[rule], [row for *_, row in sorted(heap, reverse=True)]) for rule, heap in kept.items()}


def _hash(row: Row) -> int:
    doc_id = row.get("doc_id")
    identity = (doc_id.hex() if isinstance(doc_id, bytes) else doc_id, row["url"], row["rule"], row["value"])
    return int.from_bytes(hashlib.blake2b(repr(identity).encode("utf-8", "surrogatepass"), digest_size=8).digest())


def one_line(row: Row) -> str:
    """`url: value, at least 128: text`: URL (or document id), value, threshold and the text's start, as there are."""
    doc_id = row.get("doc_id")
    name = row["url"] or (doc_id.hex() if isinstance(doc_id, bytes) else doc_id) or "?"
    threshold = row.get("threshold")
    text = cast(str | None, row.get("text"))
    parts = [
        _cut(visible(name), NAME_CHARACTERS, middle=True),
        _cut(visible(_rounded(row["value"])), VALUE_CHARACTERS if text else LINE_CHARACTERS),
    ]
    parts[-1] += f", {_cut(visible(threshold), VALUE_CHARACTERS)}" if threshold else ""
    line = ": ".join([*parts, *([visible(text[:TEXT_CHARACTERS])] if text else [])])
    return _cut(line, LINE_CHARACTERS)


def _rounded(value: str) -> str:
    """Long fractions with four significant digits, or whole: `0.0312498` is `0.03125`, `76543.21` is `76543`."""
    return _FRACTION.sub(lambda found: f"{(number := float(found[0])):{'.4g' if number < 1000 else '.0f'}}", value)


def _cut(text: str, length: int, *, middle: bool = False) -> str:
    """`text`, or so many characters of it with a mark where some are left out."""
    if len(text) <= length:
        return text
    end = length // 2 if middle else 0
    return f"{text[: length - end - 1]}…{text[len(text) - end :]}"


def visible(text: str) -> str:
    """`text` on one line that no terminal obeys: unprintable ones as escapes, many alike as one with their number."""
    return _UNPRINTABLE_RUN.sub(lambda found: _escaped(found[0]), text)


def _escaped(run: str) -> str:
    """A run of one character."""
    if run[0].isprintable():
        return run
    escape = ascii(run[0])[1:-1]
    return escape * len(run) if len(run) < MANY else f"{escape}×{len(run)} "
