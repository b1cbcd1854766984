"""A web site in a folder, and the small server that serves it on loopback.

`index.jsonl` has one object per URL: `url`, and optionally `status` (200), `headers`, `file` (the body, a path below
the folder), `location`, `fail_first` (number of requests that are answered 503 first), `delay_seconds` (before the
answer) and `pad_bytes` (number of spaces after the body). The server answers by the Host header, as if it were all
the hosts of the index; any other URL is a 404.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import threading
from collections import Counter
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

from dataprep.web.domains import parse_address
from pipelines import config, store
from pipelines.errors import ConfigError, UserError
from pipelines.identity import split_url

INDEX = "index.jsonl"
LOOPBACK = "127.0.0.1"
SITE_TIME = "2026-01-01T00:00:00Z"
"""The time of every answer of a local site, so that its archive has the same bytes each time."""
_HTTP_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
_PAD_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Entry:
    """How the site answers one URL."""

    url: str
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    file: str = ""
    location: str = ""
    fail_first: int = 0
    delay_seconds: float = 0.0
    pad_bytes: int = 0


_KEYS = frozenset(each.name for each in dataclasses.fields(Entry))


@dataclass(frozen=True, slots=True)
class Site:
    """The index of a site folder: its answers by host, and path with query."""

    folder: Path
    entries: dict[tuple[str, str], Entry]

    @property
    def hosts(self) -> frozenset[str]:
        """The host names of the site."""
        return frozenset(host for host, _ in self.entries)


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server on loopback, and the only host names that lead there; small enough to pass to other processes."""

    hosts: frozenset[str]
    port: int


def load_site(folder: Path) -> Site:
    """Read and check the index of a site folder; raises UserError with the number of a wrong line."""
    index = folder / INDEX
    if not index.exists():
        raise UserError(f"{folder}: not a site folder: it has no {INDEX}; name the folder that has it")
    entries: dict[tuple[str, str], Entry] = {}
    for number, line in enumerate(store.read_lines(index), start=1):
        entry = _parse_entry(line, f"{index}:{number}")
        address = split_url(entry.url)
        if address is None or address.origin != f"http://{address.host}" or parse_address(address.host):
            raise UserError(f"{index}:{number}: {entry.url!r} is not an http URL of a named host on port 80")
        if not (folder / entry.file).resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{index}:{number}: {entry.file!r} is outside the site folder; name a file below it")
        if entry.file and not (folder / entry.file).is_file():
            raise UserError(f"{folder / entry.file}: no such file, but {index}:{number} names it")
        target = address.path + (f"?{address.query}" if address.query else "")
        entries[address.host, target] = entry
    return Site(folder, entries)


def _parse_entry(line: bytes, where: str) -> Entry:
    try:
        values: Any = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({error})") from None
    import pydantic

    # One validator for all lines; `config.check`, which builds one each time, is only used to explain an error.
    if isinstance(values, dict) and _KEYS.issuperset(cast(dict[str, Any], values)):
        with contextlib.suppress(pydantic.ValidationError):
            return _entry_adapter().validate_json(line, strict=True)
    try:
        return config.check(Entry, values, "entry", where)
    except ConfigError as error:
        raise UserError(str(error)) from None


@functools.cache
def _entry_adapter() -> Any:
    import pydantic

    return pydantic.TypeAdapter(Entry)


@contextlib.contextmanager
def serve(site: Site) -> Generator[LocalServer]:
    """Serve a site on a free loopback port until the block ends, from a thread with its own event loop."""
    started: Future[tuple[int, Callable[[], object]]] = Future()
    thread = threading.Thread(target=asyncio.run, args=(_serve(site, started),), name="local site", daemon=True)
    thread.start()
    port, stop = started.result()
    try:
        yield LocalServer(site.hosts, port)
    finally:
        stop()
        thread.join()


async def _serve(site: Site, started: "Future[tuple[int, Callable[[], object]]]") -> None:
    from aiohttp import web

    stopped = asyncio.Event()
    runner = web.ServerRunner(web.Server(_Answers(site).answer, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(runner, LOOPBACK, 0, shutdown_timeout=0.1).start()
        port = cast(tuple[str, int], runner.addresses[0])[1]
        started.set_result((port, partial(asyncio.get_running_loop().call_soon_threadsafe, stopped.set)))
        await stopped.wait()
    except OSError as error:
        started.set_exception(error)
    finally:
        await runner.cleanup()


class _Answers:
    """The request handler: the entries, and how often each was requested."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._asked: Counter[str] = Counter()

    async def answer(self, request: Any) -> Any:
        from aiohttp import web

        address = split_url(f"http://{request.host}{request.raw_path}")
        target = address.path + (f"?{address.query}" if address.query else "") if address else ""
        entry = self._site.entries.get((address.host if address else "", target))
        entry = entry or Entry(url="", status=404, headers={"Content-Type": "text/plain"})
        if entry.delay_seconds:
            await asyncio.sleep(entry.delay_seconds)
        self._asked[entry.url] += 1
        if entry.url and self._asked[entry.url] <= entry.fail_first:
            entry = dataclasses.replace(entry, status=503, file="", location="", pad_bytes=0)
        return await self._send(web.StreamResponse(status=entry.status), entry, request)

    async def _send(self, response: Any, entry: Entry, request: Any) -> Any:
        body = (self._site.folder / entry.file).read_bytes() if entry.file else b""
        response.headers.update({"Date": _HTTP_DATE, "Server": "millrace", "Content-Type": "text/html"})
        response.headers.update(entry.headers)
        if entry.location:
            response.headers["Location"] = entry.location
        response.content_length = len(body) + entry.pad_bytes
        # A client that has read enough closes the connection in the middle of an answer.
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            await response.write(body)
            for start in range(0, entry.pad_bytes, _PAD_CHUNK):
                await response.write(b" " * min(_PAD_CHUNK, entry.pad_bytes - start))
            await response.write_eof()
        return response
