"""Parts of the road by themselves: the deduplication's kernels, the repair of texts, JSON lines in and out.

    python -m benchmarks.parts kernels CORPUS.jsonl [--shingle word:5] [--num-perm 128] [--rounds 5]
    python -m benchmarks.parts repair FILE.jsonl [FILE.jsonl ...] [--rounds 2] [--huge-mb 100]
    python -m benchmarks.parts jsonl CORPUS.jsonl [--copies 10] [--rounds 3] [--before CHECKOUT]
        [--suffixes "" .gz .zst] [--profile]

kernels  On one core: documents and megabytes of text per CPU second, step by step. Text as in Arrow's buffers, in the
         pieces that the stage works on; reading and parsing do not count. Rounds are interleaved, the best one of each
         counts, and all kernels must give the same bytes.
repair   Beside ftfy itself, document by document in one run, and where the rest of the time goes. FILE: documents with
         a `text`, such as web20k.jsonl and owt1000.jsonl. Each text is repaired by ours and by `ftfy.fix_text` in turn,
         so a busy machine hits both alike, and the answers are compared; figures are documents per CPU second of one
         core, the best of the rounds. Then: which kinds of documents take our time, a profile of ours, and one line of
         --huge-mb megabytes of each kind (0: none).
jsonl    A stage that passes every document on, as a whole process with its start-up. The corpus goes in and comes out
         plain, then packed; with 1 and with 2 workers; CHECKOUT is a folder with another version of this project,
         measured in turn with this one. `start-up` is the same command on two files of one document, so that two
         workers start too; the speed-up leaves it out. The least of the rounds counts: what else the machine does only
         adds. Last, with --profile, where one worker's time goes.
"""

import argparse
import cProfile
import hashlib
import json
import os
import pstats
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ftfy
import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from benchmarks.processes import Usage, measure
from dataprep.dedup.shingle_sets import count_shared
from dataprep.dedup.shingles import Shingle, Shingles, distinct_shingles, find_shingles
from dataprep.dedup.signatures import Permutations, sign_texts
from dataprep.native import kernel as choice
from dataprep.text.folding import Texts, fold_texts, raw_texts, text_hashes, text_pieces
from dataprep.text.repair import Repair

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """What is signed, and the intermediate results that single steps start from."""

    raw: list[Texts]
    folded: list[Texts]
    sets: Shingles
    pairs: Array
    """(num_pairs, 2): each document with the next one, which is a pair of about the same sizes as any other."""
    shingle: Shingle
    permutations: Permutations


def read_work(corpus: Path, shingle: Shingle, num_perm: int) -> Work:
    """Read the texts of a JSONL file."""
    column = pj.read_json(str(corpus), pj.ReadOptions(block_size=1 << 26)).column("text")
    texts = pa.concat_arrays(column.cast(pa.large_string()).chunks)
    raw = [raw_texts(piece) for _, piece in text_pieces(texts)]
    folded = [fold_texts(piece) for piece in raw]
    sets = distinct_shingles(fold_texts(raw_texts(texts)), shingle)
    numbers = np.arange(len(texts))
    pairs = np.stack((numbers, np.roll(numbers, 1)), axis=1)
    return Work(raw, folded, sets, pairs, shingle, Permutations.draw(num_perm, 1))


def count_pairs(work: Work) -> Array:
    """Shared shingles of each pair, as ShingleSets counts them."""
    starts, stops = work.sets.first[:-1], work.sets.first[1:]
    if native := choice.kernel():
        a, b = ((np.zeros_like(side), starts[side], stops[side]) for side in work.pairs.T)
        return native.shared((work.sets.hashes,), a, b)
    return np.array([count_shared(work.sets.of(a), work.sets.of(b)) for a, b in work.pairs.tolist()])


