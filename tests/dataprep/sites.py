"""Site folders and raw servers for tests; everything stays on 127.0.0.1."""

import asyncio
import contextlib
import io
import json
import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

from fastwarc.warc import ArchiveIterator, WarcRecordType

from dataprep.download.config import CrawlOptions, DownloadConfig
from dataprep.download.crawler.crawl import crawl
from dataprep.download.crawler.local_site import LocalServer, Site, load_site, serve
from dataprep.download.outcomes import Outcome, Packed
from dataprep.download.stage import crawl_options

HTML = "<!doctype html><html><head><title>T</title></head><body><p>{}</p></body></html>"
TEXT = "The miller opens the gate at dawn and the water begins to turn the heavy wheel again. " * 10


def make_site(folder: Path, *entries: dict[str, Any], pages: int = 0, host: str = "garden.test") -> Path:
    """A site folder of the given entries; `body` of an entry becomes its file. `pages`: so many plain ones before."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = [{"url": f"http://{host}/page/{i}", "body": HTML.format(f"{i} {TEXT}")} for i in range(pages)]
    lines: list[str] = []
    for number, given in enumerate([*plain, *entries]):
        entry = dict(given)
        if "body" in entry:
            body = entry.pop("body")
            entry["file"] = f"{number}.html"
            (folder / entry["file"]).write_bytes(body if isinstance(body, bytes) else body.encode())
        lines.append(json.dumps(entry))
    (folder / "index.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def site_of(folder: Path, *entries: dict[str, Any], **options: Any) -> Site:
    """The same, loaded."""
    return load_site(make_site(folder, *entries, **options))


def quick(**changes: Any) -> CrawlOptions:
    """What a crawl is told that does not wait: the section with `changes`, in its parts."""
    values = {"backoff_seconds": 0.02, "connect_seconds": 1.0, "read_seconds": 1.0, "total_seconds": 2.0, **changes}
    return crawl_options(DownloadConfig(**values))


async def no_such_host(name: str) -> list[str]:
    """A name server that knows nobody."""
    raise OSError(-2, "Name or service not known")


Answer = Callable[[bytes], Awaitable[bytes] | bytes]


@contextlib.contextmanager
def raw_server(answer: Answer, *hosts: str) -> Generator[LocalServer]:
    """A server that sends exactly the bytes that `answer(request head)` gives, then closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            found = answer(request)
            writer.write(found if isinstance(found, bytes) else await found)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    with stream_server(talk, *hosts) as server:
        yield server


@contextlib.contextmanager
def stream_server(talk: Callable[..., Awaitable[None]], *hosts: str, **options: Any) -> Generator[LocalServer]:
    """A server that does what `talk(reader, writer)` says, from a thread of its own."""
    started: Future[tuple[int, Callable[[], None]]] = Future()

    async def until_cancelled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await talk(reader, writer)

    async def run() -> None:
        stopped = asyncio.Event()
        async with await asyncio.start_server(until_cancelled, "127.0.0.1", 0, **options) as server:
            loop = asyncio.get_running_loop()
            port = server.sockets[0].getsockname()[1]
            started.set_result((port, partial(loop.call_soon_threadsafe, stopped.set)))
            await stopped.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    port, stop = started.result()
    try:
        yield LocalServer(frozenset(hosts or ("raw.test",)), port)
    finally:
        stop()
        thread.join()


def crawling(
    urls: Iterable[str], web: Site | LocalServer, lookup: Any = no_such_host, processes: int = 1, **config: Any
) -> Iterator[Packed]:
    """A crawl of a site or of what a server answers, with a scratch folder of its own."""
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-crawl-")))
        server = stack.enter_context(serve(web)) if isinstance(web, Site) else web
        yield from crawl(urls, quick(**config), server, lookup, processes=processes, scratch=scratch)
        assert list(scratch.iterdir()) == [], "a crawl leaves nothing behind"


def crawled(urls: Iterable[str], web: Site | LocalServer, lookup: Any = no_such_host, **config: Any) -> list[Outcome]:
    """The outcomes of a whole crawl, in the order in which they came."""
    return [packed.outcome for packed in crawling(urls, web, lookup, **config)]


def records(packed: Packed) -> dict[str, bytes]:
    """The blocks of a page's WARC records, by type."""
    found = ArchiveIterator(io.BytesIO(packed.members), parse_http=False, record_types=WarcRecordType.any_type)
    return {record.headers["WARC-Type"]: record.reader.read() for record in found}


def by_url(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    """Outcomes by the URL of the list; each URL has one."""
    outcomes = list(outcomes)
    found = {outcome.url: outcome for outcome in outcomes}
    assert len(found) == len(outcomes)
    return found
