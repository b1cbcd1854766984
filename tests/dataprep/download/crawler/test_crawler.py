"""The crawler over real HTTP on loopback: retries, robots.txt, redirects, refusals, and nobody waits for the slow."""

import asyncio
import errno
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest

from dataprep.download.crawler import crawler, local_site
from dataprep.download.crawler.frontier import Backlog, Frontier, UrlJob
from dataprep.download.crawler.local_site import SITE_TIME, load_site
from dataprep.download.outcomes import Outcome
from tests.dataprep.sites import (
    HTML,
    TEXT,
    by_url,
    crawled,
    crawling,
    make_site,
    no_such_host,
    quick,
    raw_server,
    site_of,
)

G = "http://garden.test"


def outcomes(site_folder: Path, urls: list[str], **config: object) -> dict[str, Outcome]:
    return by_url(crawled(urls, load_site(site_folder), **config))


def test_pages_errors_and_redirects_each_have_their_outcome(tmp_path: Path) -> None:
    site = make_site(
        tmp_path,
        {"url": f"{G}/a", "body": HTML.format("a")},
        {"url": f"{G}/flaky", "body": HTML.format("flaky"), "fail_first": 2},
        {"url": f"{G}/down", "status": 500},
        {"url": f"{G}/gone", "status": 410},
        {"url": f"{G}/old", "status": 301, "location": "/a"},
        {"url": f"{G}/cross", "status": 307, "location": "http://harbour.test/b"},
        {"url": "http://harbour.test/b", "body": HTML.format("b")},
        {"url": f"{G}/loop", "status": 302, "location": "/pool"},
        {"url": f"{G}/pool", "status": 302, "location": "/loop"},
        *({"url": f"{G}/r{i}", "status": 302, "location": f"/r{i + 1}"} for i in range(9)),
        {"url": f"{G}/big", "pad_bytes": 60_000},
        {"url": f"{G}/pdf", "headers": {"Content-Type": "application/pdf"}},
    )
    names = ["a", "flaky", "down", "gone", "old", "cross", "loop", "r0", "r4", "big", "pdf", "never"]
    found = outcomes(site, [f"{G}/{name}" for name in names], max_body_bytes=50_000, max_attempts=3)
    short = {url.removeprefix(f"{G}/"): (f.rule, f.value, f.attempts) for url, f in found.items()}
    assert short == {
        "a": ("", "", 1),
        "flaky": ("", "", 3),
        "down": ("http_status", "500", 3),
        "gone": ("http_status", "410", 1),
        "old": ("", "", 1),
        "cross": ("", "", 1),
        "loop": ("redirect_loop", f"{G}/loop", 1),
        "r0": ("too_many_redirects", "6", 1),
        "r4": ("http_status", "404", 1),
        "big": ("too_large", "more than 50000 bytes sent", 1),
        "pdf": ("not_html", "application/pdf", 1),
        "never": ("http_status", "404", 1),
    }
    assert found[f"{G}/cross"].final_url == "http://harbour.test/b"
    assert found[f"{G}/cross"].redirects == (f"307 {G}/cross",)
    assert found[f"{G}/down"].transient
    assert not found[f"{G}/gone"].transient
    assert {f.started for f in found.values()} == {SITE_TIME}
    assert {f.elapsed_ms for f in found.values()} == {0}


