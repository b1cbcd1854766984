"""Stage `urls` beside Megatron's blacklist_urls.py on made-up lists: whole processes, one after the other.

    python -m benchmarks.urls [--urls 5000000] [--workers 2] [--memory-budget 1GB]
    python -m benchmarks.urls --lists LISTS

With --lists, only the judging of one's own lists is measured, which real links and JSON records make harder.

Ours: the stage as a user runs it, from text files to sorted Parquet parts with every rejected line written down.
The rival is the pattern of Megatron-LM's tool, on the same files and with our lists: tldextract for each URL, a
suffix test, a pattern, a set of all URLs; it writes the set as it comes. The lists look like links on Reddit: few hosts
have most links, a fifth is blacklisted, a tenth repeats an earlier line, some in another spelling. Peak memory is
the resident memory of all processes together, a page that several share counted once (PSS).
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

RIVAL = """
import glob, re, sys
import tldextract
from dataprep.urls.blacklists import LISTS, list_files, load_blacklists
from dataprep.urls.megatron import _WELL_FORMED
lists = load_blacklists(list_files(LISTS))
extract = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
labels = {extract(entry).domain for entry in lists.domains}
extensions = tuple(lists.extensions)
urls = set()
for name in sorted(glob.glob(sys.argv[1] + "/*.txt")):
    for line in open(name):
        url = line.strip()
        if extract(url).domain in labels:
            continue
        if url.split("?")[0].lower().endswith(extensions):
            continue
        if len(url) <= 8 or _WELL_FORMED.match(url) is None or url in urls:
            continue
        urls.add(url)
with open(sys.argv[2], "w") as out:
    out.writelines(url + "\\n" for url in urls)
"""
JUDGE_ONE_CORE = """
import sys, time
from pathlib import Path
from dataprep.urls.blacklists import LISTS, compile_blacklists, list_files
from dataprep.web.url_lists import split_lists, url_lists
from dataprep.urls.reddit import submission_rules
from dataprep.urls.config import UrlsConfig
from dataprep.urls.stage import judge_chunk
from pipelines.command import Part
folder = Path(sys.argv[2])
folder.mkdir()
compile_blacklists(Part("lists", tuple(list_files(LISTS))), folder, "none")
tables = tuple(sorted(folder.glob("*.ipc")))
chunks = split_lists(url_lists(Path(sys.argv[1])))
names = [chunk.file.name for chunk in chunks]
rules = submission_rules("auto", 3, "", "")
started, rows = time.process_time(), 0
for chunk in chunks[:2]:
    part = Part(f"lines-{chunk.number:05d}", (chunk.file, *tables))
    rows += judge_chunk(part, folder, chunks, names, UrlsConfig(), rules, 64 << 20).rows_in
