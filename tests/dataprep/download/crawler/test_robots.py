"""robots.txt by RFC 9309."""

import pytest

from dataprep.download.crawler import robots
from dataprep.download.crawler.robots import (
    KEPT_SECONDS,
    ROBOTS_BYTES,
    RobotsCache,
    RobotsReply,
    Rules,
    find_group,
    read_robots,
)

AGENT = "millrace/0.1 (test of a crawler)"
RULES = b"User-agent: *\nDisallow: /all\n\nUser-agent: millrace\nDisallow: /mine\nCrawl-delay: 3\n"


@pytest.mark.parametrize(
    ("reply", "known", "allowed"),
    [
        (RobotsReply(200, b"User-agent: *\nDisallow: /"), True, False),
        (RobotsReply(200, b""), True, True),
        (RobotsReply(200, b"\x00\xff not a robots file <html>"), True, True),
        (RobotsReply(404), True, True),
        (RobotsReply(403), True, True),
        (RobotsReply(429), False, False),
        (RobotsReply(503), False, False),
        (RobotsReply(error="timeout: 10 s"), False, False),
    ],
)
def test_an_answer_means_what_the_standard_says(reply: RobotsReply, known: bool, allowed: bool) -> None:
    rules = read_robots(reply, AGENT)
    assert bool(rules.unreachable) is not known
    if known:
        assert rules.allow("http://garden.test/a") is allowed


def test_rules_are_those_of_our_own_name() -> None:
    rules = read_robots(RobotsReply(200, RULES), AGENT)
    assert rules.allow("http://garden.test/all")
    assert not rules.allow("http://garden.test/mine/x")
    assert not read_robots(RobotsReply(200, RULES), "other/1.0").allow("http://garden.test/all")
    assert rules.delay == 3.0


def test_our_name_is_the_word_before_the_slash_and_nothing_else_that_the_header_says() -> None:
    text = b"User-agent: test\nUser-agent: crawler\nDisallow: /\n\nUser-agent: Millrace/2.0\nDisallow: /mine\n"
    rules = read_robots(RobotsReply(200, text), AGENT)
    assert rules.allow("http://garden.test/a")
    assert not rules.allow("http://garden.test/mine")


def test_an_absurd_crawl_delay_is_capped() -> None:
    assert read_robots(RobotsReply(200, b"User-agent: *\nCrawl-delay: 86400"), AGENT).delay == 60.0
    for rubbish in (b"soon", b"nan", b"inf", b"-4", b""):
        assert read_robots(RobotsReply(200, b"User-agent: *\nCrawl-delay: " + rubbish), AGENT).delay == 0.0


def test_a_byte_order_mark_and_an_endless_file_do_no_harm() -> None:
    marked = read_robots(RobotsReply(200, b"\xef\xbb\xbfUser-agent: *\nDisallow: /"), AGENT)
    assert not marked.allow("http://a.test/")
    late = b"User-agent: *\n#" + b"x" * ROBOTS_BYTES + b"\nDisallow: /"
    assert read_robots(RobotsReply(200, late), AGENT).allow("http://a.test/")


def test_many_names_with_many_rules_cost_no_more_than_their_lines() -> None:
    """Kept as they are, 10,000 names with 10,000 rules are 100 million rules."""
    names = "".join(f"User-Agent : bot{i}*  # x\n" for i in range(10_000))
    rules = "".join(f"Disallow: /{i}\n" for i in range(10_000))
    text = f"{names}user agent millrace\n{rules}\nUser-agent: *\nDisallow: /\n"
    ours, others = find_group(text, "millrace"), find_group(text, "other")
    assert ours
    assert others
    assert (len(ours.rules), len(others.rules)) == (10_000, 1)
    read = read_robots(RobotsReply(200, text.encode()), AGENT)
    assert not read.allow("http://a.test/77/x")
    assert read.allow("http://a.test/x")


def test_rules_are_kept_for_a_day() -> None:
    cache = RobotsCache()
    cache.keep("http://a.test", Rules(delay=1.0), 10, 5.0)
    assert cache.find("http://b.test", 5.0) is None
    assert cache.find("http://a.test", 5.0 + KEPT_SECONDS) == Rules(delay=1.0)
    assert cache.find("http://a.test", 6.0 + KEPT_SECONDS) is None
    assert len(cache) == 0


def test_the_cache_is_bounded_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robots, "_KEPT_ORIGINS", 3)
    monkeypatch.setattr(robots, "_KEPT_BYTES", 100)
    cache = RobotsCache()
    for name in "abc":
        cache.keep(name, Rules(), 10, 0.0)
    assert cache.find("a", 0.0)
    cache.keep("d", Rules(), 10, 0.0)
    assert [name for name in "abcd" if cache.find(name, 0.0)] == ["a", "c", "d"], "what was not used goes first"
    cache.keep("e", Rules(), 85, 0.0)
    assert [name for name in "acde" if cache.find(name, 0.0)] == ["d", "e"]
    cache.keep("f", Rules(), 500, 0.0)
    assert [name for name in "def" if cache.find(name, 0.0)] == ["f"]
