"""The crawler beside Megatron's way of downloading: pages per CPU second, wall-clock rate, memory.

    python -m benchmarks.crawl COLLECTIONS [--pages 20000] [--rounds 1]

COLLECTIONS is a folder with scrapinghub, l3s-gn1.tar.gz and cleaneval-final.tar.gz, from which the
server makes its web: pages of 90 kB mean on 500 hosts, 20 ms until a host answers, and 10 s at 2 %
of the hosts. Both sides fetch the same URLs in the same mixed order, at most two at
once from a host, and wait long enough to get every page. Ours is the whole command of the stage
`download`: robots.txt, checks, fetch store, WARC segments and fetch log, start-up included; once with
plain answers, for which the aims hold, and once with gzip as real servers send them. The rival
keeps raw pages. CPU seconds are those of the client's processes, user and system, without the
server's. Memory is the proportional share (PSS) of all processes of the client, when so
many of the pages have been sent.

The server and both clients are processes of their own, this file again:

    python -m benchmarks.crawl server COLLECTIONS COUNTER [--latency 0.02] [--hang 10] [--hanging 0.02] [--gzip]
    python -m benchmarks.crawl millrace PORT HOSTS URLS OUTPUT --local-site FOLDER ...
    python -m benchmarks.crawl seeds URLS PORT OUTPUT [--per-host 2]

What only one of them needs is imported there, so that the others' memory does not count it.
"""

import argparse
import asyncio
import contextlib
import ctypes
import gzip
import hashlib
import itertools
import json
import mmap
import multiprocessing
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
from typing import Any

import psutil

AIM_PER_CPU_SECOND = 400.0
AIM_RATIO = 5.0
AIM_GROWTH = 1.25
"""Memory at the end beside that at a quarter of the pages: what counts as flat."""
MEAN_BYTES = 90_000
ROBOTS = b"User-agent: *\nDisallow: /private/\nDisallow: /search\n"
COUNTER_BYTES = 8
"""The file through which the server says how many pages it has sent: one little-endian number."""
_SAMPLE_SECONDS = 1.0
_PR_SET_CHILD_SUBREAPER = 36
_known: dict[str, Any] = {}
"""What every process of the rival knows."""


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
    command = [sys.executable, "-m", "benchmarks.crawl", "server", options.collections, counter]
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
    from pipelines.manifest import MANIFEST, Manifest

    site, output = work / "site", work / "download"
    site.mkdir()
    (site / "index.jsonl").write_text(json.dumps({"url": f"http://{host_name(0)}/"}) + "\n")
    with web(options, work / "sent", packed=packed) as (server, port):
        command = [sys.executable, "-m", "benchmarks.crawl", "millrace", port, options.hosts, work / "urls.txt", output]
        command += ["--local-site", site, "--per-host", options.per_host, "--log-level", "error"]
        command += ["--workers", options.workers]
        measured = measure(command, work / "sent", server, options.pages)
    counts = Manifest.load(output / MANIFEST).counts
    if counts.rows_out != options.pages:
        raise SystemExit(f"not every page was archived: {counts}")
    return measured


def megatron(options: argparse.Namespace, work: Path) -> Measured:
    """Return what Megatron's way takes for the same list."""
    output = work / "megatron"
    with web(options, work / "sent", packed=False) as (server, port):
        command = [sys.executable, "-m", "benchmarks.crawl", "seeds", work / "urls.txt", port, output]
        measured = measure([*command, "--per-host", options.per_host], work / "sent", server, options.pages)
    rows = [json.loads(line) for line in (output / "metadata.jsonl").read_text().splitlines()]
    if sum(row["success"] for row in rows) != options.pages:
        raise SystemExit(f"the rival has {sum(row['success'] for row in rows)} of {options.pages} pages")
    return measured


def real_pages(collections: Path) -> list[bytes]:
    """Distinct pages of 90 kB mean, in the order of their SHA-256; always the same ones.

    They are whole real pages: all of scrapinghub's (174 kB on average), then pages of L3S-GN1 and CleanEval in the
    order of their SHA-256 until the mean has come down to 90 kB.
    """
    from benchmarks.page_sets import cleaneval, l3s, scrapinghub

    chosen = [page.body for page in scrapinghub(collections)]
    size = sum(map(len, chosen))
    for body in _by_digest([page.body for page in itertools.chain(l3s(collections), cleaneval(collections))]):
        if size <= MEAN_BYTES * len(chosen):
            break
        chosen.append(body)
        size += len(body)
    return _by_digest(chosen)


