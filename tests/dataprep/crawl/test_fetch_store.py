"""The fetch store: what was kept is found again, and a cut-off write costs only itself."""

import dataclasses
import errno
import io
import os
from pathlib import Path
from typing import Any

import pytest

from dataprep.crawl.fetch_store import END, FetchStore, read_log, read_record
from dataprep.crawl.fetched import Fetched
from pipelines.errors import UserError


def page(number: int, **changes: object) -> Fetched:
    url = f"http://garden.test/{number}"
    base = Fetched(
        url=url, final_url=url, redirects=("301 http://garden.test/x",), status=200, body=b"page %d" % number
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def failed(number: int, *, transient: bool) -> Fetched:
    return page(number, rule="http_status", value="500", transient=transient, body=b"")


def test_an_outcome_is_found_again_as_it_was(tmp_path: Path) -> None:
    pages = [page(i, note="ä\n\ud800") for i in range(3)]
    with FetchStore(tmp_path, "request", "one") as store:
        for fetched in pages:
            store.append(fetched)
    with FetchStore(tmp_path, "request", "two") as store:
        for fetched in pages:
            place = store.find(fetched.url)
            assert place is not None
            assert read_record(tmp_path, place) == fetched
        assert store.find("http://garden.test/other") is None
    assert len(list(tmp_path.glob("fetch-*.log"))) == 1


def test_other_request_parameters_are_another_outcome(tmp_path: Path) -> None:
    with FetchStore(tmp_path, "agent one", "s") as store:
        store.append(page(1))
    with FetchStore(tmp_path, "agent two", "s") as store:
        assert store.find(page(1).url) is None


def test_a_transient_failure_counts_in_its_own_session_only(tmp_path: Path) -> None:
    with FetchStore(tmp_path, "r", "one") as store:
        store.append(failed(1, transient=True))
        store.append(failed(2, transient=False))
    assert FetchStore(tmp_path, "r", "one").find(page(1).url)
    assert FetchStore(tmp_path, "r", "two").find(page(1).url) is None
    assert FetchStore(tmp_path, "r", "two").find(page(2).url)


def test_refetching_leaves_out_failures_or_everything_of_other_sessions(tmp_path: Path) -> None:
    with FetchStore(tmp_path, "r", "one") as store:
        store.append(page(1))
        store.append(failed(2, transient=False))
    assert FetchStore(tmp_path, "r", "two", "failed").find(page(1).url)
    assert FetchStore(tmp_path, "r", "two", "failed").find(page(2).url) is None
    assert FetchStore(tmp_path, "r", "two", "all").find(page(1).url) is None
    assert FetchStore(tmp_path, "r", "one", "all").find(page(1).url), "a resumed refetch goes on"


def test_the_newest_outcome_counts(tmp_path: Path) -> None:
    for session, body in (("one", b"old"), ("two", b"new")):
        with FetchStore(tmp_path, "r", session) as store:
            store.append(page(1, body=body))
    place = FetchStore(tmp_path, "r", "three").find(page(1).url)
    assert place is not None
    assert read_record(tmp_path, place).body == b"new"


def test_a_write_cut_off_anywhere_costs_only_itself(tmp_path: Path) -> None:
    """As a kill leaves it: the log has no end mark, and its last record stops anywhere."""
    with FetchStore(tmp_path / "whole", "r", "s") as store:
        ends = []
        for i in range(3):
            store.append(page(i))
            ends.append((tmp_path / "whole" / "fetch-00000.log").stat().st_size)
    data = (tmp_path / "whole" / "fetch-00000.log").read_bytes()
    assert data.endswith(END)
    for size in range(ends[1], ends[2]):
        log = tmp_path / "cut" / "fetch-00000.log"
        log.parent.mkdir(exist_ok=True)
        log.write_bytes(data[:size])
        assert len(list(read_log(log))) == 2, size
        store = FetchStore(log.parent, "r", "s")
        assert store.find(page(1).url)
        assert store.find(page(2).url) is None


def test_bytes_lost_within_a_torn_log_are_noticed(tmp_path: Path) -> None:
    with FetchStore(tmp_path, "r", "s") as store:
        for i in range(3):
            store.append(page(i))
    log = tmp_path / "fetch-00000.log"
    data = bytearray(log.read_bytes().removesuffix(END))
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    assert len(list(read_log(log))) == 1


def test_a_log_is_never_written_to_again(tmp_path: Path) -> None:
    with FetchStore(tmp_path, "r", "one") as store:
        store.append(page(1))
    before = (tmp_path / "fetch-00000.log").read_bytes()
    with FetchStore(tmp_path, "r", "two") as store:
        store.append(page(2))
    assert (tmp_path / "fetch-00000.log").read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fetch-00000.log", "fetch-00001.log"]


class FullDisk(io.FileIO):
    """A file on a disk that has no room for what is written after the first record."""

    def write(self, data: Any) -> int:
        if self.tell() > 0 and len(data) > len(END):
            super().write(bytes(data)[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_full_disk_leaves_whole_records_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "open", lambda self, mode, buffering=-1: FullDisk(str(self), mode))
    with FetchStore(tmp_path, "r", "s") as store:
        store.append(page(1))
        with pytest.raises(OSError, match="No space left"):
            store.append(page(2))
    monkeypatch.undo()
    log = tmp_path / "fetch-00000.log"
    assert log.read_bytes().endswith(END)
    assert len(list(read_log(log))) == 1
    place = FetchStore(tmp_path, "r", "s").find(page(1).url)
    assert place is not None
    assert read_record(tmp_path, place) == page(1)


def test_a_run_that_fetches_nothing_leaves_no_log(tmp_path: Path) -> None:
    with FetchStore(tmp_path / "store", "r", "s"):
        pass
    assert not (tmp_path / "store").exists()


def test_a_damaged_record_is_one_clear_error(tmp_path: Path) -> None:
    with FetchStore(tmp_path, "r", "s") as store:
        place = store.append(page(1))
    log = tmp_path / place.log
    log.write_bytes(log.read_bytes().replace(b"garden", b"gArden"))
    with pytest.raises(UserError, match=r"fetch-00000\.log: the record at byte 0 is damaged"):
        read_record(tmp_path, place)
