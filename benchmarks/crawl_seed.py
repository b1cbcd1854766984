"""The way in which the Megatron scripts download, for the crawl benchmark: what it does beside the rival's pages.

    python -m benchmarks.crawl_seed URLS PORT OUTPUT

50 processes; 100 URLs at a time, and the next 100 when the last of them is done; `requests.get` for
each URL; every page into a file of its own, a row for each into a JSONL file. Left out on this side as
on ours: extraction. Added, so that both treat servers alike: at most two requests to a host at once
(semaphores that all processes share), and a timeout longer than any host hangs, so that both sides
get every page. There are no redirects, robots.txt or retries, which these scripts do not have either.
"""

import argparse
import hashlib
import itertools
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import requests
import yarl

_known: dict[str, Any] = {}


def begin(limits: dict[str, Any], port: int, pages: Path, timeout: float) -> None:
    """What every process knows."""
    _known.update(limits=limits, port=port, pages=pages, timeout=timeout)


def fetch(entry: tuple[int, str]) -> dict[str, object]:
    """Fetch one URL, write its page, and give a row about it."""
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


def main() -> None:
    """Download a list of URLs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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


if __name__ == "__main__":
    main()
