"""The order of a crawl: mixed, always the same, and out of memory for long lists."""

import random
from itertools import pairwise
from pathlib import Path

import pytest

from dataprep.crawl import schedule
from dataprep.crawl.schedule import BucketWriter, deal, dealt, spread

URLS = [f"http://host{i // 50:03d}.test/page/{i}?q=ä\udcff" for i in range(5000)]


def test_a_short_list_and_a_long_one_are_put_in_the_same_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = list(spread(iter(URLS), tmp_path / "none"))
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(schedule, "SHORT_LIST", 100)
    monkeypatch.setattr(schedule, "_BUFFERED_BYTES", 10_000)
    assert list(spread(iter(URLS), tmp_path / "buckets")) == in_memory
    assert sorted(in_memory) == sorted(URLS)
    assert list((tmp_path / "buckets").iterdir()) == [], "a bucket that was read is gone"


def test_the_order_does_not_depend_on_the_order_of_the_list_or_the_number_of_buckets(tmp_path: Path) -> None:
    shuffled = random.Random(3).sample(URLS, len(URLS))
    deal(URLS, tmp_path / "one")
    writer = BucketWriter(tmp_path / "two", 100)
    for url in shuffled:
        writer.write(url)
    writer.close()
    assert len(list((tmp_path / "two").iterdir())) == 10
    assert list(dealt(tmp_path / "one")) == list(dealt(tmp_path / "two"))


def test_neighbours_have_different_hosts() -> None:
    hosts = [url.split("/")[2] for url in spread(URLS, Path("unused"))]
    assert sum(one == other for one, other in pairwise(hosts)) < 100
    assert len(set(hosts[:200])) > 80, "the first 200 are of most of the 100 hosts"


def test_a_url_that_is_listed_twice_comes_twice() -> None:
    assert list(spread(["http://a/", "http://b/", "http://a/"], Path("unused"))).count("http://a/") == 2
