"""Locks beside outputs, and what a refusal leaves there: nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines import inputs
from pipelines.command import StageSpec
from pipelines.engine import KILLED
from pipelines.errors import KilledError, UserError
from pipelines.locks import held, lock_file, locked
from pipelines.stage import run_command


def everything(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def documents(folder: Path) -> Path:
    file = folder / "good.jsonl"
    file.write_text(json.dumps({"text": "The miller opens the gate at dawn. " * 20}) + "\n")
    return file


def test_a_lock_keeps_others_out_and_leaves_nothing(tmp_path: Path) -> None:
    output = tmp_path / "new" / "folder" / "out"
    with locked([output]):
        assert everything(tmp_path) == ["new", "new/folder", "new/folder/.work", "new/folder/.work/out.lock"]
        with held(output) as is_held:
            assert not is_held
        with pytest.raises(UserError, match=r"out\.lock: another process is making out"), locked([output]):
            pass
    assert everything(tmp_path) == []
    with held(output) as is_held:
        assert is_held
        (output.parent / "kept").touch()
    assert everything(tmp_path) == ["new", "new/folder", "new/folder/kept"]


def test_who_waits_for_a_lock_whose_file_is_removed_holds_the_one_that_is_there(tmp_path: Path) -> None:
    """The file of a lock may be removed while it is held, since nobody takes one without a name for the lock."""
    wait = "import filelock, os, sys; filelock.FileLock(sys.argv[1]).acquire(timeout=30); os.stat(sys.argv[1])"
    (tmp_path / ".work").mkdir()
    (tmp_path / ".work" / "other").touch()
    with held(tmp_path / "out"):
        waiting = subprocess.Popen([sys.executable, "-c", wait, lock_file(tmp_path / "out")])
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1)
    assert waiting.wait(30) == 0


@pytest.mark.parametrize("stage", ["clean", "extract", "split"])
@pytest.mark.parametrize("content", [b"broken\n", '{"text": "x"}\n'.encode("utf-16")])
def test_refused_documents_leave_nothing(stage: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(content)
    outputs = [str(tmp_path / "new" / "a"), str(tmp_path / "new" / "b")][: 1 + (stage == "split")]
    assert run_command(StageSpec.load(f"dataprep.{stage}"), [str(tmp_path / "in.jsonl"), *outputs]) == 1
    assert everything(tmp_path) == ["in.jsonl"]


def test_a_refusal_of_another_input_or_of_a_parameter_leaves_nothing(tmp_path: Path) -> None:
    source = documents(tmp_path)
    (tmp_path / "empty").mkdir()
    paths = (source, tmp_path / "empty", tmp_path / "out")
    assert run_command(StageSpec.load("dataprep.tokenize"), [*map(str, paths)]) == 1
    outputs = [str(tmp_path / "train"), str(tmp_path / "val")]
    assert run_command(StageSpec.load("dataprep.split"), [str(source), *outputs, "--val-share", "0"]) == 1
    assert everything(tmp_path) == ["empty", "good.jsonl"]


def test_inputs_that_were_made_shards_stay_if_a_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_arguments: object) -> None:
        raise KilledError(KILLED)

    source = documents(tmp_path)
    monkeypatch.setattr(inputs, "Documents", killed)
    assert run_command(StageSpec.load("dataprep.clean"), [str(source), str(tmp_path / "out")]) == 1
    (scratch,) = (tmp_path / ".work").iterdir()
    assert [path.name for path in (scratch / "receipts").rglob("*.json")] == ["file-00000-00000.json"]
