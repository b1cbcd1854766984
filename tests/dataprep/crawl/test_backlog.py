"""The backlog: a stack of jobs for each host, on disk."""

from pathlib import Path

from dataprep.crawl.backlog import Backlog
from dataprep.crawl.jobs import Job


def jobs(host: str, number: int) -> list[Job]:
    return [Job(f"http://{host}/{i}", host, f"http://{host}/{i}") for i in range(number)]


def test_each_host_gets_its_own_jobs_back_also_long_ones(tmp_path: Path) -> None:
    backlog = Backlog(tmp_path / "backlog")
    long = Job("http://a/" + "x" * 5000, "a", "http://a/" + "x" * 5000)
    for job in [*jobs("a", 3), *jobs("b", 2), long]:
        backlog.push(job)
    assert (len(backlog), "a" in backlog, "c" in backlog) == (6, True, False)
    assert [job.url for job in backlog.pull("a", 2)] == [long.url, "http://a/2"]
    backlog.push(Job("http://a/9", "a", "http://a/9"))
    assert [job.url for job in backlog.pull("a", 9)] == ["http://a/9", "http://a/1", "http://a/0"]
    assert backlog.pull("a", 9) == []
    assert len(backlog.pull("b", 9)) == 2
    assert len(backlog) == 0
    backlog.close()


def test_a_job_comes_back_with_all_it_has_met(tmp_path: Path) -> None:
    job = Job("http://a/ä\udcff", "b", "http://b/", 2, ["301 http://a/"], "a note")
    backlog = Backlog(tmp_path / "backlog")
    backlog.push(job)
    assert backlog.pull("b", 1) == [job]
    backlog.close()


def test_without_jobs_there_is_no_file(tmp_path: Path) -> None:
    backlog = Backlog(tmp_path / "backlog")
    assert backlog.pull("a", 1) == []
    backlog.close()
    assert not (tmp_path / "backlog").exists()