def test_hash_bang_pages_are_requested_as_sites_offer_them_to_crawlers(tmp_path: Path) -> None:
    """A browser sends no fragment: all of them would be the start page."""
    site = make_site(
        tmp_path,
        {"url": f"{G}/robots.txt", "body": "User-agent: *\nDisallow: /*_fragment_=secret", "headers": {}},
        {"url": f"{G}/", "body": HTML.format("start")},
        {"url": f"{G}/?_escaped_fragment_=/a%26b%2520c", "body": HTML.format("a")},
        {"url": f"{G}/?q=1&_escaped_fragment_=b", "body": HTML.format("b")},
        {"url": f"{G}/old", "status": 301, "location": "/?q=1#!b"},
    )
    found = outcomes(site, [f"{G}/#!/a&b%20c", f"{G}/?q=1#!b", f"{G}/#!secret", f"{G}/old"])
    assert {url: (page.rule, page.final_url.removeprefix(G)) for url, page in found.items()} == {
        f"{G}/#!/a&b%20c": ("", "/?_escaped_fragment_=/a%26b%2520c"),
        f"{G}/?q=1#!b": ("", "/?q=1&_escaped_fragment_=b"),
        f"{G}/#!secret": ("robots_denied", "/?_escaped_fragment_=secret"),
        f"{G}/old": ("", "/?q=1&_escaped_fragment_=b"),
    }
    assert found[f"{G}/#!/a&b%20c"].note == "#! requested as _escaped_fragment_"


def test_robots_txt_is_kept_to_and_asked_for_once_per_origin(tmp_path: Path) -> None:
    rules = "User-agent: *\nDisallow: /\n\nUser-agent: millrace\nDisallow: /private\n"
    site = make_site(
        tmp_path,
        {"url": f"{G}/robots.txt", "body": rules},
        {"url": "http://harbour.test/robots.txt", "status": 500},
        {"url": "http://kitchen.test/robots.txt", "status": 302, "location": f"{G}/robots.txt"},
        {"url": "http://kitchen.test/private", "body": HTML},
        {"url": "http://library.test/robots.txt", "status": 403},
        {"url": "http://library.test/a", "body": HTML},
        {"url": f"{G}/to-private", "status": 302, "location": "/private/x"},
        pages=3,
    )
    urls = [f"{G}/page/0", f"{G}/private/x", f"{G}/to-private"]
    urls += ["http://harbour.test/a", "http://kitchen.test/private", "http://library.test/a"]
    found = outcomes(site, urls)
    assert [found[url].rule for url in urls] == [
        "",
        "robots_denied",
        "robots_denied",
        "robots_unreachable",
        "robots_denied",
        "",
    ]
    assert found["http://harbour.test/a"].value == "robots.txt answers 500"
    assert found["http://harbour.test/a"].transient
    assert {f.rule for f in outcomes(site, urls, robots=False).values()} == {"", "http_status"}


def test_opt_outs_from_training_are_respected_if_they_are_chosen(tmp_path: Path) -> None:
    tdmrep = '[{"location": "/reserved/", "tdm-reservation": 1}]'
    plain = {"Content-Type": "text/plain"}
    site = make_site(
        tmp_path,
        {"url": f"{G}/robots.txt", "body": "User-agent: *\nDisallow: /private/", "headers": plain},
        {"url": f"{G}/ai.txt", "body": "User-agent: *\nDisallow: /art/", "headers": plain},
        # On another host, so that the host's other jobs must wait for the answer.
        {"url": f"{G}/.well-known/tdmrep.json", "status": 302, "location": "http://harbour.test/tdmrep.json"},
        {"url": "http://harbour.test/tdmrep.json", "body": tdmrep, "headers": plain},
        {"url": "http://harbour.test/ai.txt", "status": 503},
        {"url": f"{G}/header", "body": HTML.format("a"), "headers": {"X-Robots-Tag": "noai"}},
        {"url": f"{G}/tdm", "body": HTML.format("b"), "headers": {"TDM-Reservation": "1"}},
        {"url": f"{G}/meta", "body": "<!doctype html><meta name='robots' content='noimageai'><p>c"},
        *({"url": f"{G}/{name}/a", "body": HTML.format(name)} for name in ("art", "reserved", "private")),
        {"url": "http://harbour.test/to-art", "status": 301, "location": f"{G}/art/a"},
        pages=3,
    )
    names = ("page/0", "page/1", "page/2", "header", "tdm", "meta", "art/a", "reserved/a", "private/a")
    urls = [*(f"{G}/{name}" for name in names), "http://harbour.test/to-art"]

    def rules(**config: object) -> dict[str, str]:
        found = outcomes(site, urls, max_attempts=2, **config)
        return {url.partition(".test/")[2]: found[url].rule for url in urls if found[url].rule}

    private = {"private/a": "robots_denied"}
    tags = {"header": "x_robots_tag", "meta": "meta_robots"}
    tdm = {"tdm": "tdm_reserved", "reserved/a": "tdm_reserved"}
    ai_txt = {"art/a": "ai_txt", "to-art": "ai_txt"}
    assert rules() == private
    assert rules(opt_outs=("robots_tags",)) == private | tags
    assert rules(opt_outs=("tdmrep",)) == private | tdm
    assert rules(opt_outs=("ai_txt",), robots=False) == ai_txt
    assert rules(opt_outs=("robots_tags", "tdmrep", "ai_txt")) == private | tags | tdm | ai_txt
    assert rules(opt_outs=("robots_tags", "tdmrep", "ai_txt"), processes=2) == private | tags | tdm | ai_txt


