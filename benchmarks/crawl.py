"""The crawler beside the seeds' way of downloading: pages per CPU second, wall-clock rate, memory.

    python -m benchmarks.crawl COLLECTIONS [--pages 20000] [--rounds 1]

COLLECTIONS is a folder with scrapinghub, l3s-gn1.tar.gz and cleaneval-final.tar.gz, from which the
server makes its web (`crawl_server`): pages of 90 kB mean on 500 hosts, 20 ms until a host answers,
and 10 s at 2 % of the hosts. Both sides fetch the same URLs in the same mixed order, at most two at
once from a host, and wait long enough to get every page. Ours is the whole command of the stage
`download`: robots.txt, checks, fetch store, WARC segments and fetch log, start-up included; once with
plain answers, for which the aims hold, and once with gzip as real servers send them. The rival
(`crawl_seed`) keeps raw pages. CPU seconds are those of the client's processes, user and system,
without the server's. Memory is the proportional share (PSS) of all processes of the client, when so
many of the pages have been sent.
"""

import argparse
import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.crawl_server import COUNTER_BYTES, host_name, page_urls
from pipelines.manifest import MANIFEST, Manifest

AIM_PER_CPU_SECOND = 400.0
AIM_RATIO = 5.0
AIM_GROWTH = 1.25
"""Memory at the end beside that at a quarter of the pages: what counts as flat."""
_SAMPLE_SECONDS = 1.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Memory:
    """Memory of a process and its descendants over a run, by how many pages had been sent."""

    samples: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])

    def watch(self, process: int, counter: Path, ended: threading.Event) -> None:
        """Take samples until the run has ended."""
        while not ended.wait(_SAMPLE_SECONDS):
            sent = int.from_bytes(counter.read_bytes(), "little")
            if mib := _tree_mib(process):
                self.samples.append((sent, mib))

    @property
    def peak(self) -> float:
        """MiB, at most."""
        return max(mib for _, mib in self.samples)

    def at(self, pages: int) -> float:
        """MiB in the last sample before so many pages had been sent."""
        return [mib for sent, mib in self.samples if sent < pages or sent == 0][-1]


def _tree_mib(process: int) -> float:
    total = 0
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(process)
        for member in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += member.memory_full_info().pss
    return total / 2**20


@dataclass(frozen=True)
class Measured:
    """One run of one side."""

    pages: int
    seconds: float
    cpu: float
    memory: Memory

    @property
    def rate(self) -> float:
        """Pages per second of the wall clock."""
        return self.pages / self.seconds

    @property
    def per_cpu_second(self) -> float:
        """Pages per CPU second of the client."""
        return self.pages / self.cpu


