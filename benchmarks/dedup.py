"""Deduplication beside its rivals on JSONL corpora: speed, memory, quality against the exact truth, identity.

    python -m benchmarks.dedup CORPUS.jsonl... [--venv FOLDER] [--venv text_dedup=FOLDER] [--rounds 3]
        [--only speed signatures quality memory identity] [--memory-budget 1GB] [--labelled FOLDER]

speed       Whole processes from JSONL to JSONL in interleaved rounds, start-up counted; CPU seconds and memory are
            those of all processes together. Ours are `deduplicate` and the three stages one after the other.
signatures  Shingling and signatures alone: documents per CPU second of one core, start-up left out. Ours go from texts
            in an Arrow array (as the stage has them) to 128-permutation signatures of word 5-grams, folding included,
            the rivals' from Python strings. `python -m benchmarks.dedup sign CORPUS.jsonl` prints ours.
quality     Against the exact join of all pairs (`benchmarks.dedup_corpus`): pairs of which at most one document was
            kept, removed documents with a kept one of J >= 0.7, orphans: removed without one of J >= 0.4. The sets of
            labelled articles in the folder of --labelled likewise, with the labelled pairs found.
memory      Ours on each corpus with the same --memory-budget, one worker and two.
identity    The same bytes from ours whatever the workers, hash seeds, files, kills.

The rivals (`benchmarks.dedup_rivals`) other than datasketch need virtual environments, one for all or NAME=FOLDER:
datatrove==0.10.1 spacy tokenizers "xxhash<3.7" orjson ftfy regex rensa in one, and text_dedup in one of its own: 0.4.0,
the last in the package index, has no check of false positives, and 0.4.1 (its repository at 7538f3e) asks for Python
3.12. For 3.11, `type X = ...` there becomes `X = ...` and `override` comes from typing_extensions; then
pip install --ignore-requires-python. `benchmarks.dedup_corpus` makes corpora of any size. Prints Markdown.
"""

import argparse
import hashlib
import json
import math
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.dedup_corpus import RANGES, Pairs, exact_join, score, share, shingle_sets
from benchmarks.processes import Case, Outcome, Result, interleave, measure, read_lines
from dataprep.dedup.shingles import Shingle
from dataprep.dedup.signatures import Permutations, sign_texts
from dataprep.text.folding import fold_texts, raw_texts, text_pieces

Array = np.ndarray[Any, Any]

PARTS = ("speed", "signatures", "quality", "memory", "identity")
LABELLED = Path("../shared/data/dedup/minhash-articles")
RIVALS = Path(__file__).with_name("dedup_rivals.py")
DEDUPLICATE = "Millrace deduplicate"
ONE, TWO = f"{DEDUPLICATE}, 1 worker", f"{DEDUPLICATE}, 2 workers"
ONE_CORE = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
PIECES = 4
KILLS = 3
TABLES = ("kept.jsonl", "kept.rejected.jsonl", "pairs.jsonl", "groups.jsonl")


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


def sign(corpus: Path) -> dict[str, float]:
    """Ours, of all texts of a JSONL file."""
    with corpus.open() as lines:
        texts = pa.array([json.loads(line)["text"] for line in lines], pa.large_string())
    shingle, permutations = Shingle("word", 5), Permutations.draw(128, 1234)
    sign_texts(fold_texts(raw_texts(texts[:10])), shingle, permutations)  # loads the kernel
    wall, cpu = time.perf_counter(), time.process_time()
    for _, piece in text_pieces(texts):
        sign_texts(fold_texts(raw_texts(piece)), shingle, permutations)
    return {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "documents": len(texts)}


def signature_table(corpus: Path, venvs: Mapping[str, Path], rounds: int) -> None:
    """Interleaved rounds, a process each."""
    commands = {"Millrace": [sys.executable, "-m", "benchmarks.dedup", "sign", str(corpus)]}
    for tool in ("rensa", "datasketch"):
        if venv := environment(tool, venvs):
            commands[tool] = [str(venv / "bin" / "python"), str(RIVALS), f"sign_{tool}", str(corpus)]
    cpu: dict[str, list[float]] = {tool: [] for tool in commands}
    documents = 0
    for _ in range(rounds):
        for tool, command in commands.items():
            said = subprocess.run(command, env={**os.environ, **ONE_CORE}, stdout=subprocess.PIPE, check=True).stdout
            took = json.loads(said.splitlines()[-1])
            cpu[tool].append(took["cpu"])
            documents = took["documents"]
    print("| tool | documents per CPU second, median (range) | times the CPU seconds of Millrace |")
    print("| --- | --- | --- |")
    for tool, seconds in cpu.items():
        slow, middle, fast = (documents / f(seconds) for f in (max, statistics.median, min))
        times = statistics.median(theirs / ours for theirs, ours in zip(seconds, cpu["Millrace"], strict=True))
        print(f"| {tool} | {middle:,.0f} ({slow:,.0f}-{fast:,.0f}) | {times:.1f} |")


