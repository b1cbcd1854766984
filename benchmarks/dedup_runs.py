"""The commands of `benchmarks.dedup`: ours and the rivals', and which documents each has kept."""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cleaning_runs import Case, Outcome, read_lines
from benchmarks.dedup_truth import Pairs, exact_join, shingle_sets

Array = np.ndarray[Any, Any]

RIVALS = Path(__file__).with_name("dedup_rivals.py")
DEDUPLICATE = "Millrace deduplicate"
ONE, TWO = f"{DEDUPLICATE}, 1 worker", f"{DEDUPLICATE}, 2 workers"


@dataclass(frozen=True)
class Corpus:
    """Documents of a JSONL file, told apart by their URLs."""

    name: str
    file: Path
    urls: list[str]
    labelled: list[tuple[str, str]]
    """Pairs that are duplicates by those who made the corpus, if it says so."""

    def kept(self, outcome: Outcome) -> Array:
        """Whether each document is there: (num_documents,) bool."""
        return np.array([url in outcome.kept for url in self.urls])

    def truth(self) -> Pairs:
        """All pairs that are alike."""
        return exact_join(shingle_sets([row["text"] for row in read_lines(self.file)]))


def read_corpus(file: Path) -> Corpus:
    """A JSONL file with "text" and "url", no URL twice."""
    with file.open() as lines:
        urls = [json.loads(line)["url"] for line in lines]
    if len(set(urls)) < len(urls):
        raise SystemExit(f"{file}: a URL stands there twice; the documents of a benchmark are told apart by them")
    return Corpus(file.stem, file, urls, [])


def read_articles(train: Path, folder: Path) -> Corpus:
    """A set of labelled articles: lines of an id and a text, and beside it `.truth` with pairs of ids."""
    rows = [line.partition(" ") for line in train.read_text().splitlines()]
    file = folder / f"{train.stem}.jsonl"
    file.write_text("".join(json.dumps({"text": text, "url": name}) + "\n" for name, _, text in rows))
    labels = [line.split() for line in train.with_suffix(".truth").read_text().splitlines()]
    return Corpus(train.stem, file, [name for name, _, _ in rows], [(one, other) for one, other in labels])


def millrace(stage: str, *paths: Path, workers: int, flags: tuple[str, ...] = ()) -> list[str]:
    """A command of ours as a user runs it."""
    options = ["--workers", str(workers), "--log-level", "error", "--overwrite", *flags]
    return [sys.executable, "-m", f"dataprep.{stage}", *map(str, paths), *options]


def deduplicate(corpus: Path, kept: Path, workers: int, flags: tuple[str, ...] = ()) -> list[str]:
    """All in one command."""
    return millrace("deduplicate", corpus, kept, workers=workers, flags=flags)


def three_stages(corpus: Path, kept: Path, workers: int) -> list[str]:
    """The stages of the graph, one after the other."""
    pairs, groups = kept.with_suffix(".pairs"), kept.with_suffix(".groups")
    commands = [
        millrace("find_duplicates", corpus, pairs, workers=workers),
        millrace("group_duplicates", pairs, groups, workers=workers),
        millrace("remove_duplicates", corpus, groups, kept, workers=workers),
    ]
    return ["sh", "-c", " && ".join(map(shlex.join, commands))]


def our_cases(corpus: Path, work: Path) -> list[Case]:
    """One command and three, with one worker and with two."""
    commands = {
        ONE: deduplicate(corpus, work / "one-1.jsonl", 1),
        TWO: deduplicate(corpus, work / "one-2.jsonl", 2),
        "Millrace three stages, 1 worker": three_stages(corpus, work / "three-1.jsonl", 1),
        "Millrace three stages, 2 workers": three_stages(corpus, work / "three-2.jsonl", 2),
    }
    files = ("one-1", "one-2", "three-1", "three-2")
    return [
        case(name, command, work / f"{file}.jsonl")
        for (name, command), file in zip(commands.items(), files, strict=True)
    ]


def rival_cases(corpus: Path, venvs: Mapping[str, Path], folder: Path, work: Path) -> list[Case]:
    """The rivals that there is a virtual environment for; `folder` takes the files that datatrove has as tasks."""

    def rival(tool: str, source: Path, kept: str, *words: str) -> Case:
        name = f"{tool}, {words[0]} process{'es' * (words[0] != '1')}" if words else tool
        python = Path(environment(tool, venvs) or "", "bin", "python")
        command = [python, RIVALS, tool, source.resolve(), work / kept, *words]
        return case(name, list(map(str, command)), work / kept)

    cases = [rival(tool, corpus, f"{tool}.jsonl") for tool in ("rensa", "datasketch") if environment(tool, venvs)]
    if environment("text_dedup", venvs):
        cases += [rival("text_dedup", corpus, f"text-dedup-{n}.jsonl", n) for n in ("1", "2")]
    if environment("datatrove", venvs):
        cases += [rival("datatrove", split(corpus, folder, int(n)), f"datatrove-{n}", n) for n in ("1", "2")]
    return cases


def environment(tool: str, venvs: Mapping[str, Path]) -> Path | None:
    """The virtual environment of a rival: its own, or the one for all."""
    return venvs.get(tool) or venvs.get("")


def case(name: str, command: list[str], kept: Path) -> Case:
    """A command that writes the kept documents to a JSONL file, or to a folder of them."""
    return Case(name, command, lambda: Outcome(kept_urls(kept), {}))


def kept_urls(kept: Path) -> set[str]:
    """URLs of the documents; datatrove calls them ids."""
    files = sorted(kept.glob("*.jsonl")) if kept.is_dir() else [kept]
    return {row.get("url") or row["id"] for file in files for row in read_lines(file)}


def split(corpus: Path, folder: Path, pieces: int) -> Path:
    """A folder with the corpus in so many files of consecutive lines."""
    target = folder / f"{corpus.stem}-{pieces}"
    target.mkdir(exist_ok=True)
    lines = corpus.read_bytes().splitlines(keepends=True)
    for number in range(pieces):
        part = lines[len(lines) * number // pieces : len(lines) * (number + 1) // pieces]
        (target / f"{number}.jsonl").write_bytes(b"".join(part))
    return target
