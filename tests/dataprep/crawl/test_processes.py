"""A crawl in several real processes: the same outcomes, the same manners, and clean ends."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from dataprep.crawl import crawler
from dataprep.crawl.fetched import Outcome
from dataprep.crawl.jobs import Job
from dataprep.crawl.local_site import serve
from dataprep.crawl.processes import Child, crawl_in_processes
from dataprep.crawl.shares import Share, share_of
from dataprep.download import DownloadConfig
from pipelines.errors import UserError
from tests.dataprep.sites import HTML, TEXT, by_url, crawled, crawling, no_such_host, quick, raw_server, site_of

ROOT = Path(__file__).parents[3]
Children = Callable[[], list[BaseProcess]]
HOSTS = [f"h{i}.test" for i in range(12)]


@pytest.fixture(autouse=True)
def small_lists_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started for these few URLs as for many."""
    monkeypatch.setattr(crawler, "URLS_PER_PROCESS", 1)


@pytest.fixture(autouse=True)
def own_children() -> Iterator[Children]:
    """The child processes that the test has started; it leaves none."""
    before = set(multiprocessing.active_children())

    def children() -> list[BaseProcess]:
        return [child for child in multiprocessing.active_children() if child not in before]

    yield children
    assert children() == []


def test_several_processes_give_the_same_outcomes_as_one(tmp_path: Path) -> None:
    site = site_of(
        tmp_path,
        *({"url": f"http://{host}/page", "body": HTML.format(host + TEXT)} for host in HOSTS),
        *(
            {"url": f"http://{host}/away", "status": 302, "location": f"http://{other}/page"}
            for host, other in zip(HOSTS, HOSTS[5:] + HOSTS[:5], strict=True)
        ),
        {"url": "http://h1.test/robots.txt", "body": "User-agent: *\nDisallow: /page\n"},
        {"url": "http://h2.test/robots.txt", "status": 302, "location": "http://h1.test/robots.txt"},
        {"url": "http://h3.test/robots.txt", "status": 500},
        {"url": "http://h4.test/page2", "body": HTML, "fail_first": 1},
    )
    urls = [f"http://{host}/{name}" for host in HOSTS for name in ("page", "away", "missing")]
    urls += ["nothing", "http://10.0.0.1/", "http://unknown.test/", "http://h4.test/page2"]
    one, three = (by_url(crawled(urls, site, processes=processes)) for processes in (1, 3))
    assert one == three
    assert {outcome.rule for outcome in one.values()} == {
        *("", "robots_denied", "robots_unreachable", "http_status", "malformed", "private_address", "dns_error")
    }
    packed = {record.outcome.url: record.members for record in crawling(urls, site, processes=2)}
    assert packed == {record.outcome.url: record.members for record in crawling(urls, site)}


def test_a_host_keeps_its_limit_also_for_redirects_from_other_processes() -> None:
    under_way, most = Counter[bytes](), Counter[bytes]()

    async def answer(request: bytes) -> bytes:
        host = request.partition(b"\r\nHost: ")[2].partition(b"\r\n")[0]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
        if host != b"one.test":
            return b"HTTP/1.1 302 Found\r\nLocation: http://one.test/" + host + b"\r\nContent-Length: 0\r\n\r\n"
        under_way[host] += 1
        most[host] = max(most[host], under_way[host])
        await asyncio.sleep(0.02)
        under_way[host] -= 1
        return head + b"Content-Length: %d\r\n\r\n" % len(HTML) + HTML.encode()

    urls = [f"http://{host}/{i}" for host in HOSTS for i in range(3)]
    with raw_server(answer, "one.test", *HOSTS) as server:
        found = crawled(urls, server, processes=3, robots=False)
    assert {outcome.rule for outcome in found} == {""}
    assert len(found) == len(urls)
    assert most[b"one.test"] == 2


def test_places_and_rate_are_shared_out_and_each_host_has_one_process() -> None:
    shares = [Share(index, 3) for index in range(3)]
    config = DownloadConfig(concurrency=8, requests_per_second=30.0)
    assert [share.of(config).concurrency for share in shares] == [3, 3, 2]
    assert {share.of(config).requests_per_second for share in shares} == {10.0}
    for host in HOSTS:
        assert [share.has(host) for share in shares] == [index == share_of(host, 3) for index in range(3)]


