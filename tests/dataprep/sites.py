"""Site folders and raw servers for tests; everything stays on 127.0.0.1."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

from dataprep.crawl.fetched import Fetched
from dataprep.crawl.local_site import Site, load_site
from dataprep.download import DownloadConfig

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


def quick(**changes: Any) -> DownloadConfig:
    """A configuration that does not wait."""
    values = {"backoff_seconds": 0.02, "connect_seconds": 1.0, "read_seconds": 1.0, "total_seconds": 2.0, **changes}
    return DownloadConfig(**values)


async def no_such_host(name: str) -> list[str]:
    """A name server that knows nobody."""
    raise OSError(-2, "Name or service not known")


@contextlib.asynccontextmanager
async def raw_server(answer: Callable[[bytes], Awaitable[bytes] | bytes]) -> AsyncGenerator[int]:
    """A server that sends exactly the bytes that `answer(request head)` gives, then closes; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            found = answer(request)
            writer.write(found if isinstance(found, bytes) else await found)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def by_url(outcomes: list[Fetched]) -> dict[str, Fetched]:
    """Outcomes by the URL of the list; each URL has one."""
    found = {fetched.url: fetched for fetched in outcomes}
    assert len(found) == len(outcomes)
    return found