STEPS: dict[str, Callable[[Work], list[Any]]] = {
    "fold": lambda work: [fold_texts(texts) for texts in work.raw],
    "hash of the folded text (xxh3)": lambda work: [text_hashes(texts) for texts in work.folded],
    "folded text to shingles": lambda work: [find_shingles(texts, work.shingle).hashes for texts in work.folded],
    "folded text to sets": lambda work: [distinct_shingles(texts, work.shingle).hashes for texts in work.folded],
    "folded text to signatures": lambda work: [
        sign_texts(texts, work.shingle, work.permutations) for texts in work.folded
    ],
    "raw text to signatures": lambda work: [
        sign_texts(fold_texts(texts), work.shingle, work.permutations) for texts in work.raw
    ],
    "sizes of intersections": lambda work: [count_pairs(work)],
}


def digest(results: list[Any]) -> str:
    """Of all bytes of a step's results."""
    found = hashlib.sha256()
    for result in results:
        if isinstance(result, Texts):
            for number in range(len(result)):
                found.update(result.encoded(number) + b"\n")
        else:
            found.update(b"".join(result) if isinstance(result, list) else np.ascontiguousarray(result).tobytes())
    return found.hexdigest()


def use_kernel(name: str) -> None:
    """Compute with this kernel from now on."""
    os.environ[choice.VARIABLE] = name
    choice.kernel.cache_clear()
    choice.kernel()


def kernels() -> list[str]:
    """NumPy and all compilations that run here."""
    os.environ.pop(choice.VARIABLE, None)
    choice.kernel.cache_clear()
    native = choice.kernel()
    return ["numpy", *(native.module.names() if native else ())]


def show_kernels(options: argparse.Namespace) -> None:
    """Measure every step with every kernel, and print one table."""
    names = kernels()
    work = read_work(options.corpus, Shingle.parse(options.shingle), options.num_perm)
    documents, megabytes = len(work.pairs), sum(len(texts.data) for texts in work.raw) / 1e6
    seconds: dict[tuple[str, str], float] = {}
    digests: dict[str, set[str]] = {step: set() for step in STEPS}
    for turn in range(options.rounds):
        for name in names[1 if turn > 1 else 0 :]:  # two rounds of NumPy are enough
            use_kernel(name)
            for step, function in STEPS.items():
                started = time.process_time()
                results = function(work)
                taken = time.process_time() - started
                seconds[step, name] = min(taken, seconds.get((step, name), taken))
                if turn == 0:
                    digests[step].add(digest(results))
    unequal = [step for step, found in digests.items() if len(found) > 1]
    if unequal:
        raise SystemExit(f"kernels differ: {', '.join(unequal)}")
    print(f"{documents:,} documents, {megabytes:.1f} MB, {len(work.sets.hashes) / documents:.0f} shingles a document\n")
    print(f"| documents/s (MB/s), one core | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}")
    for step in STEPS:
        cells = [f"{documents / seconds[step, n]:,.0f} ({megabytes / seconds[step, n]:,.0f})" for n in names]
        print(f"| {step} | {' | '.join(cells)} |")


HUGE_LINES = {
    "ASCII": "sound text, it has nothing to repair. ",
    "curly quotes": "sound text, “in quotes” — it’s naïve. ",
    "two scripts": "звук и text, “in quotes”. ",
    "mojibake in each sentence": "schÃ¶n it is, the rest is sound. ",
    "controls of Windows-1252": "it\x92s sound\x85 otherwise. ",
}


def race(texts: list[str], repair: Repair) -> tuple[float, float]:
    """CPU seconds of ours and of ftfy for all the texts."""
    ours = theirs = 0.0
    for text in texts:
        started = time.process_time()
        repaired = repair.apply(text)
        between = time.process_time()
        expected = ftfy.fix_text(text)
        ended = time.process_time()
        assert repaired.text == expected
        ours, theirs = ours + between - started, theirs + ended - between
    return ours, theirs


def kinds_of_documents(texts: list[str], repair: Repair) -> None:
    """A table: what changed in a document, how many such, and their share of our time."""
    documents, seconds = Counter[str](), Counter[str]()
    for text in texts:
        started = time.process_time()
        repaired = repair.apply(text)
        kind = ", ".join(repaired.changes) or ("nothing, ASCII" if text.isascii() else "nothing, beyond ASCII")
        seconds[kind] += time.process_time() - started
        documents[kind] += 1
    print("| changed | documents | share of our time |\n| --- | --- | --- |")
    for kind, spent in seconds.most_common(8):
        print(f"| {kind} | {documents[kind]:,} | {spent / seconds.total():.0%} |")