def test_private_places_are_refused_as_literals_by_redirect_and_by_name(tmp_path: Path) -> None:
    site = site_of(
        tmp_path,
        {"url": f"{G}/in", "status": 302, "location": "http://169.254.169.254/latest/"},
        {"url": f"{G}/hex", "status": 302, "location": "//0x7f000001/"},
        {"url": f"{G}/name", "status": 302, "location": "http://inside.test/"},
        {"url": f"{G}/port", "status": 302, "location": ":22/"},
    )
    asked: list[str] = []

    async def lookup(name: str) -> list[str]:
        asked.append(name)
        return {"inside.test": ["93.184.216.34", "10.1.2.3"], "v6.test": ["fd00::1"]}[name]

    urls = {
        "http://127.0.0.1/": "127.0.0.1",
        "http://[::1]/": "::1",
        "http://3232235777/": "192.168.1.1",
        "http://inside.test/": "10.1.2.3 (for inside.test)",
        "http://v6.test/": "fd00::1 (for v6.test)",
        f"{G}/in": "169.254.169.254",
        f"{G}/hex": "127.0.0.1",
        f"{G}/name": "10.1.2.3 (for inside.test)",
    }
    found = by_url(crawled(urls, site, lookup))
    assert {url: (f.rule, f.value) for url, f in found.items()} == {
        url: ("private_address", value) for url, value in urls.items()
    }
    assert not any(f.transient for f in found.values())
    assert set(asked) == {"inside.test", "v6.test"}


def test_an_unknown_host_is_a_dns_error_for_later(tmp_path: Path) -> None:
    site = site_of(tmp_path, pages=1)
    [found] = crawled(["http://unknown.test/"], site)
    assert (found.rule, found.transient, found.attempts) == ("dns_error", True, 1)
    assert "not known" in found.value


def test_https_of_the_local_site_becomes_http_and_says_so(tmp_path: Path) -> None:
    site = make_site(tmp_path, {"url": f"{G}/up", "status": 301, "location": "https://garden.test/page/0"}, pages=1)
    found = outcomes(site, ["https://garden.test/page/0", f"{G}/page/0", f"{G}/up"])
    assert {f.rule for f in found.values()} == {""}
    assert found["https://garden.test/page/0"].final_url == f"{G}/page/0"
    assert found["https://garden.test/page/0"].note == "rewritten to http for the local site"
    assert found[f"{G}/page/0"].note == ""
    assert found[f"{G}/up"].final_url == f"{G}/page/0"


def test_a_slow_host_and_a_silent_name_server_stall_nobody(tmp_path: Path) -> None:
    slow = [{"url": f"http://slow{i}.test/x", "delay_seconds": 30.0, "body": HTML} for i in range(3)]
    site = site_of(tmp_path, *slow, pages=60)

    async def lookup(name: str) -> list[str]:
        await asyncio.sleep(30.0)
        return []

    urls = [f"http://slow{i}.test/x" for i in range(3)] + [f"http://silent{i}.test/" for i in range(3)]
    urls += [f"{G}/page/{i}" for i in range(60)]
    config = {"concurrency": 8, "per_host": 2, "max_attempts": 1, "read_seconds": 6.0, "total_seconds": 6.0}
    order = crawled(urls, site, lookup, **config, connect_seconds=6.0)
    assert all(fetched.url.startswith(G) for fetched in order[:60]), "all fast pages come before any slow one"
    assert {fetched.rule for fetched in order[:60]} == {""}
    assert {fetched.rule for fetched in order[60:]} == {"timeout", "robots_unreachable"}
    assert len(order) == 66


