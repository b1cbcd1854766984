"""The order in which a list is crawled: by the hash of the URL, so that no host's URLs come all at once.

Lists are sorted by URL, and so by host. They may be larger than memory: URLs are dealt to bucket files
by the first bits of their hash, and each bucket is sorted on its own when its turn comes. A short
list never touches the disk. Equal lists give equal orders.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import xxhash

SHORT_LIST = 100_000
"""URLs that are put in order in memory."""
_BUCKETS = 1024
"""A list of 50 million URLs has some 50,000 in each."""
_BUFFERED_BYTES = 1 << 25


def spread(urls: Iterable[str], folder: Path) -> Iterator[str]:
    """The URLs in the order of their hashes; `folder` takes bucket files where the list is long."""
    given = iter(urls)
    first = list(islice(given, SHORT_LIST))
    if len(first) < SHORT_LIST:
        return iter(_in_order(first))
    deal(chain(first, given), folder)
    return dealt(folder)


def deal(urls: Iterable[str], folder: Path) -> None:
    """Write each URL to the bucket file that it belongs to."""
    writer = BucketWriter(folder)
    for url in urls:
        writer.write(url)
    writer.close()


def dealt(folder: Path) -> Iterator[str]:
    """The URLs of the bucket files, in the order of their hashes."""
    for file in sorted(folder.glob("bucket-*")):
        yield from _in_order([json.loads(line) for line in file.read_bytes().splitlines()])
        file.unlink()


class BucketWriter:
    """Appends URLs to their buckets, in few large writes and without holding files open.

    One of `writers` that share the URLs of a list, and the memory for them.
    """

    def __init__(self, folder: Path, writers: int = 1) -> None:
        self._folder = folder
        self._buffers = [bytearray() for _ in range(max(_BUCKETS // writers, 1))]
        self._limit = _BUFFERED_BYTES // writers
        self._buffered = 0
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, url: str) -> None:
        """Take one URL."""
        line = json.dumps(url).encode() + b"\n"
        self._buffers[_hash(url) * len(self._buffers) >> 64] += line
        self._buffered += len(line)
        if self._buffered > self._limit:
            self.close()

    def close(self) -> None:
        """Bring everything to the files."""
        for number, buffer in enumerate(self._buffers):
            if buffer:
                with (self._folder / f"bucket-{number:05d}").open("ab") as file:
                    file.write(buffer)
                buffer.clear()
        self._buffered = 0


def _in_order(urls: list[str]) -> list[str]:
    return [url for _, url in sorted((_hash(url), url) for url in urls)]


def _hash(url: str) -> int:
    return xxhash.xxh3_64_intdigest(url.encode("utf-8", "surrogatepass"))
