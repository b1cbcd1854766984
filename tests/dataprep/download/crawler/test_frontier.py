"""The frontier: order, limits and delays per host, without a clock or a network; and its backlog on disk."""

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataprep.download.crawler.frontier import HOST_QUEUE, Backlog, Frontier, UrlJob


@pytest.fixture
def backlog(tmp_path: Path) -> Iterator[Backlog]:
    backlog = Backlog(tmp_path / "backlog")
    yield backlog
    backlog.close()


def jobs(host: str, number: int) -> list[UrlJob]:
    return [UrlJob(f"http://{host}/{i}", host, f"http://{host}/{i}") for i in range(number)]


def take_all(frontier: Frontier, now: float) -> list[str]:
    taken: list[str] = []
    while job := frontier.take(now):
        taken.append(job.url)
    return taken


def test_a_host_starts_with_one_job_until_its_policy_is_set(backlog: Backlog) -> None:
    frontier = Frontier(0.0, backlog)
    for job in jobs("a", 5):
        frontier.add(job)
    assert take_all(frontier, 1.0) == ["http://a/0"]
    frontier.set_policy("a", 3, 0.0)
    assert take_all(frontier, 1.0) == ["http://a/1", "http://a/2"]
    assert frontier.next_turn() == math.inf


def test_hosts_take_turns_however_long_their_queues(backlog: Backlog) -> None:
    frontier = Frontier(0.0, backlog)
    for job in [*jobs("a", 100), *jobs("b", 2), *jobs("c", 2)]:
        frontier.add(job)
    assert take_all(frontier, 1.0) == ["http://a/0", "http://b/0", "http://c/0"]


def test_two_starts_at_a_host_are_a_delay_apart(backlog: Backlog) -> None:
    frontier = Frontier(0.5, backlog)
    for job in jobs("a", 3):
        frontier.add(job)
    frontier.set_policy("a", 2, 2.0)
    assert frontier.take(10.0) is not None
    assert frontier.take(11.9) is None
    assert frontier.next_turn() == 12.0
    assert frontier.take(12.0) is not None
    frontier.done("a", 12.5)
    assert frontier.take(13.0) is None
    assert frontier.take(14.0) is not None


def test_a_host_is_remembered_until_it_has_rested(backlog: Backlog) -> None:
    """A job that comes after the others are done does not come too early for that; later nothing is kept."""
    frontier = Frontier(0.0, backlog)
    first, second, third = jobs("a", 3)
    frontier.add(first)
    frontier.set_policy("a", 1, 2.0)
    assert frontier.take(10.0) is first
    frontier.done("a", 10.1)
    assert len(frontier) == 0
    frontier.add(second)
    assert frontier.take(11.9) is None
    assert frontier.take(12.0) is second
    frontier.hold("a", 30.0)
    frontier.done("a", 12.1)
    frontier.add(third)
    assert frontier.take(29.9) is None
    assert frontier.take(30.0) is third
    frontier.done("a", 30.1)
    assert "a" in frontier._hosts
    assert frontier.take(32.1) is None
    assert frontier._hosts == {}
    assert frontier.next_turn() == math.inf


def test_a_start_without_a_request_does_not_count(backlog: Backlog) -> None:
    frontier = Frontier(5.0, backlog)
    for job in jobs("a", 3):
        frontier.add(job)
    assert frontier.take(10.0)
    frontier.done("a", 10.0, asked=False)
    assert frontier.take(10.0)
    frontier.done("a", 10.0)
    assert frontier.take(10.0) is None


def test_a_retry_waits_until_it_is_due_and_others_go_on(backlog: Backlog) -> None:
    frontier = Frontier(0.0, backlog)
    first, second = jobs("a", 2)
    frontier.add(first)
    frontier.add(second)
    assert frontier.take(1.0) is first
    frontier.add_first(first, 5.0)
    frontier.done("a", 1.0)
    assert frontier.take(1.0) is second
    frontier.done("a", 1.0)
    assert frontier.take(4.9) is None
    assert frontier.next_turn() == 5.0
    assert frontier.take(5.0) is first


def test_a_host_on_hold_starts_nothing(backlog: Backlog) -> None:
    frontier = Frontier(0.0, backlog)
    first, second = jobs("a", 2)
    frontier.add(first)
    frontier.add(second)
    assert frontier.take(1.0) is first
    frontier.hold("a", 9.0)
    frontier.done("a", 1.0)
    assert frontier.take(8.9) is None
    assert frontier.take(9.0) is second


def test_a_closed_host_waits_until_its_policy_is_set_again(backlog: Backlog) -> None:
    frontier = Frontier(0.0, backlog)
    first, second = jobs("a", 2)
    frontier.add(first)
    assert frontier.take(1.0) is first
    frontier.close_host("a")
    frontier.done("a", 1.0)
    frontier.add(second)
    assert frontier.take(99.0) is None
    frontier.add_first(first, 99.0)
    frontier.set_policy("a", 1, 0.0)
    assert frontier.take(99.0) is first, "what comes back goes before what waits"


