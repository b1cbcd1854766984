"""robots.txt by RFC 9309."""

import asyncio

import pytest

from dataprep.crawl.robots import ROBOTS_BYTES, Robots, RobotsReply, read_robots

AGENT = "millrace/0.1 (test)"
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
    rules = read_robots(reply)
    assert bool(rules.unreachable) is not known
    if known:
        assert rules.allow("http://garden.test/a", AGENT) is allowed


def test_rules_are_those_of_our_own_name() -> None:
    rules = read_robots(RobotsReply(200, RULES))
    assert rules.allow("http://garden.test/all", AGENT)
    assert not rules.allow("http://garden.test/mine/x", AGENT)
    assert not rules.allow("http://garden.test/all", "other/1.0")
    assert rules.delay(AGENT) == 3.0


def test_an_absurd_crawl_delay_is_capped() -> None:
    assert read_robots(RobotsReply(200, b"User-agent: *\nCrawl-delay: 86400")).delay(AGENT) == 60.0


def test_a_byte_order_mark_and_an_endless_file_do_no_harm() -> None:
    assert not read_robots(RobotsReply(200, b"\xef\xbb\xbfUser-agent: *\nDisallow: /")).allow("http://a.test/", AGENT)
    late = b"User-agent: *\n#" + b"x" * ROBOTS_BYTES + b"\nDisallow: /"
    assert read_robots(RobotsReply(200, late)).allow("http://a.test/", AGENT)


def test_an_origin_is_asked_once_and_a_waiter_that_gives_up_disturbs_nobody() -> None:
    asked: list[str] = []

    async def fetch(url: str) -> RobotsReply:
        asked.append(url)
        await asyncio.sleep(0.02)
        return RobotsReply(200, RULES)

    async def main() -> None:
        robots = Robots(fetch)
        impatient = asyncio.create_task(robots.rules("http://garden.test"))
        await asyncio.sleep(0)
        others = [asyncio.create_task(robots.rules("http://garden.test")) for _ in range(5)]
        impatient.cancel()
        rules = await asyncio.gather(*others)
        assert all(not each.allow("http://garden.test/mine", AGENT) for each in rules)
        await robots.rules("https://garden.test")

    asyncio.run(main())
    assert asked == ["http://garden.test/robots.txt", "https://garden.test/robots.txt"]