def test_a_failing_host_waits_without_holding_a_place(tmp_path: Path) -> None:
    """With a single place, 20 pages are fetched while a retry is waiting for its time."""
    site = site_of(tmp_path, {"url": "http://down.test/x", "status": 503}, pages=20)
    urls = ["http://down.test/x", *(f"{G}/page/{i}" for i in range(20))]
    found = crawled(urls, site, concurrency=1, max_attempts=2, backoff_seconds=5.0, robots=False)
    order = [outcome.url for outcome in found]
    assert order[-1] == "http://down.test/x"


def test_retry_after_is_waited_for_and_too_long_a_wait_is_left_to_a_later_run(tmp_path: Path) -> None:
    site = site_of(
        tmp_path,
        {"url": f"{G}/soon", "body": HTML, "fail_first": 1, "headers": {"Retry-After": "1"}},
        {"url": f"{G}/late", "body": HTML, "fail_first": 1, "headers": {"Retry-After": "86400"}},
    )
    started = time.monotonic()
    [soon] = crawled([f"{G}/soon"], site, robots=False)
    assert (soon.rule, soon.attempts) == ("", 2)
    assert time.monotonic() - started >= 1.0
    [late] = crawled([f"{G}/late"], site, robots=False)
    assert (late.rule, late.value, late.attempts, late.transient) == ("http_status", "503", 1, True)


def test_a_host_is_asked_no_more_often_than_it_likes(tmp_path: Path) -> None:
    site = site_of(tmp_path, {"url": f"{G}/robots.txt", "body": "User-agent: *\nCrawl-delay: 0.1\n"}, pages=4)
    started = time.monotonic()
    found = crawled([f"{G}/page/{i}" for i in range(4)], site, per_host=4)
    assert {f.rule for f in found} == {""}
    assert time.monotonic() - started >= 0.3


def test_limits_on_requests_under_way_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = [f"h{i}.test" for i in range(6)]
    entries = [
        {"url": f"http://{host}/{i}", "delay_seconds": 0.2, "body": HTML.format(TEXT)}
        for host in hosts
        for i in range(6)
    ]
    site = site_of(tmp_path, *entries)
    under_way: list[str] = []
    most = {"all": 0, "host": 0}
    answer = local_site._Answers.answer

    async def counted(self: object, request: object) -> object:
        host = str(getattr(request, "host", ""))
        under_way.append(host)
        most["all"] = max(most["all"], len(under_way))
        most["host"] = max(most["host"], under_way.count(host))
        try:
            return await answer(self, request)  # type: ignore[arg-type]
        finally:
            under_way.remove(host)

    monkeypatch.setattr(local_site._Answers, "answer", counted)
    urls = [str(entry["url"]) for entry in entries]
    found = crawled(urls, site, concurrency=7, per_host=2, robots=False)
    assert {f.rule for f in found} == {""}
    assert most == {"all": 7, "host": 2}


def test_leaving_early_cancels_and_closes_everything(tmp_path: Path) -> None:
    site = site_of(tmp_path, {"url": f"{G}/slow", "delay_seconds": 600.0, "body": HTML}, pages=3)
    before = threading.active_count()
    started = time.monotonic()
    under_way = crawling([f"{G}/slow", *(f"{G}/page/{i}" for i in range(3))], site, read_seconds=600.0)
    assert next(under_way).outcome.rule == ""
    under_way.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 120.0, "and not 600 s"
    assert threading.active_count() <= before + 1


