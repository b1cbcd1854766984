"""The parts of `benchmarks.cleaning` that run: a corpus, a command to measure, rounds of them, what they have kept."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes import CommandError, Usage, measure
from pipelines.documents import part_files, read_rows


@dataclass(frozen=True)
class Corpus:
    """Documents to clean, whose URLs are all different."""

    name: str
    file: Path
    documents: int


@dataclass(frozen=True)
class Outcome:
    """What a run made of the documents, by URL."""

    kept: set[str]
    dropped: dict[str, str]
    """The rule for each."""


@dataclass(frozen=True)
class Case:
    """A command to measure."""

    name: str
    command: list[str]
    read: Callable[[], Outcome]
    """Reads what it has written."""


@dataclass
class Result:
    """The rounds of a case."""

    usages: list[Usage] = field(default_factory=list[Usage])
    outcome: Outcome = field(default_factory=lambda: Outcome(set(), {}))
    failure: str = ""
    """Why there are none."""


def write_corpus(source: Path, folder: Path, limit: int | None, copies: int = 1) -> Corpus:
    """`limit` documents of a JSONL file at even distances, `copies` times over, each copy with other URLs."""
    with source.open() as lines:
        texts = [json.loads(line)["text"] for line in lines]
    if limit and limit < len(texts):
        texts = [texts[i * len(texts) // limit] for i in range(limit)]
    file = folder / f"{source.stem}-{copies}.jsonl"
    with file.open("w") as out:
        for number in range(len(texts) * copies):
            document = {"url": f"http://bench.test/{number}", "text": texts[number % len(texts)]}
            out.write(json.dumps(document, ensure_ascii=False) + "\n")
    return Corpus(source.stem, file, len(texts) * copies)


def interleave(cases: list[Case], rounds: int, work: Path) -> dict[str, Result]:
    """Every case once, then every case again; the outcomes are those of the last round."""
    results = {case.name: Result() for case in cases}
    for _ in range(rounds):
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for case in cases:
            result = results[case.name]
            try:
                result.usages += [] if result.failure else [measure(case.command)]
            except CommandError as error:
                result.failure = str(error)
    for case in cases:
        if not results[case.name].failure:
            results[case.name].outcome = case.read()
    return results


def outcome_of(target: Path) -> Outcome:
    """What the stage (or the seeds' way) wrote to a JSONL file or to a folder."""
    if target.is_dir():
        kept = [row for file in part_files(target) for row in read_rows(file, ["url"])]
        tables = sorted((target / "rejected").glob("*.parquet"))
        dropped = [row for file in tables for row in read_rows(file, ["url", "rule"])]
    else:
        kept, dropped = read_lines(target), read_lines(target.with_suffix(".rejected.jsonl"))
    return Outcome({row["url"] for row in kept}, {row["url"]: row["rule"] for row in dropped})


def outcome_of_datatrove(folder: Path) -> Outcome:
    """The kept documents, and the reason of each filter that wrote others down."""
    kept = {row["id"] for row in read_lines(folder / "kept" / "00000.jsonl")}
    dropped = [row for file in sorted(folder.glob("*_*/*.jsonl")) for row in read_lines(file)]
    return Outcome(kept, {row["id"]: row["metadata"]["filter_reason"] for row in dropped})


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a JSONL file; none of one that nothing was written to."""
    if not file.exists():
        return []
    with file.open() as lines:
        return [json.loads(line) for line in lines]
