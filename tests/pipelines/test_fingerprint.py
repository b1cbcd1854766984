"""Sources: what counts of them is hashed and nothing else, and a wrong one is one line before anything is read."""

from pathlib import Path

import pytest

from pipelines.command import StageSpec, parse
from pipelines.fingerprint import stage_identity
from pipelines.stage import run_command

CLEAN = StageSpec.load("dataprep.clean")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    return tmp_path / "a.jsonl"


def hashes(source: Path, tokenizer: Path) -> list[str]:
    return stage_identity(CLEAN, parse(CLEAN, [str(source), "out", "--tokenizer", str(tokenizer)]))["sources"]


def test_of_a_tokenizer_folder_only_the_tokenizer_counts(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "checkpoints").mkdir(parents=True)
    for name in ("gpt2-vocab.json", "gpt2-merges.txt", "weights.bin", "checkpoints/vocab.json"):
        (folder / name).write_text(name)
    first = hashes(source, folder)
    (folder / "weights.bin").write_text("other")
    (folder / "checkpoints" / "vocab.json").write_text("other")
    assert hashes(source, folder) == first
    (folder / "gpt2-merges.txt").write_text("other")
    assert hashes(source, folder) != first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bad-words", "nofile"], "clean.bad_words: nofile: no such file or folder"),
        (["--tokenizer", "nofile"], "clean.tokenizer: nofile: no such file or folder"),
        (["--language-model", "tests"], "clean.language_model: tests: is a folder; give a file"),
        (["--tokenizer", "/"], "clean.tokenizer: /: holds no tokenizer; expected tokenizer.json, or"),
    ],
)
def test_a_wrong_source_is_one_line_at_once(
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert run_command(CLEAN, [str(source), str(source.parent / "out"), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {message}")
    assert [path.name for path in source.parent.iterdir()] == ["a.jsonl"]