def huge_lines(megabytes: int, repair: Repair) -> None:
    print(f"\n| one line of {megabytes} MB | CPU seconds | MB/s | ftfy MB/s, first MB | peak MiB of the process |")
    print("| --- | --- | --- | --- | --- |")
    for name, sentence in HUGE_LINES.items():
        line = sentence * (megabytes * 1_000_000 // len(sentence))
        started = time.process_time()
        repair.apply(line)
        ours = time.process_time() - started
        started = time.process_time()
        ftfy.fix_text(line[:1_000_000])
        theirs = time.process_time() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"| {name} | {ours:.2f} | {megabytes / ours:,.0f} | {1 / theirs:.1f} | {peak:,} |", flush=True)


def show_repair(options: argparse.Namespace) -> None:
    """Measure on each file, then on the huge lines."""
    repair = Repair()
    repair.apply("warm up: é &")
    for file in options.files:
        with file.open() as lines:
            texts = [json.loads(line)["text"] for line in lines]
        ours, theirs = map(min, zip(*(race(texts, repair) for _ in range(options.rounds)), strict=True))
        characters = sum(map(len, texts)) / 1e6
        print(f"\n## {file.name}: {len(texts):,} documents, {characters:.1f} M characters\n")
        print("| | documents per CPU second | M characters per CPU second |\n| --- | --- | --- |")
        for name, seconds in (("ours", ours), ("ftfy.fix_text", theirs)):
            print(f"| {name} | {len(texts) / seconds:,.0f} | {characters / seconds:.1f} |")
        print(f"\n{theirs / ours:.1f} times ftfy, all texts equal.\n")
        kinds_of_documents(texts, repair)
        profile = cProfile.Profile()
        profile.runcall(lambda texts=texts: [repair.apply(text) for text in texts])
        pstats.Stats(profile).sort_stats("tottime").print_stats(8)
    if options.huge_mb:
        huge_lines(options.huge_mb, repair)


PASSING = '''"""Stage `passing`: every document as it is."""

from pathlib import Path

from pipelines.command import Documents, Part, StageSpec, Table
from pipelines.documents import ShardWriter, read_rows
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main


def passing(run: StageRun, documents: Documents, output: Table) -> None:
    """Keep every document."""
    run.map(pass_part, documents.parts, into=output)


def pass_part(part: Part, folder: Path) -> Counts:
    with ShardWriter(folder, part.name) as shard:
        for row in read_rows(part.file):
            shard.keep(row)
    return shard.counts


VERSION, SHAPED_BY = 1, ()  # read by checkouts of before decision 15, which have no StageSpec.of
STAGE = StageSpec.of(passing, VERSION, SHAPED_BY) if hasattr(StageSpec, "of") else None

if __name__ == "__main__":
    stage_main("passing")
'''
PACKERS = {"": [], ".gz": ["gzip", "-nc"], ".zst": ["zstd", "-qc"], ".xz": ["xz", "-c"], ".bz2": ["bzip2", "-c"]}
HERE = Path(__file__).parents[1]


def write_forms(corpus: Path, copies: int, suffixes: list[str], folder: Path) -> None:
    """The corpus in each form, two files of one document of it, and the stage."""
    with (folder / "corpus.jsonl").open("wb") as out:
        for _ in range(copies):
            out.write(corpus.read_bytes())
    (folder / "two").mkdir()
    with corpus.open("rb") as lines:
        for name in ("one.jsonl", "two.jsonl"):
            (folder / "two" / name).write_bytes(lines.readline())
    for suffix in suffixes:
        if PACKERS[suffix]:
            with (folder / f"corpus.jsonl{suffix}").open("wb") as out:
                subprocess.run([*PACKERS[suffix], folder / "corpus.jsonl"], stdout=out, check=True)
    (folder / "passing.py").write_text(PASSING)


def pass_through(root: Path, source: Path, output: Path, workers: int) -> Usage:
    """One run of the stage with the project in `root`."""
    os.environ["PYTHONPATH"] = f"{root}{os.pathsep}{source.parent}"
    command = [sys.executable, "-P", "-m", "passing", source, output, "--log-level", "error", "--workers", str(workers)]
    shutil.rmtree(output.parent, ignore_errors=True)
    return measure(command)


