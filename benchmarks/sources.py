"""Every source below a folder through `extract`: records in, documents out, reasons, seconds.

    python -m benchmarks.sources ../shared/data/warc ../shared/data/html ../shared/data/text

One row for each file and folder in the given folders, as a user would give it to the command. A
folder that the command refuses as a whole (its files are of no kind, or do not belong together) is
followed by a row for each of what it holds. Prints Markdown.

    python -m benchmarks.sources --workers-on PAGES.tar.gz

packs the pages of a tar archive (or a folder) into eight WARC files and compares one worker with two.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep.crawl.fetched import Fetched
from dataprep.crawl.warc_writer import pack

SHARDS = 8


@dataclass(frozen=True)
class Result:
    """What one run of the command said."""

    seconds: float
    counts: dict[str, Any] | None
    """None when it refused."""
    message: str


def run(source: Path, output: Path, *options: str) -> Result:
    """`extract` as a user runs it."""
    command = [sys.executable, "-m", "dataprep.extract", str(source), str(output), "--log-level", "warning", *options]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    counts = json.loads((output / "manifest.json").read_bytes())["counts"] if done.returncode == 0 else None
    lines = [line for line in done.stderr.splitlines() if "error:" in line or "not read," in line]
    return Result(seconds, counts, " ".join(lines))


def row(name: str, result: Result) -> str:
    """One line of the table."""
    message = result.message.partition("error: ")[2] or result.message.partition("extract: ")[2]
    if result.counts is None:
        return f"| {name} | {result.seconds:.1f} | | | | | {message} |"
    reasons = ", ".join(f"{rule} {number}" for rule, number in sorted(result.counts["rejected"].items()))
    skipped = ", ".join(
        f"{total.removeprefix('skipped_')} {number}"
        for total, number in sorted(result.counts["totals"].items())
        if total.startswith("skipped_")
    )
    columns = (name, f"{result.seconds:.1f}", result.counts["in"], result.counts["out"], reasons, skipped, message)
    return "| " + " | ".join(str(column) for column in columns) + " |"


def each_source(path: Path, root: Path, work: Path) -> Iterator[str]:
    """The rows of a file or a folder."""
    output = work / f"{len(list(work.iterdir())):05d}"
    result = run(path, output)
    name = path.relative_to(root).as_posix() + ("/" if path.is_dir() else "")
    yield row(name, result).replace(f"{path.parent}/", "")
    if result.counts is None and path.is_dir():
        for child in sorted(path.iterdir()):
            yield from each_source(child, root, work)


def table(folders: list[Path]) -> None:
    """A row for every source."""
    print("| source | seconds | in | documents | rejected | skipped records | said |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as work:
        for folder in folders:
            for path in sorted(folder.iterdir()):
                for line in each_source(path, folder.parent, Path(work)):
                    print(line, flush=True)


def read_pages(source: Path) -> list[bytes]:
    """The HTML files of a tar archive or of a folder, plain or .gz."""
    if source.is_dir():
        files = sorted(file for file in source.rglob("*") if ".html" in file.name)
        return [gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes() for file in files]
    with tarfile.open(source) as tar:
        members = [member for member in tar if member.isfile() and member.name.endswith(".html")]
        return [file.read() for member in members if (file := tar.extractfile(member))]


def pack_pages(pages: list[bytes], folder: Path) -> None:
    """The pages in WARC files as our crawler makes them."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"
    for k in range(SHARDS):
        members: list[bytes] = []
        for i, body in list(enumerate(pages))[k::SHARDS]:
            url = f"http://bench.test/{i}"
            fetched = Fetched(url=url, final_url=url, started="2026-01-31T12:00:00Z", response_head=head, body=body)
            members.append(pack(fetched).members)
        (folder / f"segment-{k:05d}.warc.gz").write_bytes(b"".join(members))


def compare_workers(source: Path, rounds: int, copies: int) -> None:
    """One worker and two on the same archives, in turns; the outputs must be equal."""
    pages = read_pages(source) * copies
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        (work / "in").mkdir()
        pack_pages(pages, work / "in")
        results: dict[int, list[Result]] = {1: [], 2: []}
        for turn in range(rounds):
            for workers, rows in results.items():
                rows.append(run(work / "in", work / f"{turn}-{workers}", "--workers", str(workers)))
            first, second = [(work / f"{turn}-{workers}" / "manifest.json").read_bytes() for workers in results]
            assert first == second, "the number of workers changed the output"
        best = {workers: min(rows, key=lambda row: row.seconds) for workers, rows in results.items()}
        print(f"{len(pages)} pages of {sum(map(len, pages)) / len(pages) / 1000:.0f} kB, best of {rounds} rounds\n")
        print("| workers | seconds | pages per second |\n| --- | --- | --- |")
        for workers, each in best.items():
            print(f"| {workers} | {each.seconds:.1f} | {len(pages) / each.seconds:.0f} |")
        print(f"\ntwo workers are {best[1].seconds / best[2].seconds:.2f} times as fast as one")


def main() -> None:
    """The table, or the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--workers-on", type=Path, metavar="PAGES")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=3, help="of the pages; the start takes 2 to 4 seconds")
    options = parser.parse_args()
    if options.workers_on:
        compare_workers(options.workers_on, options.rounds, options.copies)
    else:
        table(options.folders)


if __name__ == "__main__":
    main()
