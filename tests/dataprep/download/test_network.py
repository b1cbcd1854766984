"""What the progress of a crawl says beside the number of URLs."""

from dataprep.download.network import Tally
from dataprep.download.outcomes import Outcome, Packed


def test_pages_bytes_and_the_commonest_failures_are_told() -> None:
    tally = Tally()
    for _ in range(10):
        tally.add(Packed(Outcome(url="u", bytes=2_000_000)))
    for rule, number in (("timeout", 5), ("http_status", 9), ("a", 3), ("b", 2), ("c", 1), ("d", 1)):
        for _ in range(number):
            tally.add(Packed(Outcome(url="u", rule=rule)))
    assert tally.text(4.0) == "5.0 MB/s, 10 pages, http_status 9, timeout 5, a 3, b 2, other 2"
