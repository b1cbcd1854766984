"""The frontier: order, limits and delays per host, without a clock or a network."""

import math
import random

from dataprep.crawl.frontier import Frontier, Job


def jobs(host: str, number: int) -> list[Job]:
    return [Job(f"http://{host}/{i}", host) for i in range(number)]


def take_all(frontier: Frontier, now: float) -> list[str]:
    taken: list[str] = []
    while job := frontier.take(now):
        taken.append(job.url)
    return taken


def test_a_host_starts_with_one_job_until_it_is_welcome() -> None:
    frontier = Frontier(0.0)
    for job in jobs("a", 5):
        frontier.add(job)
    assert take_all(frontier, 1.0) == ["http://a/0"]
    frontier.welcome("a", 3, 0.0)
    assert take_all(frontier, 1.0) == ["http://a/1", "http://a/2"]
    assert frontier.next_turn() == math.inf


def test_hosts_take_turns_however_long_their_queues() -> None:
    frontier = Frontier(0.0)
    for job in [*jobs("a", 100), *jobs("b", 2), *jobs("c", 2)]:
        frontier.add(job)
    assert take_all(frontier, 1.0) == ["http://a/0", "http://b/0", "http://c/0"]


def test_two_starts_at_a_host_are_a_delay_apart() -> None:
    frontier = Frontier(0.5)
    for job in jobs("a", 3):
        frontier.add(job)
    frontier.welcome("a", 2, 2.0)
    first = frontier.take(10.0)
    assert first is not None
    assert frontier.take(11.9) is None
    assert frontier.next_turn() == 12.0
    assert frontier.take(12.0) is not None
    frontier.done(first)
    assert frontier.take(13.0) is None
    assert frontier.take(14.0) is not None


def test_a_retry_waits_until_it_is_due_and_others_go_on() -> None:
    frontier = Frontier(0.0)
    first, second = jobs("a", 2)
    frontier.add(first)
    frontier.add(second)
    assert frontier.take(1.0) is first
    frontier.add(first, due=5.0)
    frontier.done(first)
    assert frontier.take(1.0) is second
    frontier.done(second)
    assert frontier.take(4.9) is None
    assert frontier.next_turn() == 5.0
    assert frontier.take(5.0) is first


def test_a_host_on_hold_starts_nothing() -> None:
    frontier = Frontier(0.0)
    first, second = jobs("a", 2)
    frontier.add(first)
    frontier.add(second)
    assert frontier.take(1.0) is first
    frontier.hold("a", 9.0)
    frontier.done(first)
    assert frontier.take(8.9) is None
    assert frontier.take(9.0) is second


def test_every_job_is_taken_once_under_any_interleaving() -> None:
    rng = random.Random(7)
    frontier = Frontier(0.01)
    everything = [job for host in "abcdefg" for job in jobs(host, rng.randrange(1, 40))]
    for job in everything:
        frontier.add(job)
    now, active, retried, finished = 0.0, list[Job](), set[str](), list[str]()
    while active or frontier.next_turn() < math.inf:
        now += 0.01
        while job := frontier.take(now):
            active.append(job)
            frontier.welcome(job.host, 2, 0.0)
        assert max((sum(job.host == host for job in active) for host in "abcdefg"), default=0) <= 2
        rng.shuffle(active)
        for job in active[: rng.randrange(4)]:
            active.remove(job)
            if job.url not in retried and rng.random() < 0.3:
                retried.add(job.url)
                frontier.add(job, now + rng.random())
            else:
                finished.append(job.url)
            frontier.done(job)
    assert sorted(finished) == sorted(job.url for job in everything)
