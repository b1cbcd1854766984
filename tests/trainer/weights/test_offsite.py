"""Copies of checkpoints in a bucket: made beside a training, taken up by another machine, never in the way."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto", reason="needs pip install moto")
pytest.importorskip("obstore", reason="needs pip install obstore")

from pipelines import buckets, store
from tests.s3_server import BUCKET, S3, point_at, serve_s3
from tests.test_limit import CPU, ROOT, SHORT, TINY, trials
from trainer.weights import offsite
from trainer.weights.offsite import Offsite, Sender
from trainer.weights.records import FILES, INDEX, RECORD, checkpoints, file_entry, step_folder

__all__ = ["trials"]  # a fixture

PLACE = Offsite(f"s3://{BUCKET}/runs", "0123456789abcdef")


@pytest.fixture(scope="module")
def server() -> Generator[S3]:
    with serve_s3() as s3:
        yield s3


@pytest.fixture
def s3(server: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3:
    server.empty()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(buckets, "LONGEST_WAIT", 0.05)
    point_at(server, monkeypatch)
    return server


def write_checkpoint(root: Path, step: int) -> None:
    folder = step_folder(root, step)
    folder.mkdir(parents=True)
    for name in ("__0_0.distcp", INDEX, RECORD):
        (folder / name).write_bytes(f"{name} of {step}".encode() * 100)
    store.write_json(folder / FILES, {file.name: file_entry(file) for file in store.list_files(folder)})
    (root.parent / "curve.csv").write_text(f"up to step {step}\n")


def sent(s3: S3) -> dict[int, bool]:
    """Step -> whether its checkpoint in the bucket is whole."""
    found: dict[int, bool] = {}
    for key in s3.names():
        if "/step-" in key and "/" in key.partition("/step-")[2]:
            step = int(key.partition("/step-")[2][:8])
            found[step] = found.get(step, False) or key.endswith(FILES)
    return found


def test_what_is_sent_comes_back_with_its_curve(s3: S3, tmp_path: Path) -> None:
    root, curve = tmp_path / "run" / "checkpoints", tmp_path / "run" / "curve.csv"
    sender = Sender(PLACE, root, [curve])
    for step in (2, 4):
        write_checkpoint(root, step)
        sender.offer(step)
        sender.close()
        puts = s3.puts()
        assert puts[-1].endswith(f"step-{step:08d}/{FILES}")
    assert sent(s3) == {2: True, 4: True}
    other = tmp_path / "elsewhere" / "checkpoints"
    assert PLACE.restore(other, [other.parent / "curve.csv"]) == 4
    assert [*checkpoints(other)] == [4]
    assert (other.parent / "curve.csv").read_text() == "up to step 4\n"
    for file in store.list_files(step_folder(root, 4)):
        assert (step_folder(other, 4) / file.name).read_bytes() == file.read_bytes()
    assert Offsite(PLACE.address, "f" * 16).restore(tmp_path / "third", []) is None  # another run's


def test_what_is_deleted_here_is_deleted_there_later(s3: S3, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    sender = Sender(PLACE, root, [])
    for step in (2, 4, 6):
        write_checkpoint(root, step)
        sender.offer(step)
        store.remove(step_folder(root, step - 2))  # while it may still be on its way
        sender.close()
    assert sent(s3) == {6: True}
    assert [path.name for path in root.iterdir()] == ["step-00000006"]


def test_what_another_machine_sent_stays(s3: S3, tmp_path: Path) -> None:
    """A machine that goes on from the newest checkpoint has not the others, which may be what is kept of the run."""
    for machine, step in (("one", 2), ("other", 4)):
        root = tmp_path / machine
        sender = Sender(PLACE, root, [])
        write_checkpoint(root, step)
        sender.offer(step)
        sender.close()
    assert sent(s3) == {2: True, 4: True}


def test_a_checkpoint_that_is_not_whole_does_not_count(s3: S3, tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    for step in (2, 4, 6):
        write_checkpoint(root, step)
        PLACE.send(step_folder(root, step), step, [])
    s3.objects.delete_object(Bucket=BUCKET, Key=f"runs/{PLACE.run}/step-00000006/{FILES}")
    s3.put(f"runs/{PLACE.run}/step-00000004/__0_0.distcp", b"damaged")
    assert PLACE.restore(tmp_path / "other", []) == 2


def test_a_slow_store_is_never_waited_for_and_gets_the_newest(
    s3: S3, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "checkpoints"
    go = threading.Event()
    s3.before = lambda *_: go.wait(20) and None
    sender = Sender(PLACE, root, [])
    began = time.monotonic()
    for step in (1, 2, 3, 4, 5):
        write_checkpoint(root, step)
        sender.offer(step)
        time.sleep(0.05)  # the first is taken up
    assert time.monotonic() - began < 2
    go.set()
    sender.close()
    assert sent(s3) == {1: True, 5: True}
    assert [each.args[1] for each in caplog.records if "is left out" in each.message] == [2, 3, 4]


def test_a_failing_store_costs_a_warning_each(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(buckets, "PATIENCE", 0.2)
    root = tmp_path / "checkpoints"
    sender = Sender(PLACE, root, [])
    for step, status in {1: 500, 2: 403}.items():
        s3.fail = lambda method, *_, status=status: status if method == "PUT" else None
        write_checkpoint(root, step)
        sender.offer(step)
        sender.close()
    warnings = [each.message for each in caplog.records if "training goes on" in each.message]
    assert "500" in warnings[0]
    assert "403" in warnings[1]
    s3.fail = lambda *_: None
    write_checkpoint(root, 3)
    sender.offer(3)
    sender.close()
    assert sent(s3)[3]


def test_the_end_waits_only_so_long(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsite, "LAST_WAIT", 0.1)
    go = threading.Event()
    s3.before = lambda *_: go.wait(20) and None
    root = tmp_path / "checkpoints"
    sender = Sender(PLACE, root, [])
    write_checkpoint(root, 1)
    began = time.monotonic()
    sender.offer(1)
    sender.close()
    assert time.monotonic() - began < 2
    go.set()
    sender.close()


def pretrain(folder: Path, tokens: Path, **environment: str) -> "subprocess.Popen[str]":
    folder.mkdir()
    words = [str(tokens), str(tokens), "model", "--steps=6", "--checkpoint-every=2", "--keep=2", *SHORT, *TINY, *CPU]
    command = [sys.executable, "-m", "trainer.pretrain", *words, "--parallel.determinism=exact", "--stats=stats.json"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_another_machine_goes_on_with_a_killed_training(s3: S3, tmp_path: Path, trials: dict[str, Any]) -> None:
    """Kill it once its first checkpoint is in the bucket; another folder ends with the same bytes."""
    tokens = trials["tokenize"][0]
    whole = pretrain(tmp_path / "whole", tokens)
    assert whole.wait() == 0, whole.stderr and whole.stderr.read()
    place = {"MILLRACE_CHECKPOINTS": f"s3://{BUCKET}/runs"}
    first = pretrain(tmp_path / "first", tokens, **place)

    def kill(_method: str, _key: str) -> None:
        if any(method == "PUT" and key.endswith(f"step-00000002/{FILES}") for method, key in s3.requests):
            first.kill()

    s3.before = kill
    first.wait()
    s3.before = lambda *_: None
    assert sent(s3) == {2: True}
    second = pretrain(tmp_path / "second", tokens, **place)
    _, said = second.communicate()
    assert second.returncode == 0, said
    assert "the checkpoint of step 2 is fetched" in said
    for name in ("model/manifest.json", "model/curve.csv"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.nightly
def test_a_training_ends_well_though_the_store_refuses_everything_it_is_sent(
    s3: S3, tmp_path: Path, trials: dict[str, Any]
) -> None:
    s3.fail = lambda method, *_: 403 if method == "PUT" else None
    run = pretrain(tmp_path / "run", trials["tokenize"][0], MILLRACE_CHECKPOINTS=f"s3://{BUCKET}/runs")
    _, said = run.communicate()
    assert run.returncode == 0, said
    assert said.count("training goes on") >= 1
    assert json.loads((tmp_path / "run/stats.json").read_text())["steps"] == 6


@pytest.mark.slow
def test_a_store_that_cannot_be_asked_is_an_error_before_the_training(
    s3: S3, tmp_path: Path, trials: dict[str, Any]
) -> None:
    s3.fail = lambda *_: 403
    run = pretrain(tmp_path / "run", trials["tokenize"][0], MILLRACE_CHECKPOINTS=f"s3://{BUCKET}/runs")
    _, said = run.communicate()
    assert run.returncode == 1
    assert "access is denied (403)" in said