def _by_digest(bodies: list[bytes]) -> list[bytes]:
    return sorted(set(bodies), key=lambda body: hashlib.sha256(body).digest())


def host_name(number: int) -> str:
    """The name of a host; the number can be read from it."""
    return f"www{number:05d}.bench.test"


def page_urls(pages: int, hosts: int) -> Iterator[str]:
    """One URL for each page, so mixed that neighbours have different hosts, as in a list of submissions."""
    order = sorted(range(pages), key=lambda number: hashlib.sha256(b"%d" % number).digest())
    return (f"http://{host_name(number % hosts)}/news/{number}/a-page-of-the-benchmark.html" for number in order)


class Answers:
    """All answers of one run, and how often a page was sent.

    Page number i of a crawl is real page i modulo their number, on host i modulo the hosts. A host answers after the
    latency; every 50th one (with 2 %) after the seconds for which it hangs. All answers are made before the first
    request, so that one costs a single write.
    """

    def __init__(self, pages: list[bytes], options: argparse.Namespace) -> None:
        self.robots = _response(ROBOTS, "text/plain", packed=False)
        self._pages = [_response(body, "text/html", packed=options.gzip) for body in pages]
        self._latency, self._hang = options.latency, options.hang
        self._every = round(1 / options.hanging) if options.hanging else sys.maxsize
        with options.counter.open("r+b") as file:
            self._counter = mmap.mmap(file.fileno(), COUNTER_BYTES)
        self._sent = 0

    def delay(self, host: bytes) -> float:
        """Seconds before a host answers."""
        return self._hang if (int(host[3:8]) + 1) % self._every == 0 else self._latency

    def page(self, path: bytes) -> bytes:
        """Head and body of the page at `/news/<number>/...`."""
        self._sent += 1
        self._counter[:] = self._sent.to_bytes(COUNTER_BYTES, "little")
        return self._pages[int(path.split(b"/")[2]) % len(self._pages)]


def _response(body: bytes, kind: str, *, packed: bool) -> bytes:
    sent = gzip.compress(body, 6, mtime=0) if packed else body
    lines = [
        "HTTP/1.1 200 OK",
        "Date: Thu, 01 Jan 2026 00:00:00 GMT",
        "Server: Apache/2.4.58 (Unix)",
        "Last-Modified: Wed, 31 Dec 2025 00:00:00 GMT",
        f'ETag: "{hashlib.md5(body, usedforsecurity=False).hexdigest()}"',
        "Cache-Control: max-age=300",
        "Vary: Accept-Encoding",
        *(["Content-Encoding: gzip"] if packed else []),
        f"Content-Length: {len(sent)}",
        "Keep-Alive: timeout=60",
        "Connection: Keep-Alive",
        f"Content-Type: {kind}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + sent


class Connection(asyncio.Protocol):
    """One connection: a request, a wait, an answer, and again."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where answers go."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each whole request after its wait."""
        *requests, self._received = (self._received + data).split(b"\r\n\r\n")
        for request in requests:
            path = request.split(b" ", 2)[1]
            host = request.partition(b"\r\nHost: ")[2].partition(b"\r\n")[0]
            delay = self._answers.delay(host)
            asyncio.get_running_loop().call_later(delay, self._answer, path, b"Connection: close" in request)

    def _answer(self, path: bytes, last: bool) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._answers.robots if path == b"/robots.txt" else self._answers.page(path))
        if last:
            self._transport.close()


