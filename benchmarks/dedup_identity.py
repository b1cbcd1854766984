"""Whether `deduplicate` writes the same bytes whatever the circumstances: workers, hash seeds, files, kills."""

import hashlib
import json
import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.dedup_runs import kept_urls, millrace, split

PIECES = 4
KILLS = 3
TABLES = ("kept.jsonl", "kept.rejected.jsonl", "pairs.jsonl", "groups.jsonl")


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
