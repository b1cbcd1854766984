"""Deduplication beside its rivals on JSONL corpora: speed, memory, quality against the exact truth, identity.

    python -m benchmarks.dedup CORPUS.jsonl... [--venv FOLDER] [--venv text_dedup=FOLDER] [--rounds 3]
        [--only speed signatures quality memory identity] [--memory-budget 1GB] [--labelled FOLDER]

speed       Whole processes from JSONL to JSONL in interleaved rounds, start-up counted; CPU seconds and memory are
            those of all processes together. Ours are `deduplicate` and the three stages one after the other.
signatures  Shingling and signatures alone, one core (`benchmarks.dedup_signatures`).
quality     Against the exact join of all pairs (`benchmarks.dedup_truth`): pairs of which at most one document was
            kept, removed documents with a kept one of J >= 0.7, orphans: removed without one of J >= 0.4. The sets of
            labelled articles in the folder of --labelled likewise, with the labelled pairs found.
memory      Ours on each corpus with the same --memory-budget, one worker and two.
identity    Ours whatever the workers, hash seeds, files, kills (`benchmarks.dedup_identity`).

The rivals (`benchmarks.dedup_rivals`) other than datasketch need virtual environments, one for all or NAME=FOLDER:
datatrove==0.10.1 spacy tokenizers "xxhash<3.7" orjson ftfy regex rensa in one, and text_dedup in one of its own: 0.4.0,
the last in the package index, has no check of false positives, and 0.4.1 (its repository at 7538f3e) asks for Python
3.12. For 3.11, `type X = ...` there becomes `X = ...` and `override` comes from typing_extensions; then
pip install --ignore-requires-python. `benchmarks.dedup_corpus` makes corpora of any size. Prints Markdown.
"""

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.cleaning_runs import Case, Outcome, Result, interleave
from benchmarks.dedup_identity import identity_table
from benchmarks.dedup_runs import (
    ONE,
    Corpus,
    deduplicate,
    our_cases,
    read_articles,
    read_corpus,
    rival_cases,
)
from benchmarks.dedup_signatures import signature_table
from benchmarks.dedup_truth import RANGES, score, share
from benchmarks.processes import measure

PARTS = ("speed", "signatures", "quality", "memory", "identity")
LABELLED = Path("../shared/data/dedup/minhash-articles")


def all_cases(corpus: Path, venvs: Mapping[str, Path], folder: Path) -> list[Case]:
    """Ours, then the rivals'; all write below `folder`/round."""
    return our_cases(corpus, folder / "round") + rival_cases(corpus, venvs, folder, folder / "round")