def best(usages: list[Usage]) -> Usage:
    """The least of each figure."""
    return Usage(*(min(getattr(usage, name) for usage in usages) for name in Usage.__slots__))


def profile(folder: Path) -> None:
    """The functions that take most of the time of one worker, this version, plain in and out."""
    sys.path.insert(0, str(folder))
    from pipelines.command import StageSpec
    from pipelines.stage import run_command

    spec = StageSpec.load("passing")
    profiler = cProfile.Profile()
    arguments = [str(folder / "corpus.jsonl"), str(folder / "profiled.jsonl"), "--workers", "1"]
    profiler.runcall(run_command, spec, arguments)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def show_jsonl(options: argparse.Namespace) -> None:
    """Measure both versions on every form of the corpus, and print a table."""
    versions = {"before": options.before} if options.before else {}
    versions |= {"after": HERE}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_forms(options.corpus, options.copies, options.suffixes, folder)
        megabytes = (folder / "corpus.jsonl").stat().st_size / 1e6
        print(f"{megabytes:.0f} MB of plain text, {options.rounds} rounds\n")
        print(
            "| in and out | version | workers | seconds | CPU seconds | start-up (CPU) | MB per CPU second | speed-up |"
        )
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for suffix in options.suffixes:
            usages: dict[tuple[str, int, str], list[Usage]] = {}
            for _ in range(options.rounds):
                for version, root in versions.items():
                    for workers in (1, 2):
                        for source in (f"corpus.jsonl{suffix}", "two"):
                            usage = pass_through(root, folder / source, folder / "out" / f"out.jsonl{suffix}", workers)
                            usages.setdefault((version, workers, source), []).append(usage)
            for version in versions:
                print_rows(
                    suffix, version, megabytes, {key[1:]: best(of) for key, of in usages.items() if key[0] == version}
                )
        if options.profile:
            profile(folder)


def print_rows(suffix: str, version: str, megabytes: float, least: dict[tuple[int, str], Usage]) -> None:
    """Two lines of the table."""
    work: dict[int, float] = {}
    for workers in (1, 2):
        whole, start = least[workers, f"corpus.jsonl{suffix}"], least[workers, "two"]
        work[workers] = whole.seconds - start.seconds
        figures = f"{whole.seconds:.2f} | {whole.cpu:.2f} | {start.seconds:.2f} ({start.cpu:.2f})"
        rate = f"{megabytes / whole.cpu:.0f} | {work[1] / work[workers]:.2f}"
        print(f"| .jsonl{suffix} | {version} | {workers} | {figures} | {rate} |", flush=True)


def main() -> None:
    """One part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    kernels_parser = parts.add_parser("kernels")
    kernels_parser.add_argument("corpus", type=Path)
    kernels_parser.add_argument("--shingle", default="word:5")
    kernels_parser.add_argument("--num-perm", type=int, default=128)
    kernels_parser.add_argument("--rounds", type=int, default=5)
    kernels_parser.set_defaults(show=show_kernels)
    repair_parser = parts.add_parser("repair")
    repair_parser.add_argument("files", nargs="+", type=Path)
    repair_parser.add_argument("--rounds", type=int, default=2)
    repair_parser.add_argument("--huge-mb", type=int, default=100)
    repair_parser.set_defaults(show=show_repair)
    jsonl_parser = parts.add_parser("jsonl")
    jsonl_parser.add_argument("corpus", type=Path)
    jsonl_parser.add_argument("--copies", type=int, default=1)
    jsonl_parser.add_argument("--rounds", type=int, default=3)
    jsonl_parser.add_argument("--before", type=Path)
    jsonl_parser.add_argument("--suffixes", nargs="*", default=["", ".gz", ".zst"], choices=list(PACKERS))
    jsonl_parser.add_argument("--profile", action="store_true")
    jsonl_parser.set_defaults(show=show_jsonl)
    options = parser.parse_args()
    options.show(options)


if __name__ == "__main__":
    main()