@dataclass(frozen=True)
class Made:
    """What a run has written."""

    digests: dict[str, str]
    """sha256 of each table."""
    lines: str
    """sha256 of the kept documents' lines in the order of their bytes."""
    urls: set[str]


@dataclass(frozen=True)
class Bench:
    """Where the runs happen."""

    sources: list[Path]
    folder: Path

    def command(self, name: str, sources: list[Path], workers: int, seed: str, flags: tuple[str, ...]) -> list[str]:
        """`deduplicate` with all its tables; `name` is the folder that they go to."""
        out = self.folder / name
        out.mkdir(parents=True, exist_ok=True)
        tables = ("--pairs", str(out / "pairs.jsonl"), "--groups", str(out / "groups.jsonl"))
        paths = (*sources, out / "kept.jsonl")
        return [
            "env",
            f"PYTHONHASHSEED={seed}",
            *millrace("deduplicate", *paths, workers=workers, flags=tables + flags),
        ]

    def run(
        self,
        name: str,
        sources: list[Path] | None = None,
        workers: int = 2,
        seed: str = "0",
        flags: tuple[str, ...] = (),
    ) -> Made:
        """Run to the end and digest."""
        command = self.command(name, sources or self.sources, workers, seed, flags)
        subprocess.run(command, check=True)
        out = self.folder / name
        kept = (out / "kept.jsonl").read_bytes()
        lines = hashlib.sha256(b"".join(sorted(kept.splitlines(keepends=True)))).hexdigest()
        digests = {table: hashlib.sha256((out / table).read_bytes()).hexdigest() for table in TABLES}
        return Made(digests, lines, kept_urls(out / "kept.jsonl"))

    def kill(self, name: str, after: float) -> bool:
        """Start, and end the first process with SIGKILL after so many seconds; whether it was still running."""
        command = self.command(name, self.sources, 2, "0", ())[2:]  # without `env`, whose process it would be
        process = subprocess.Popen(command)
        time.sleep(after)
        running = process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        return running


def identity_table(corpus: Path, folder: Path) -> None:
    """One row for each way of running, compared with the first or with that of several files."""
    corpus = with_sources(corpus, folder)
    bench = Bench([corpus], folder / "identity")
    started = time.perf_counter()
    first = bench.run("first", workers=1)
    seconds = time.perf_counter() - started
    print(f"sha256 of kept.jsonl with 1 worker: {first.digests['kept.jsonl']}\n")
    print(f"| run | compared with | {' | '.join(TABLES)} | kept lines, sorted | kept URLs |")
    print(f"| --- | --- |{' --- |' * (len(TABLES) + 2)}")
    for workers in (2, 4):
        row(f"{workers} workers", "1 worker", bench.run(f"workers-{workers}", workers=workers), first)
    row("PYTHONHASHSEED=1", "1 worker", bench.run("seed", seed="1"), first)
    row("--memory-budget 32MB", "1 worker", bench.run("budget", flags=("--memory-budget", "32MB")), first)
    draw = random.Random(corpus.name)
    for number in range(KILLS):
        moment = draw.uniform(0.2, 0.95) * seconds
        killed = "killed" if bench.kill(f"kill-{number}", moment) else "had ended"
        row(f"{killed} after {moment:.1f} s, run again", "1 worker", bench.run(f"kill-{number}"), first)
    pieces = sorted(split(corpus, folder, PIECES).iterdir())
    several = bench.run("pieces", pieces)
    row(f"{PIECES} files", "1 file", several, first)
    row(f"{PIECES} files named in reverse", f"{PIECES} files", bench.run("reverse", pieces[::-1]), several)
    row(f"{PIECES} files, 4 workers", f"{PIECES} files", bench.run("pieces-4", pieces, workers=4), several)
    row(f"folder of {PIECES} files", f"{PIECES} files", bench.run("folder", [pieces[0].parent]), several)


def with_sources(corpus: Path, folder: Path) -> Path:
    """A copy whose documents name their source, which would be the name of the file else."""
    copy = folder / f"{corpus.stem}-sources.jsonl"
    with corpus.open() as lines, copy.open("w") as out:
        for line in lines:
            out.write(json.dumps({"source": corpus.stem, **json.loads(line)}, ensure_ascii=False) + "\n")
    return copy


def row(name: str, other: str, made: Made, reference: Made) -> None:
    """What is equal."""
    same = [made.digests[table] == reference.digests[table] for table in TABLES]
    same += [made.lines == reference.lines, made.urls == reference.urls]
    print(f"| {name} | {other} | {' | '.join('same' if each else 'DIFFERENT' for each in same)} |", flush=True)


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
    if sys.argv[1:2] == ["sign"]:
        print(json.dumps(sign(Path(sys.argv[2]))))
    else:
        main()
