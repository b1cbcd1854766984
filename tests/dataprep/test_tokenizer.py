"""Tokenizer: training is deterministic, any of GPT-2's layouts loads, the Hub only at a pinned commit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.text.bpe import END_OF_TEXT, load_tokenizer
from pipelines.errors import UserError
from tests.dataprep.corpora import TEXTS, run, write_jsonl

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


def test_training_gives_the_same_bytes_for_any_number_of_threads_and_hash_seed(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "train.jsonl", TEXTS * 5)
    files: set[bytes] = set()
    for threads, seed in (("1", "0"), ("2", "1"), ("2", "2")):
        environment = {**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
        out = tmp_path / f"tokenizer-{seed}"
        command = [sys.executable, "-m", "dataprep.tokenizer", str(source), str(out), "--vocab-size", "320"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
        files.add((out / "tokenizer.json").read_bytes())
    assert len(files) == 1


def test_end_of_text_is_the_last_id_and_the_vocabulary_has_the_size_asked_for(trained: Path) -> None:
    tokenizer = load_tokenizer(trained)
    assert tokenizer.get_vocab_size() == 300
    assert tokenizer.token_to_id(END_OF_TEXT) == 299


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "holds no tokenizer"),
        ({"tokenizer.json": "{"}, "not valid JSON"),
        ({"tokenizer.json": "{}"}, "not a tokenizer file"),
        ({"vocab.json": '{"a": 0, "b": 1}', "merges.txt": "#version: 0.2\na b\n"}, "does not belong to"),
        ({"vocab.json": '{"a": 0, "b": 1, "ab": 2}', "merges.txt": "a b\n"}, "has no <|endoftext|>"),
    ],
)
def test_a_wrong_tokenizer_folder_is_one_clear_line(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_hub_files_are_taken_at_a_pinned_commit_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: Path
) -> None:
    """The hub's client is replaced by a local folder; the call it gets is checked."""
    calls: list[tuple[object, ...]] = []

    def snapshot_download(repository: str, *, revision: str, allow_patterns: list[str]) -> str:
        calls.append((repository, revision, tuple(allow_patterns)))
        return str(trained)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    source = tmp_path / "train.jsonl"
    assert run("dataprep.tokenizer", source, tmp_path / "hub", "--kind", "hub") == 0
    assert calls[0][0] == "openai-community/gpt2"
    assert (tmp_path / "hub" / "tokenizer.json").read_bytes() == (trained / "tokenizer.json").read_bytes()
    assert run("dataprep.tokenizer", source, tmp_path / "main", "--kind", "hub", "--hub-revision", "main") == 2


def test_merges_that_are_no_text_are_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}')
    (tmp_path / "merges.txt").write_bytes(b"#version: 0.2\na b\n\xff c\n")
    with pytest.raises(UserError, match=r"merges.txt: not valid UTF-8 at byte 18; fetch"):
        load_tokenizer(tmp_path)