def speed_table(results: dict[str, Result], documents: int) -> None:
    """Medians of the rounds; the ratio is that of CPU seconds to those of `deduplicate` in the same round."""
    head = ["run", "seconds", "CPU seconds (range)", "documents per CPU second", "CPU seconds, times the first row's"]
    head += ["peak MiB", "kept"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for name, result in results.items():
        if result.failure:
            print(f"| {name} | not run: {result.failure} | | | | | |")
            continue
        cpu = [usage.cpu for usage in result.usages]
        seconds, peak = (
            statistics.median(each) for each in zip(*((u.seconds, u.peak_mib) for u in result.usages), strict=True)
        )
        middle = statistics.median(cpu)
        pairs = zip(cpu, (usage.cpu for usage in results[ONE].usages), strict=False)
        times = statistics.median([theirs / ours for theirs, ours in pairs] or [math.nan])
        figures = (
            f"{seconds:.1f} | {middle:.2f} ({min(cpu):.2f}-{max(cpu):.2f}) | {documents / middle:,.0f} | {times:.2f}"
        )
        print(f"| {name} | {figures} | {peak:,.0f} | {len(result.outcome.kept):,} |")


def quality_table(corpus: Corpus, outcomes: Mapping[str, Outcome]) -> None:
    """Each run's kept documents against the truth; runs that kept the same share a row."""
    truth = corpus.truth()
    head = ["run", "removed", *(f"found, {name}" for name in RANGES), "rightly removed", "orphans"]
    head += ["labelled pairs found"] if corpus.labelled else []
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    rows: dict[frozenset[str], list[str]] = {}
    for name, outcome in outcomes.items():
        rows.setdefault(frozenset(outcome.kept), []).append(name)
    for kept, names in rows.items():
        judged = score(truth, corpus.kept(Outcome(set(kept), {})))
        cells = [f"{judged.removed:,}", *(share(*found) for found in judged.found.values())]
        cells += [share(judged.justified, judged.removed), str(judged.orphans)]
        if corpus.labelled:
            cells.append(share(sum(not kept.issuperset(pair) for pair in corpus.labelled), len(corpus.labelled)))
        print(f"| {'; '.join(names)} | {' | '.join(cells)} |", flush=True)


def memory_table(corpora: list[Corpus], budget: str, folder: Path) -> None:
    """Ours on ever more documents; the last column would stay as it is if time grew with n log n."""
    head = ["documents", "MB", "workers", "seconds", "CPU seconds", "all together, MiB", "first process, MiB"]
    head += ["largest other, MiB", "CPU microseconds / (n log2 n)"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    for corpus in corpora:
        number, megabytes = len(corpus.urls), corpus.file.stat().st_size / 1e6
        for workers in (1, 2):
            kept = folder / f"kept-{workers}.jsonl"
            usage = measure(deduplicate(corpus.file, kept, workers, ("--memory-budget", budget)))
            memory = " | ".join(f"{mib:,.0f}" for mib in (usage.peak_mib, usage.first_mib, usage.others_mib))
            growth = 1e6 * usage.cpu / (number * math.log2(number))
            figures = f"{usage.seconds:.1f} | {usage.cpu:.1f} | {memory} | {growth:.2f}"
            print(f"| {number:,} | {megabytes:,.0f} | {workers} | {figures} |", flush=True)


def compare(corpus: Corpus, options: argparse.Namespace, folder: Path) -> None:
    """The tables of one corpus."""
    size = corpus.file.stat().st_size / 1e6
    head = f"{corpus.name}: {len(corpus.urls):,} documents, {size:.1f} MB"
    print(f"\n## {head}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    results: dict[str, Result] = {}
    if {"speed", "quality"} & {*options.only}:
        timed, cases = "speed" in options.only, all_cases(corpus.file, options.venvs, folder)
        cases = [each for each in cases if timed or ", 2" not in each.name]  # two workers or one keep the same
        results = interleave(cases, options.rounds if timed else 1, folder / "round")
    if "speed" in options.only:
        print(f"\n### Speed, {options.rounds} rounds\n")
        speed_table(results, len(corpus.urls))
    if "quality" in options.only:
        print("\n### Quality\n")
        quality_table(corpus, {name: result.outcome for name, result in results.items() if not result.failure})
    if "signatures" in options.only:
        print("\n### Signatures alone\n")
        signature_table(corpus.file, options.venvs, options.rounds)
    if "identity" in options.only:
        print("\n### Identity\n")
        identity_table(corpus.file, folder)


def labelled(options: argparse.Namespace, folder: Path) -> None:
    """Quality on each set of labelled articles."""
    for train in sorted(options.labelled.glob("*.train")):
        corpus = read_articles(train, folder)
        compare(corpus, argparse.Namespace(**{**vars(options), "only": ("quality",)}), folder)


def virtual_environments(given: list[str]) -> dict[str, Path]:
    """By the name of the rival; that of the others by the empty name. datasketch is also among our own packages."""
    parts = [each.rpartition("=") for each in given]
    return {"datasketch": Path(sys.prefix)} | {name: Path(folder).absolute() for name, _, folder in parts}


def main() -> None:
    """Each corpus by itself, memory over all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", type=Path, nargs="+", metavar="CORPUS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--venv", action="append", default=[], metavar="[NAME=]FOLDER")
    parser.add_argument("--memory-budget", default="1GB")
    parser.add_argument("--labelled", type=Path, default=LABELLED)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    options = parser.parse_args()
    options.venvs = virtual_environments(options.venv)
    corpora = [read_corpus(file) for file in options.corpora]
    with tempfile.TemporaryDirectory() as folder:
        for corpus in corpora if {*options.only} - {"memory"} else []:
            compare(corpus, options, Path(folder))
        if "quality" in options.only:
            labelled(options, Path(folder))
        if "memory" in options.only:
            print(f"\n## Memory with a budget of {options.memory_budget}\n")
            memory_table(corpora, options.memory_budget, Path(folder))


if __name__ == "__main__":
    main()
