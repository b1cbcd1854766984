"""Visits: where a redirect may lead, how long a retry waits, and hosts that want to be left alone for long."""

from pathlib import Path

import pytest

from dataprep.download.config import Retries
from dataprep.download.crawler.frontier import Backlog, Frontier, UrlJob
from dataprep.download.crawler.request import Fetcher, FetchError, Redirect
from dataprep.download.crawler.visit import LONGEST_WAIT, HostPolicy, Visits, wait_before_retry
from dataprep.download.outcomes import Fetched
from tests.dataprep.sites import HTML, by_url, crawled, quick, raw_server


def visits(folder: Path) -> Visits:
    """Visits that make no request."""
    options, frontier = quick(), Frontier(0.0, Backlog(folder / "backlog"))
    fetcher = Fetcher(options.limits, None)  # type: ignore[arg-type]
    policy = HostPolicy(options.identity, 2, options.retries, fetcher, frontier, lambda job: None)
    return Visits(5, options.retries, policy, fetcher, frontier, lambda job: None, has_site=False)


def job_for(made: Visits, url: str) -> UrlJob:
    job = made.first_job(url)
    assert isinstance(job, UrlJob)
    return job


def follow(made: Visits, job: UrlJob, *steps: str) -> None:
    for url in steps:
        target, _ = made._fetcher.vet(job.target)
        made._follow(job, target, Redirect(302, url))


def test_a_redirect_from_https_to_http_is_followed_and_noted(tmp_path: Path) -> None:
    made = visits(tmp_path)
    job = job_for(made, "https://user:word@a.test/x#part")
    follow(made, job, "https://b.test/y")
    assert (job.host, job.target, job.note) == ("b.test", "https://b.test/y", "")
    follow(made, job, "http://c.test/z")
    assert (job.host, job.note) == ("c.test", "redirected from https to http")
    assert job.redirects == ["302 https://a.test/x", "302 https://b.test/y"]


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://127.0.0.1/", "private_address"),
        ("http://0x7f.1/", "private_address"),
        ("http://[64:ff9b::a00:1]/", "private_address"),
        ("https://[::ffff:10.0.0.1]/", "private_address"),
        ("http://b.test:8080/", "port_not_allowed"),
        ("ftp://b.test/", "malformed"),
        ("file:///etc/passwd", "malformed"),
        ("http://a.test/", "redirect_loop"),
        ("HTTP://A.test:80/#again", "redirect_loop"),
    ],
)
def test_every_redirect_is_checked_again(url: str, rule: str, tmp_path: Path) -> None:
    made = visits(tmp_path)
    job = job_for(made, "http://a.test/")
    with pytest.raises(FetchError, match=f"{rule}: "):
        follow(made, job, url)


def test_five_redirects_are_followed_and_a_sixth_is_not(tmp_path: Path) -> None:
    made = visits(tmp_path)
    job = job_for(made, "http://a.test/")
    follow(made, job, *(f"http://a.test/{i}" for i in range(5)))
    with pytest.raises(FetchError, match="too_many_redirects: 6"):
        follow(made, job, "http://a.test/5")


def test_a_retry_waits_longer_each_time_and_those_that_failed_together_wait_differently() -> None:
    retries = Retries(max_attempts=20, backoff_seconds=1.0)
    error = FetchError("http_status", 500, again=True)
    jobs = [UrlJob(f"http://a.test/{i}", "a.test", f"http://a.test/{i}") for i in range(100)]
    for attempt, full in ((1, 1.0), (2, 2.0), (5, 16.0), (15, LONGEST_WAIT)):
        waits = [wait_before_retry(retries, job, error, attempt) or 0.0 for job in jobs]
        assert full / 2 <= min(waits) < 0.6 * full
        assert 0.9 * full < max(waits) <= full
    patient = FetchError("http_status", 503, again=True, retry_after=77.0)
    assert wait_before_retry(retries, jobs[0], patient, 1) == 77.0
    assert wait_before_retry(retries, jobs[0], error, 20) is None
    assert wait_before_retry(retries, jobs[0], FetchError("http_status", 404), 1) is None


def test_a_url_that_leads_nowhere_is_an_outcome_without_a_visit(tmp_path: Path) -> None:
    found = visits(tmp_path).first_job("http://169.254.169.254/latest/")
    assert isinstance(found, Fetched)
    assert (found.rule, found.value, found.final_url) == ("private_address", "169.254.169.254", "")


def test_a_host_that_wants_to_be_left_alone_for_long_is_not_asked_again() -> None:
    """One of its pages is asked for; the others are left to a later run."""
    asked: list[bytes] = []

    def answer(request: bytes) -> bytes:
        asked.append(request.split(b" ")[1])
        if b"Host: calm.test" in request:
            page = HTML.encode()
            return b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(page) + page
        return b"HTTP/1.1 429 Slow Down\r\nRetry-After: 86400\r\nContent-Length: 0\r\n\r\n"

    urls = [f"http://busy.test/{i}" for i in range(5)] + ["http://calm.test/"]
    with raw_server(answer, "busy.test", "calm.test") as server:
        found = by_url(crawled(urls, server, robots=False, per_host=1))
    assert len(asked) == 2
    busy = sorted((found[url].rule, found[url].value) for url in urls[:5])
    assert busy == [("host_busy", "429 with Retry-After: 86400")] * 4 + [("http_status", "429")]
    assert all(found[url].transient for url in urls[:5])
    assert found["http://calm.test/"].rule == ""