class Watched:
    """A server of plain pages that notes when each host was asked for what, and how many at once."""

    def __init__(self, answers: dict[str, bytes], seconds: float = 0.0) -> None:
        self.requests: list[tuple[str, str, float]] = []
        self.most: Counter[str] = Counter()
        self._answers = answers
        self._seconds = seconds
        self._under_way: Counter[str] = Counter()

    async def __call__(self, request: bytes) -> bytes:
        path = request.split(b" ")[1].decode()
        host = request.partition(b"\r\nHost: ")[2].partition(b"\r\n")[0].decode()
        self.requests.append((host, path, time.monotonic()))
        self._under_way[host] += 1
        self.most[host] = max(self.most[host], self._under_way[host])
        await asyncio.sleep(self._seconds)
        self._under_way[host] -= 1
        return self._answers.get(f"{host}{path}", MISSING if path == "/robots.txt" else GOOD)

    def asked(self, host: str) -> list[str]:
        return [path for asked, path, _ in self.requests if asked == host]


class RecordingFrontier(Frontier):
    """A frontier that records the times at which it lets requests start.

    They are the crawler's own decisions: at the server, a busy machine brings requests closer together.
    """

    starts: defaultdict[str, list[float]]

    def take(self, now: float) -> UrlJob | None:
        job = super().take(now)
        if job:
            self.starts[job.host].append(now)
        return job

    def done(self, name: str, now: float, *, asked: bool = True) -> None:
        if not asked:
            self.starts[name].pop()
        super().done(name, now, asked=asked)