def test_a_host_with_many_retries_to_come_gets_no_new_jobs(backlog: Backlog) -> None:
    frontier = Frontier(0.0, backlog)
    everything = jobs("a", 3 * HOST_QUEUE)
    for job in everything:
        frontier.add(job)
    for _ in range(HOST_QUEUE):
        job = frontier.take(1.0)
        assert job
        frontier.add_first(job, 50.0)
        frontier.done("a", 1.0)
    assert frontier.take(2.0) is None
    assert frontier.next_turn() == 50.0
    assert frontier.take(50.0) is everything[0]


def test_of_a_huge_host_only_a_few_jobs_are_in_memory_and_none_is_lost(backlog: Backlog) -> None:
    frontier = Frontier(0.0, backlog)
    frontier.add(UrlJob("http://b/0", "b", "http://b/0"))
    for job in jobs("a", 5000):
        frontier.add(job)
    assert frontier.in_memory == HOST_QUEUE + 1
    assert len(frontier) == 5001
    taken: list[str] = []
    while job := frontier.take(1.0):
        taken.append(job.url)
        assert frontier.in_memory <= HOST_QUEUE + 1
        frontier.done(job.host, 1.0)
    assert taken[:2] == ["http://b/0", "http://a/0"], "nobody waits for it"
    assert sorted(taken) == sorted(["http://b/0", *(job.url for job in jobs("a", 5000))])
    assert len(frontier) == frontier.in_memory == 0


def test_too_many_jobs_from_elsewhere_wait_on_disk_with_all_they_met(backlog: Backlog) -> None:
    frontier = Frontier(0.0, backlog)
    redirected = [
        UrlJob(f"http://{i}.test/", "a", f"http://a/{i}", 1, [f"301 http://{i}.test/"], "a note ä\udcff")
        for i in range(10 * HOST_QUEUE)
    ]
    for job in redirected:
        frontier.add_redirected(job, 0.0)
    assert frontier.in_memory == 2 * HOST_QUEUE
    taken: list[UrlJob] = []
    while job := frontier.take(1.0):
        taken.append(job)
        frontier.done("a", 1.0)
    assert sorted(taken, key=lambda job: job.url) == sorted(redirected, key=lambda job: job.url)


def test_every_job_is_taken_once_under_any_interleaving(backlog: Backlog) -> None:
    rng = random.Random(7)
    frontier = Frontier(0.01, backlog)
    everything = [job for host in "abcdefg" for job in jobs(host, rng.randrange(1, 40))]
    for job in everything:
        frontier.add(job)
    now, active, retried, finished = 0.0, list[UrlJob](), set[str](), list[str]()
    while active or len(frontier):
        now += 0.01
        while job := frontier.take(now):
            active.append(job)
            frontier.set_policy(job.host, 2, 0.0)
        assert max((sum(job.host == host for job in active) for host in "abcdefg"), default=0) <= 2
        rng.shuffle(active)
        for job in active[: rng.randrange(4)]:
            active.remove(job)
            if job.url not in retried and rng.random() < 0.3:
                retried.add(job.url)
                frontier.add_first(job, now + rng.random())
            else:
                finished.append(job.url)
            frontier.done(job.host, now)
    assert sorted(finished) == sorted(job.url for job in everything)


def test_each_host_gets_its_own_jobs_back_also_long_ones(tmp_path: Path) -> None:
    backlog = Backlog(tmp_path / "backlog")
    long = UrlJob("http://a/" + "x" * 5000, "a", "http://a/" + "x" * 5000)
    for job in [*jobs("a", 3), *jobs("b", 2), long]:
        backlog.push(job)
    assert (len(backlog), "a" in backlog, "c" in backlog) == (6, True, False)
    assert [job.url for job in backlog.pull("a", 2)] == [long.url, "http://a/2"]
    backlog.push(UrlJob("http://a/9", "a", "http://a/9"))
    assert [job.url for job in backlog.pull("a", 9)] == ["http://a/9", "http://a/1", "http://a/0"]
    assert backlog.pull("a", 9) == []
    assert len(backlog.pull("b", 9)) == 2
    assert len(backlog) == 0
    backlog.close()


def test_a_job_comes_back_with_all_it_has_met(tmp_path: Path) -> None:
    job = UrlJob("http://a/ä\udcff", "b", "http://b/", 2, ["301 http://a/"], "a note")
    backlog = Backlog(tmp_path / "backlog")
    backlog.push(job)
    assert backlog.pull("b", 1) == [job]
    backlog.close()


def test_without_jobs_there_is_no_file(tmp_path: Path) -> None:
    backlog = Backlog(tmp_path / "backlog")
    assert backlog.pull("a", 1) == []
    backlog.close()
    assert not (tmp_path / "backlog").exists()
