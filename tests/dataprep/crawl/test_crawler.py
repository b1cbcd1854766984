"""The crawler over real HTTP on loopback: retries, robots.txt, redirects, refusals, and nobody waits for the slow."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from dataprep.crawl.crawler import crawl
from dataprep.crawl.fetched import Fetched
from dataprep.crawl.local_site import SITE_TIME
from tests.dataprep.sites import HTML, TEXT, by_url, make_site, no_such_host, quick, site_of

G = "http://garden.test"


def outcomes(site_folder: Path, urls: list[str], **config: object) -> dict[str, Fetched]:
    from dataprep.crawl.local_site import load_site

    return by_url(list(crawl(urls, quick(**config), load_site(site_folder), no_such_host)))


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
    found = by_url(list(crawl(urls, quick(), site, lookup)))
    assert {url: (f.rule, f.value) for url, f in found.items()} == {
        url: ("private_address", value) for url, value in urls.items()
    }
    assert not any(f.transient for f in found.values())
    assert set(asked) == {"inside.test", "v6.test"}


def test_an_unknown_host_is_a_dns_error_for_later(tmp_path: Path) -> None:
    site = site_of(tmp_path, pages=1)
    [found] = crawl(["http://unknown.test/"], quick(), site, no_such_host)
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
    config = quick(concurrency=8, per_host=2, max_attempts=1, read_seconds=2.0, total_seconds=2.0)
    order = list(crawl(urls, config, site, lookup))
    assert all(fetched.url.startswith(G) for fetched in order[:60]), "all fast pages come before any slow one"
    assert {fetched.rule for fetched in order[:60]} == {""}
    assert {fetched.rule for fetched in order[60:]} == {"timeout", "robots_unreachable"}
    assert len(order) == 66


def test_a_failing_host_waits_without_holding_a_place(tmp_path: Path) -> None:
    """With a single place, 20 pages are fetched while a retry is waiting for its time."""
    site = site_of(tmp_path, {"url": "http://down.test/x", "status": 503}, pages=20)
    urls = ["http://down.test/x", *(f"{G}/page/{i}" for i in range(20))]
    config = quick(concurrency=1, max_attempts=2, backoff_seconds=2.0, robots=False)
    order = [fetched.url for fetched in crawl(urls, config, site, no_such_host)]
    assert order[-1] == "http://down.test/x"


def test_retry_after_is_waited_for_and_too_long_a_wait_is_left_to_a_later_run(tmp_path: Path) -> None:
    site = site_of(
        tmp_path,
        {"url": f"{G}/soon", "body": HTML, "fail_first": 1, "headers": {"Retry-After": "1"}},
        {"url": f"{G}/late", "body": HTML, "fail_first": 1, "headers": {"Retry-After": "86400"}},
    )
    started = time.monotonic()
    [soon] = crawl([f"{G}/soon"], quick(robots=False), site, no_such_host)
    assert (soon.rule, soon.attempts) == ("", 2)
    assert time.monotonic() - started >= 1.0
    [late] = crawl([f"{G}/late"], quick(robots=False), site, no_such_host)
    assert (late.rule, late.value, late.attempts, late.transient) == ("http_status", "503", 1, True)


def test_a_host_is_asked_no_more_often_than_it_likes(tmp_path: Path) -> None:
    site = site_of(tmp_path, {"url": f"{G}/robots.txt", "body": "User-agent: *\nCrawl-delay: 0.2\n"}, pages=4)
    started = time.monotonic()
    found = list(crawl([f"{G}/page/{i}" for i in range(4)], quick(per_host=4), site, no_such_host))
    assert {f.rule for f in found} == {""}
    assert time.monotonic() - started >= 0.6


def test_limits_on_requests_under_way_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataprep.crawl import local_site

    hosts = [f"h{i}.test" for i in range(6)]
    entries = [
        {"url": f"http://{host}/{i}", "delay_seconds": 0.02, "body": HTML.format(TEXT)}
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
    found = list(crawl(urls, quick(concurrency=7, per_host=2, robots=False), site, no_such_host))
    assert {f.rule for f in found} == {""}
    assert most == {"all": 7, "host": 2}


def test_leaving_early_cancels_and_closes_everything(tmp_path: Path) -> None:
    site = site_of(tmp_path, {"url": f"{G}/slow", "delay_seconds": 30.0, "body": HTML}, pages=3)
    before = threading.active_count()
    started = time.monotonic()
    crawling = crawl([f"{G}/slow", *(f"{G}/page/{i}" for i in range(3))], quick(read_seconds=30.0), site, no_such_host)
    assert next(crawling).rule == ""
    crawling.close()  # type: ignore[attr-defined]
    assert time.monotonic() - started < 3.0
    assert threading.active_count() <= before + 1