async def serve(answers: Answers) -> None:
    """Say the port on standard output, then serve for ever."""
    server = await asyncio.get_running_loop().create_server(lambda: Connection(answers), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def run_server() -> None:
    """The server's own process, until it is killed. It answers by Host header and keeps connections open."""
    parser = argparse.ArgumentParser(prog="benchmarks.crawl server")
    parser.add_argument("collections", type=Path)
    parser.add_argument("counter", type=Path)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--hang", type=float, default=10.0)
    parser.add_argument("--hanging", type=float, default=0.02, help="share of the hosts")
    parser.add_argument("--gzip", action="store_true")
    options = parser.parse_args()
    asyncio.run(serve(Answers(real_pages(options.collections), options)))


def run_stage() -> None:
    """The stage `download` as a command, behind a port and a number of hosts; its local site is the server.

    The downloader reaches nothing on loopback but the server that it starts for `download.local_site`.
    So only that is replaced: the hosts of the benchmark lead to the port of its own server process.
    """
    from dataprep.download.crawler import local_site
    from pipelines.stage import stage_main

    _, port, hosts, *arguments = sys.argv
    server = local_site.LocalServer(frozenset(map(host_name, range(int(hosts)))), int(port))

    @contextlib.contextmanager
    def serve(_: local_site.Site) -> Iterator[local_site.LocalServer]:
        yield server

    local_site.serve = serve
    sys.argv = [sys.argv[0], *arguments]
    stage_main("dataprep.download")


def begin(limits: dict[str, Any], port: int, pages: Path, timeout: float) -> None:
    """Tell a process of the rival what it works with."""
    _known.update(limits=limits, port=port, pages=pages, timeout=timeout)


def fetch(entry: tuple[int, str]) -> dict[str, object]:
    """Fetch one URL, write its page, and give a row about it."""
    import requests
    import yarl

    number, url = entry
    host = yarl.URL(url).host
    name = f"{number:07d}-{hashlib.sha256(url.encode()).hexdigest()}"
    started = time.time()
    try:
        with _known["limits"][host]:
            # The server of the benchmark stands for every host, so its address is asked and the host named.
            address = url.replace(str(host), f"127.0.0.1:{_known['port']}", 1)
            response = requests.get(address, headers={"Host": host}, timeout=_known["timeout"], allow_redirects=False)
        (_known["pages"] / name).write_bytes(response.content)
    except requests.RequestException as error:
        return {"fid": name, "url": url, "success": False, "error": str(error)}
    return {"fid": name, "url": url, "success": response.status_code == 200, "elapsed": time.time() - started}


def run_seeds() -> None:
    """Download a list of URLs as the Megatron scripts do.

    50 processes; 100 URLs at a time, and the next 100 when the last of them is done; `requests.get` for
    each URL; every page into a file of its own, a row for each into a JSONL file. Left out on this side as
    on ours: extraction. Added, so that both treat servers alike: at most two requests to a host at once
    (semaphores that all processes share), and a timeout longer than any host hangs, so that both sides
    get every page. There are no redirects, robots.txt or retries, which these scripts do not have either.
    """
    import requests  # noqa: F401 - before the fork, so that the processes share its memory
    import yarl

    parser = argparse.ArgumentParser(prog="benchmarks.crawl seeds")
    parser.add_argument("urls", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("output", type=Path)
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--chunk", type=int, default=100)
    parser.add_argument("--per-host", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=20.0)
    options = parser.parse_args()
    urls = options.urls.read_text().splitlines()
    limits = {yarl.URL(url).host: multiprocessing.Semaphore(options.per_host) for url in urls}
    pages = options.output / "scraped"
    pages.mkdir(parents=True)
    entries = iter(enumerate(urls))
    arguments = (limits, options.port, pages, options.timeout)
    with (
        multiprocessing.get_context("fork").Pool(options.processes, begin, arguments) as pool,
        (options.output / "metadata.jsonl").open("w") as rows,
    ):
        while chunk := list(itertools.islice(entries, options.chunk)):
            for row in list(pool.imap(fetch, chunk)):
                rows.write(json.dumps(row) + "\n")
            (options.output / "done").write_text(str(chunk[-1][0]))


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
    if "megatron" in middle:
        ratio = plain.rate / middle["megatron"].rate
        rows.append(("wall-clock rate / Megatron's way", ratio, AIM_RATIO, ratio >= AIM_RATIO))
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
    parser.add_argument("--without", nargs="*", default=[], choices=["plain", "gzip", "megatron"], help="leave out")
    return parser.parse_args()


PROCESSES = {"server": run_server, "millrace": run_stage, "seeds": run_seeds}
"""What this file is in a process of its own, by its first argument."""


def main() -> None:
    """Run the rounds, interleaved; print the tables; exit 1 when an aim is missed."""
    options = parse()
    # Processes whose parent has ended become ours, so that their CPU seconds are counted.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    sides = {
        "millrace, plain": lambda work: millrace(options, work, packed=False),
        "millrace, gzip": lambda work: millrace(options, work, packed=True),
        "megatron": lambda work: megatron(options, work),
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
    if process := PROCESSES.get("".join(sys.argv[1:2])):
        del sys.argv[1]
        process()
    else:
        main()