print(rows / (time.process_time() - started))
"""
WORDS = [a + b + c for a in "b d f g k l m n p r s t".split() for b in "a e i o u".split() for c in "l n r s t".split()]
ENDINGS = "com com com com org net co.uk de fr edu gov io com.au ca".split()
POPULAR = "imgur.com i.imgur.com www.youtube.com youtu.be twitter.com en.wikipedia.org www.reddit.com".split()


def make_lists(folder: Path, number: int, files: int = 8) -> None:
    """`number` URLs in text files, the same ones each time."""
    generator = random.Random(0)
    word = WORDS.__getitem__
    pick = generator.random
    hosts = [
        ("www." if pick() < 0.4 else "")
        + word(int(pick() * len(WORDS)))
        + word(int(pick() * len(WORDS)))
        + (word(int(pick() * len(WORDS))) if pick() < 0.5 else "")
        + "."
        + ENDINGS[int(pick() * len(ENDINGS))]
        for _ in range(max(number // 20, 100))
    ]
    recent: list[str] = []
    for file in range(files):
        with (folder / f"RS_2017-{file + 1:02d}.txt").open("w") as out:
            for _ in range(number // files):
                url = make_url(generator, hosts, recent)
                out.write(url + "\n")
                if pick() < 0.2:
                    recent.append(url)


def make_url(generator: random.Random, hosts: list[str], recent: list[str]) -> str:
    """One link: a new one, or one of those before."""
    pick = generator.random
    kind = pick()
    if kind < 0.1 and recent:
        url = recent[int(pick() * len(recent))]
        return url if pick() < 0.7 else url.replace("http://", "HTTP://", 1) + "#comments"
    if kind < 0.3:
        return f"http://{POPULAR[int(pick() * len(POPULAR))]}/{int(pick() * 1e9):x}"
    host = hosts[int(pick() ** 4 * len(hosts))]
    slug = "-".join([WORDS[int(pick() * len(WORDS))] for _ in range(int(pick() * 6) + 3)])
    url = f"http{'s' if pick() < 0.3 else ''}://{host}/{2005 + int(pick() * 13)}/{int(pick() * 12) + 1:02d}/{slug}"
    tail = pick()
    if tail < 0.25:
        return url + ".html"
    if tail < 0.4:
        return f"{url}?id={int(pick() * 1e6)}&page=2"
    if tail < 0.45:
        return url + "?utm_source=feed&utm_medium=rss"
    if tail < 0.48:
        return url + "/caf%c3%a9%20au%20lait"
    return url + (".jpg" if tail < 0.52 else "/" if tail < 0.8 else "")


def measure(command: list[str]) -> tuple[float, float, float]:
    """(seconds, CPU seconds, peak MiB) of a command and all its processes together."""
    started = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    watched = psutil.Process(process.pid)
    peak, cpu = 0, dict[int, float]()
    while process.poll() is None:
        size = 0
        for member in tree(watched):
            try:
                size += member.memory_full_info().pss
                times = member.cpu_times()
            except psutil.NoSuchProcess:
                continue
            cpu[member.pid] = times.user + times.system
        peak = max(peak, size)
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"failed: {' '.join(command)[:200]}")
    return time.perf_counter() - started, sum(cpu.values()), peak / 2**20


def tree(process: psutil.Process) -> list[psutil.Process]:
    """A process and all below it; none when it has just ended."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def main() -> None:
    """Make the lists, run both, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--urls", type=int, default=5_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--memory-budget", default="1GB")
    parser.add_argument("--lists", type=Path, help="a list or folder of lists to judge instead of made-up ones")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        if options.lists:
            print(f"{options.lists}: judging alone: {judging_speed(options.lists, work):,.0f} URLs per CPU second")
            return
        (work / "lists").mkdir()
        make_lists(work / "lists", options.urls)
        judged = judging_speed(work / "lists", work)
        stage = [sys.executable, "-m", "dataprep.urls", str(work / "lists"), str(work / "out"), "--overwrite"]
        flags = ["--memory-budget", options.memory_budget, "--log-level", "error", "--workers"]
        print(f"{options.urls:,} URLs; judging alone: {judged:,.0f} URLs per CPU second\n")
        print(
            "| | seconds | CPU seconds | URLs per CPU second | peak MiB | kept |\n| --- | --- | --- | --- | --- | --- |"
        )
        for workers in sorted({1, options.workers}):
            figures = measure([*stage, *flags, str(workers)])
            import pyarrow.dataset as ds

            kept = ds.dataset(sorted(map(str, (work / "out").glob("part-*.parquet")))).count_rows()
            row(f"urls, {workers} workers, budget {options.memory_budget}", options.urls, figures, kept)
        shutil.rmtree(work / "out")
        figures = measure([sys.executable, "-c", RIVAL, str(work / "lists"), str(work / "kept.txt")])
        with (work / "kept.txt").open() as file:
            row("blacklist_urls.py's pattern", options.urls, figures, sum(1 for _ in file))


def judging_speed(lists: Path, work: Path) -> float:
    """Lines per CPU second of judging the first two chunks of lists (64 MiB each) in one process."""
    command = [sys.executable, "-c", JUDGE_ONE_CORE, str(lists), str(work / "judged")]
    return float(subprocess.run(command, check=True, capture_output=True).stdout)


def row(what: str, number: int, figures: tuple[float, float, float], kept: int) -> None:
    """One line of the table."""
    seconds, cpu, peak = figures
    print(f"| {what} | {seconds:.1f} | {cpu:.1f} | {number / cpu:,.0f} | {peak:,.0f} | {kept:,} |", flush=True)


if __name__ == "__main__":
    main()
