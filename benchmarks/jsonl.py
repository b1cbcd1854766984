"""What JSON lines in and out cost: a stage that passes every document on, as a whole process with its start-up.

    python -m benchmarks.jsonl CORPUS.jsonl [--copies 10] [--rounds 3] [--before CHECKOUT] [--suffixes "" .gz .zst]

The corpus goes in and comes out plain, then packed; with 1 and with 2 workers; CHECKOUT is a folder with another
version of this project, measured in turn with this one. `start-up` is the same command on two files of one document,
so that two workers start too; the speed-up leaves it out. The least of the rounds counts: what else the machine does
only adds. Last, with --profile, where one worker's time goes.
"""

import argparse
import cProfile
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.processes import Usage, measure

PASSING = '''"""Stage `passing`: every document as it is."""

from pathlib import Path

from pipelines.command import Documents, Part, Table
from pipelines.documents import ShardWriter, read_rows
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION, SHAPED_BY = 1, ()


def passing(run: StageRun, documents: Documents, output: Table) -> None:
    """Keep every document."""
    run.map(pass_part, documents.parts, into=output)


def pass_part(part: Part, folder: Path) -> Counts:
    with ShardWriter(folder, part.name) as shard:
        for row in read_rows(part.file):
            shard.keep(row)
    return shard.counts


if __name__ == "__main__":
    stage_main("passing")
'''
PACKERS = {"": [], ".gz": ["gzip", "-nc"], ".zst": ["zstd", "-qc"], ".xz": ["xz", "-c"], ".bz2": ["bzip2", "-c"]}
HERE = Path(__file__).parents[1]


def prepare(corpus: Path, copies: int, suffixes: list[str], folder: Path) -> None:
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


def once(root: Path, source: Path, output: Path, workers: int) -> Usage:
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


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--suffixes", nargs="*", default=["", ".gz", ".zst"], choices=list(PACKERS))
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    versions = {"before": options.before} if options.before else {}
    versions |= {"after": HERE}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(options.corpus, options.copies, options.suffixes, folder)
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
                            usage = once(root, folder / source, folder / "out" / f"out.jsonl{suffix}", workers)
                            usages.setdefault((version, workers, source), []).append(usage)
            for version in versions:
                row(suffix, version, megabytes, {key[1:]: best(of) for key, of in usages.items() if key[0] == version})
        if options.profile:
            profile(folder)


def row(suffix: str, version: str, megabytes: float, least: dict[tuple[int, str], Usage]) -> None:
    """Two lines of the table."""
    work: dict[int, float] = {}
    for workers in (1, 2):
        whole, start = least[workers, f"corpus.jsonl{suffix}"], least[workers, "two"]
        work[workers] = whole.seconds - start.seconds
        figures = f"{whole.seconds:.2f} | {whole.cpu:.2f} | {start.seconds:.2f} ({start.cpu:.2f})"
        rate = f"{megabytes / whole.cpu:.0f} | {work[1] / work[workers]:.2f}"
        print(f"| .jsonl{suffix} | {version} | {workers} | {figures} | {rate} |", flush=True)


if __name__ == "__main__":
    main()