def first_outcome(folder: Path, hosts: list[str]) -> "tuple[Iterator[Outcome], Outcome]":
    """A crawl of three slow pages and a quick one, after its first outcome."""
    slow = [{"url": f"http://{host}/", "delay_seconds": 30.0, "body": HTML} for host in hosts]
    site = site_of(folder, *slow, pages=1)
    urls = ["http://garden.test/page/0", *(f"http://{host}/" for host in hosts)]
    found = crawling(urls, site, processes=2, robots=False, read_seconds=30.0, total_seconds=30.0)
    outcomes = (packed.outcome for packed in found)
    return outcomes, next(outcomes)


def test_a_child_that_is_killed_is_one_clear_error(tmp_path: Path, own_children: Children) -> None:
    outcomes, first = first_outcome(tmp_path, HOSTS)
    assert first.url == "http://garden.test/page/0"
    children = own_children()
    assert len(children) == 2
    os.kill(children[0].pid or 0, signal.SIGKILL)
    with pytest.raises(UserError, match="a crawling process ended with exit code -9"):
        list(outcomes)


@pytest.mark.parametrize("sent", [b"", struct.pack("!i", 1000) + b"the start of a message"])
def test_a_pipe_that_ends_anywhere_is_the_same_clear_error(sent: bytes, tmp_path: Path) -> None:
    with Child(Share(0, 1), quick(), None, no_such_host, tmp_path) as child:
        child.connection.close()
        child.connection, other_end = multiprocessing.Pipe()
        os.write(other_end.fileno(), sent)
        other_end.close()
        with pytest.raises(UserError, match="a crawling process ended with exit code 0"):
            child.receive()
        with pytest.raises(UserError, match="a crawling process ended with exit code 0"):
            child.send(Job("http://a.test/", "a.test", "http://a.test/"))


def test_leaving_early_ends_the_children_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    outcomes, _ = first_outcome(tmp_path, HOSTS)
    outcomes.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 15.0


def test_an_error_of_the_disk_in_a_child_is_raised_here(tmp_path: Path) -> None:
    """The file for what memory has no room for cannot be made."""
    folder = tmp_path / "frontier"
    (folder / "0" / "backlog").mkdir(parents=True)
    host = next(host for host in HOSTS if share_of(host, 2) == 0)
    site = site_of(tmp_path / "site", {"url": f"http://{host}/", "body": HTML})
    with serve(site) as server, pytest.raises(IsADirectoryError):
        list(crawl_in_processes([f"http://{host}/"] * 100, quick(), server, no_such_host, 2, folder))


PROGRAM = """
import sys
from pathlib import Path
from dataprep.crawl import crawler
from dataprep.crawl.local_site import load_site, serve
from tests.dataprep.sites import quick

if __name__ == "__main__":
    crawler.URLS_PER_PROCESS = 1
    folder = Path(sys.argv[1])
    config = quick(robots=False, read_seconds=60.0, total_seconds=60.0)
    with serve(load_site(folder / "site")) as server:
        urls = ["http://garden.test/page/0", *(f"http://slow{i}.test/" for i in range(8))]
        for packed in crawler.crawl(urls, config, server, processes=2, scratch=folder):
            print(packed.outcome.url, flush=True)
"""


def session(leader: int) -> list[int]:
    """The processes that were started from `leader`, itself included, as long as they live."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.getsid(int(entry.name)) == leader:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_children_end_with_their_parent_however_it_ends(how: signal.Signals, tmp_path: Path) -> None:
    slow = [{"url": f"http://slow{i}.test/", "delay_seconds": 60.0, "body": HTML} for i in range(8)]
    site_of(tmp_path / "site", *slow, pages=1)
    (tmp_path / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, tmp_path / "program.py", tmp_path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout
    assert process.stdout.readline() == "http://garden.test/page/0\n"
    assert len(session(process.pid)) >= 4, "this one, its two children, and the server that forks them"
    if how == signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does
    else:
        process.send_signal(how)
    error = process.communicate(timeout=20)[1]
    deadline = time.monotonic() + 10
    while session(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session(process.pid) == []
    assert error.count("Traceback") == (how == signal.SIGINT), "the parent's own KeyboardInterrupt, no child's"