@contextlib.contextmanager
def web(options: argparse.Namespace, counter: Path, *, packed: bool) -> Iterator[tuple[int, int]]:
    """The server's process: (its id, its port)."""
    counter.write_bytes(bytes(COUNTER_BYTES))
    command = [sys.executable, "-m", "benchmarks.crawl_server", options.collections, counter]
    command += ["--latency", options.latency, "--hang", options.hang, "--hanging", options.hanging]
    process = subprocess.Popen([*map(str, command), *(["--gzip"] if packed else [])], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def measure(command: list[object], counter: Path, server: int, pages: int) -> Measured:
    """Run a client to its end, and all that it leaves behind: a fork server outlives the one who started it."""
    before, started, memory, ended = _children_cpu(), time.perf_counter(), Memory(), threading.Event()
    process = subprocess.Popen([*map(str, command)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    watcher = threading.Thread(target=memory.watch, args=(process.pid, counter, ended))
    watcher.start()
    status = process.wait()
    seconds = time.perf_counter() - started
    ended.set()
    watcher.join()
    if status:
        raise SystemExit(f"failed: {' '.join(map(str, command))}")
    for orphan in psutil.Process().children():
        if orphan.pid != server:
            os.waitpid(orphan.pid, 0)
    return Measured(pages, seconds, _children_cpu() - before, memory)


def _children_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def millrace(options: argparse.Namespace, work: Path, *, packed: bool) -> Measured:
    """The stage `download` on the list, checked for a page of every URL."""
    site, output = work / "site", work / "download"
    site.mkdir()
    (site / "index.jsonl").write_text(json.dumps({"url": f"http://{host_name(0)}/"}) + "\n")
    with web(options, work / "sent", packed=packed) as (server, port):
        command = [sys.executable, "-m", "benchmarks.crawl_client", port, options.hosts, work / "urls.txt", output]
        command += ["--local-site", site, "--per-host", options.per_host, "--log-level", "error"]
        command += ["--workers", options.workers]
        measured = measure(command, work / "sent", server, options.pages)
    counts = Manifest.load(output / MANIFEST).counts
    if counts.rows_out != options.pages:
        raise SystemExit(f"not every page was archived: {counts}")
    return measured


def seeds(options: argparse.Namespace, work: Path) -> Measured:
    """The rival on the same list."""
    output = work / "seeds"
    with web(options, work / "sent", packed=False) as (server, port):
        command = [sys.executable, "-m", "benchmarks.crawl_seed", work / "urls.txt", port, output]
        measured = measure([*command, "--per-host", options.per_host], work / "sent", server, options.pages)
    rows = [json.loads(line) for line in (output / "metadata.jsonl").read_text().splitlines()]
    if sum(row["success"] for row in rows) != options.pages:
        raise SystemExit(f"the rival has {sum(row['success'] for row in rows)} of {options.pages} pages")
    return measured


def table(results: dict[str, list[Measured]], pages: int) -> dict[str, Measured]:
    """Print a row for each side, its round of median CPU; give these rounds."""
    print("| client | pages | seconds | pages/s | CPU s | pages per CPU s | peak MiB | MiB at 25, 50, 75, 100 % |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    middle: dict[str, Measured] = {}
    for name, rounds in results.items():
        found = middle[name] = sorted(rounds, key=lambda measured: measured.cpu)[(len(rounds) - 1) // 2]
        memory = ", ".join(f"{found.memory.at(pages * part // 4):.0f}" for part in (1, 2, 3, 4))
        print(
            f"| {name} | {found.pages:,} | {found.seconds:.1f} | {found.rate:,.0f} | {found.cpu:.1f} | "
            f"{found.per_cpu_second:,.0f} | {found.memory.peak:.0f} | {memory} |"
        )
    return middle


def judge(middle: dict[str, Measured], pages: int) -> bool:
    """Print each aim with what was reached; whether all of them hold."""
    plain = middle["millrace, plain"]
    growth = plain.memory.at(pages) / plain.memory.at(pages // 4)
    rows = [
        (
            "pages per client CPU second",
            plain.per_cpu_second,
            AIM_PER_CPU_SECOND,
            plain.per_cpu_second >= AIM_PER_CPU_SECOND,
        ),
        ("memory at the end / at a quarter", growth, AIM_GROWTH, growth <= AIM_GROWTH),
    ]
    if "seeds" in middle:
        ratio = plain.rate / middle["seeds"].rate
        rows.append(("wall-clock rate / the seeds' way", ratio, AIM_RATIO, ratio >= AIM_RATIO))
    print("\n| aim | reached | limit | |\n| --- | --- | --- | --- |")
    for name, reached, limit, good in rows:
        print(f"| {name} | {reached:,.2f} | {limit:g} | {'ok' if good else 'FAILED'} |")
    return all(row[3] for row in rows)


def parse() -> argparse.Namespace:
    """The options of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path)
    parser.add_argument("--pages", type=int, default=20_000)
    parser.add_argument("--hosts", type=int, default=500)
    parser.add_argument("--per-host", type=int, default=2)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds until a host answers")
    parser.add_argument("--hang", type=float, default=10.0, help="seconds until a hanging host answers")
    parser.add_argument("--hanging", type=float, default=0.02, help="share of the hosts that hang")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0, help="of the stage; 0 is one per core")
    parser.add_argument("--without", nargs="*", default=[], choices=["plain", "gzip", "seeds"], help="leave out")
    return parser.parse_args()


def main() -> None:
    """Run the rounds, interleaved; print the tables; exit 1 when an aim is missed."""
    options = parse()
    # Processes whose parent has ended become ours, so that their CPU seconds are counted.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sides = {
        "millrace, plain": lambda work: millrace(options, work, packed=False),
        "millrace, gzip": lambda work: millrace(options, work, packed=True),
        "seeds": lambda work: seeds(options, work),
    }
    results: dict[str, list[Measured]] = {}
    for _ in range(options.rounds):
        for name, side in sides.items():
            if not any(word in name for word in options.without):
                with tempfile.TemporaryDirectory() as folder:
                    work = Path(folder)
                    (work / "urls.txt").write_text("\n".join(page_urls(options.pages, options.hosts)) + "\n")
                    results.setdefault(name, []).append(side(work))
    sys.exit(not judge(table(results, options.pages), options.pages))


if __name__ == "__main__":
    main()