def answer(*lines: str, body: bytes = b"", status: str = "200 OK") -> bytes:
    head = [f"HTTP/1.1 {status}", "Content-Type: text/html", f"Content-Length: {len(body)}", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


GOOD = answer(body=HTML.encode())
MISSING = answer(status="404 Not Found")


def moved(location: str) -> bytes:
    return answer(f"Location: {location}", status="302 Found")


def test_a_redirect_keeps_to_the_rules_of_the_host_it_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight hosts redirect to one that wants 0.1 s between requests and closes /private."""
    monkeypatch.setattr(crawler, "Frontier", RecordingFrontier)
    monkeypatch.setattr(RecordingFrontier, "starts", defaultdict(list), raising=False)
    hosts = [f"h{i}.test" for i in range(8)]
    answers = {f"{host}/": moved(f"http://slow.test/{i}") for i, host in enumerate(hosts)}
    answers["h0.test/"] = moved("http://slow.test/private/x")
    rules = b"User-agent: *\nCrawl-delay: 0.1\nDisallow: /private/\n"
    answers["slow.test/robots.txt"] = answer(body=rules)
    watched = Watched(answers)
    with raw_server(watched, "slow.test", *hosts) as server:
        found = by_url(crawled([f"http://{host}/" for host in hosts], server))
    assert watched.asked("slow.test")[0] == "/robots.txt"
    assert watched.asked("slow.test").count("/robots.txt") == 1
    assert not any("private" in path for path in watched.asked("slow.test"))
    starts = RecordingFrontier.starts["slow.test"]
    assert len(starts) == len(watched.asked("slow.test")) == 8, "robots.txt, and a page of each host but the first"
    assert min(later - sooner for sooner, later in pairwise(starts)) > 0.1 - 1e-6
    assert found["http://h0.test/"].rule == "robots_denied"
    assert found["http://h1.test/"].final_url == "http://slow.test/1"
    assert found["http://h1.test/"].redirects == ("302 http://h1.test/",)
    assert {outcome.attempts for outcome in found.values()} == {1}


def test_redirects_of_many_hosts_to_one_keep_to_its_limit() -> None:
    hosts = [f"h{i}.test" for i in range(40)]
    watched = Watched({f"{host}/": moved(f"http://one.test/{host}") for host in hosts}, seconds=0.01)
    with raw_server(watched, "one.test", *hosts) as server:
        found = crawled([f"http://{host}/" for host in hosts], server, per_host=2)
    assert {outcome.rule for outcome in found} == {""}
    assert watched.most["one.test"] == 2


def test_a_robots_txt_elsewhere_is_asked_for_in_the_turn_of_its_host_and_its_own_waits() -> None:
    hosts = [f"h{i}.test" for i in range(10)]
    answers = {f"{host}/robots.txt": moved("http://one.test/all-robots") for host in hosts}
    answers["one.test/all-robots"] = answer(body=b"User-agent: *\nDisallow: /no\n")
    answers["h3.test/robots.txt"] = moved("http://10.0.0.1/robots.txt")
    answers["h4.test/robots.txt"] = moved("/robots.txt")
    watched = Watched(answers, seconds=0.01)
    with raw_server(watched, "one.test", *hosts) as server:
        found = by_url(crawled([f"http://{host}/{path}" for host in hosts for path in ("no", "yes")], server))
    assert watched.most["one.test"] <= 2
    assert watched.asked("h1.test") == ["/robots.txt", "/yes"]
    assert watched.asked("one.test") == ["/all-robots"] * 8, "once for each origin that it is the robots.txt of"
    assert found["http://h1.test/no"].rule == "robots_denied"
    assert found["http://h1.test/yes"].rule == ""
    assert found["http://h3.test/yes"].rule == "robots_unreachable"
    assert found["http://h3.test/yes"].value == "after a redirect: private_address: 10.0.0.1"
    assert found["http://h4.test/no"].rule == "", "more than five redirects are as no robots.txt at all"
    assert len(watched.asked("h4.test")) == 6 + 2


def test_robots_txt_that_fails_is_asked_for_again_without_holding_a_place() -> None:
    """With a single place, 20 pages are fetched while the other host's robots.txt waits for its next attempt."""
    answers = {"down.test/robots.txt": answer(status="503 Busy")}
    watched = Watched(answers)
    urls = ["http://down.test/1", "http://down.test/2", *(f"http://up.test/{i}" for i in range(20))]
    with raw_server(watched, "down.test", "up.test") as server:
        order = crawled(urls, server, concurrency=1, max_attempts=2, backoff_seconds=4.0)
    assert {outcome.url for outcome in order[-2:]} == set(urls[:2])
    assert {outcome.rule for outcome in order[-2:]} == {"robots_unreachable"}
    assert watched.asked("down.test") == ["/robots.txt"] * 2


def test_a_page_that_robots_txt_denies_costs_no_turn() -> None:
    answers = {"a.test/robots.txt": answer(body=b"User-agent: *\nCrawl-delay: 1\nDisallow: /\n")}
    started = time.monotonic()
    with raw_server(Watched(answers), "a.test") as server:
        found = crawled([f"http://a.test/{i}" for i in range(120)], server)
    assert {outcome.rule for outcome in found} == {"robots_denied"}
    assert time.monotonic() - started < 60.0, "and not 120 s"


def test_a_busy_host_is_left_alone_as_a_whole() -> None:
    """429 with Retry-After for one page: no page of that host is asked for until then, and others go on."""
    busy = iter([answer("Retry-After: 4", status="429 Slow Down")])

    async def talk(request: bytes) -> bytes:
        asked.append((request.partition(b"\r\nHost: ")[2].partition(b"\r\n")[0].decode(), time.monotonic()))
        return next(busy, GOOD) if b"Host: busy" in request else GOOD

    asked: list[tuple[str, float]] = []
    urls = [f"http://busy.test/{i}" for i in range(4)] + [f"http://calm.test/{i}" for i in range(4)]
    with raw_server(talk, "busy.test", "calm.test") as server:
        found = crawled(urls, server, robots=False, per_host=1)
    assert {outcome.rule for outcome in found} == {""}
    times = [moment for host, moment in asked if host == "busy.test"]
    assert times[1] - times[0] >= 4.0
    assert max(moment for host, moment in asked if host == "calm.test") < times[1]


def test_all_requests_together_keep_to_the_global_rate() -> None:
    hosts = [f"h{i}.test" for i in range(10)]
    watched = Watched({"h0.test/": moved("http://h1.test/next")})
    with raw_server(watched, *hosts) as server:
        started = time.monotonic()
        found = crawled([f"http://{host}/" for host in hosts], server, requests_per_second=40.0)
    assert {outcome.rule for outcome in found} == {""}
    assert len(watched.requests) == 21, "robots.txt, pages, and one redirect"
    assert time.monotonic() - started >= 20 / 40.0 - 0.15


def test_a_list_larger_than_the_window_is_crawled_whole_with_no_more_than_that_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host with half of all URLs, which is slow, and many small ones: those come first, and nothing is lost."""
    monkeypatch.setattr(crawler, "WINDOW", 60)
    monkeypatch.setattr(crawler, "FILL_SLICE", 10)
    most = 0
    fill = crawler.Crawler._fill

    def watched_fill(self: crawler.Crawler) -> None:
        nonlocal most
        fill(self)
        most = max(most, self._frontier.in_memory)

    monkeypatch.setattr(crawler.Crawler, "_fill", watched_fill)
    huge = [f"http://huge.test/{i}" for i in range(150)]
    small = [f"http://s{i}.test/" for i in range(150)]
    answers = {"huge.test/robots.txt": answer(body=b"User-agent: *\nCrawl-delay: 0.01\n")}
    with raw_server(Watched(answers), "huge.test", *(f"s{i}.test" for i in range(150))) as server:
        order = crawled((url for url in [*huge, *small]), server, concurrency=8)
    assert {outcome.rule for outcome in order} == {""}
    assert sorted(outcome.url for outcome in order) == sorted([*huge, *small])
    assert most <= 60 + 8, "the window, and what comes back from under way"
    last_small = max(place for place, outcome in enumerate(order) if outcome.url in set(small))
    assert last_small < 250, "the small hosts do not wait for the huge one"


@pytest.mark.parametrize("there_is_room_for", [0, 20])
def test_an_error_of_the_disk_ends_the_crawl_whenever_it_comes(
    there_is_room_for: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the event loop called, which would write it in its log and wait for ever."""
    push, free = Backlog.push, count(there_is_room_for, -1)

    def on_a_full_disk(self: Backlog, job: UrlJob) -> None:
        if next(free) <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        push(self, job)

    monkeypatch.setattr(Backlog, "push", on_a_full_disk)
    monkeypatch.setattr(crawler, "FILL_SLICE", 10)
    with raw_server(Watched({}), "a.test") as server, pytest.raises(OSError, match="No space left"):
        crawled([f"http://a.test/{i}" for i in range(100)], server)


def test_outcomes_that_nobody_fetches_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of URLs that may not be asked need no network, and come as fast as they are read."""
    monkeypatch.setattr(crawler, "UNSENT_BYTES", 100_000)
    read = 0

    def listed() -> Iterator[str]:
        nonlocal read
        for read in range(1, 5_001):
            yield f"http://10.0.0.1/{read}"

    async def crawl_with_a_pause() -> int:
        crawl = crawler.Crawler(listed(), quick(), None, tmp_path)
        await crawl.open(no_such_host)
        number = len(await crawl.next_outcomes())
        await asyncio.sleep(0.3)
        assert read - number < 250, "what 100,000 bytes are enough for, and what was at hand"
        while outcomes := await crawl.next_outcomes():
            number += len(outcomes)
        await crawl.close()
        return number

    assert asyncio.run(crawl_with_a_pause()) == 5_000


def test_what_may_not_be_asked_is_an_outcome_at_once() -> None:
    urls = ["nothing", "http://[::1", "http://a.test:22/", "http://10.0.0.1/", "http://user:x@a.test/ok"]
    with raw_server(Watched({}), "a.test") as server:
        found = by_url(crawled(urls, server))
    assert {url: (found[url].rule, found[url].attempts) for url in urls} == {
        "nothing": ("malformed", 1),
        "http://[::1": ("malformed", 1),
        "http://a.test:22/": ("port_not_allowed", 1),
        "http://10.0.0.1/": ("private_address", 1),
        "http://user:x@a.test/ok": ("", 1),
    }
    assert found["http://user:x@a.test/ok"].final_url == "http://a.test/ok"
