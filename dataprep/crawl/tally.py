"""What a crawl has brought so far, for its progress: bytes, pages, and failures by rule."""

from collections import Counter

from dataprep.crawl.fetched import PAGE, Packed

_MOST_RULES = 4
"""Rules that are named; the others are `other`."""


class Tally:
    """Counts outcomes."""

    def __init__(self) -> None:
        self._rules: Counter[str] = Counter()
        self._bytes = 0

    def add(self, packed: Packed, /) -> None:
        """Count one outcome."""
        self._rules[packed.outcome.rule] += 1
        self._bytes += packed.outcome.bytes

    def text(self, seconds: float, /) -> str:
        """`3.6 MB/s, 100 pages, http_status 20, timeout 1`."""
        failed = [(rule, number) for rule, number in self._rules.most_common() if rule != PAGE]
        rules = [f"{rule} {number:,}" for rule, number in failed[:_MOST_RULES]]
        if others := sum(number for _, number in failed[_MOST_RULES:]):
            rules.append(f"other {others:,}")
        return ", ".join([f"{self._bytes / seconds / 1e6:.1f} MB/s", f"{self._rules[PAGE]:,} pages", *rules])
