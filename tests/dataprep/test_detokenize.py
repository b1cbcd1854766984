"""Detokenize: the text of every document, exactly; the wrong tokenizer is refused."""

import json
from pathlib import Path

import pytest
from tokenizers.normalizers import NFKC, Lowercase, Sequence
from tokenizers.pre_tokenizers import ByteLevel

from dataprep import detokenize
from dataprep.detokenize import changes_to_text, document_ranges
from dataprep.text.tokenizers import END_OF_TEXT, load_tokenizer
from pipelines.command import StageSpec
from pipelines.documents import part_files, read_rows
from pipelines.stage import run_command
from pipelines.tokens import open_tokens
from tests.dataprep.corpora import TEXTS, run, write_jsonl
from tests.samples import Data, gpt2

HARD = [
    "",
    " ",
    f"a {END_OF_TEXT} b",
    "\u0000\t\r\n",
    "e\u0301 ﬁ \u200b\ufeff \ufffd 👩‍👩‍👧",
    "  two  spaces  ",
    "'s don't .",
]


def test_every_text_comes_back_exactly(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detokenize, "DECODED_TOKENS", 50)
    source = write_jsonl(tmp_path / "documents.jsonl", [*TEXTS, *HARD])
    assert run("dataprep.tokenize", source, trained, tmp_path / "tokens") == 0
    assert run("dataprep.detokenize", tmp_path / "tokens", trained, tmp_path / "back.jsonl") == 0
    rows = [json.loads(line) for line in (tmp_path / "back.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == [*TEXTS, *HARD]
    ids = [doc_id.hex() for shard in open_tokens(tmp_path / "tokens") for doc_id in shard.doc_ids]
    assert [row["doc_id"] for row in rows] == ids


def test_gpt2s_own_files_give_web_texts_back(data: Data, tmp_path: Path) -> None:
    texts = data.documents(100)
    source = write_jsonl(tmp_path / "documents.jsonl", texts)
    assert run("dataprep.tokenize", source, gpt2(), tmp_path / "tokens") == 0
    assert run("dataprep.detokenize", tmp_path / "tokens", gpt2(), tmp_path / "back") == 0
    assert [row["text"] for file in part_files(tmp_path / "back") for row in read_rows(file)] == texts


def test_another_tokenizer_is_refused(tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "documents.jsonl", TEXTS)
    assert run("dataprep.tokenize", source, trained, tmp_path / "tokens") == 0
    assert run("dataprep.tokenizer", source, tmp_path / "other", "--vocab-size", 280) == 0
    assert run("dataprep.detokenize", tmp_path / "tokens", tmp_path / "other", tmp_path / "back") == 1
    assert "name the tokenizer that made the shards" in capsys.readouterr().err
    assert not (tmp_path / "back").exists()


def test_a_tokenizer_that_changes_texts_is_named(
    tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = load_tokenizer(trained)
    assert changes_to_text(changed) == []
    changed.normalizer = Sequence([NFKC(), Lowercase()])
    changed.pre_tokenizer = ByteLevel(add_prefix_space=True)
    (tmp_path / "changed.json").write_text(changed.to_str())
    source = write_jsonl(tmp_path / "d.jsonl", ["The ﬁsh"])
    assert run("dataprep.tokenize", source, tmp_path / "changed.json", tmp_path / "tokens") == 0
    arguments = [tmp_path / "tokens", tmp_path / "changed.json", tmp_path / "back.jsonl"]
    assert run_command(StageSpec.load("dataprep.detokenize"), list(map(str, arguments))) == 0
    said = "the texts are as the normalizer Sequence and the space that it puts in front left them"
    assert said in capsys.readouterr().err
    assert json.loads((tmp_path / "back.jsonl").read_text())["text"] == " the fish"


def test_a_document_longer_than_what_is_decoded_at_once_stands_alone(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a", "b", "The wheel of mill turns. " * 40, "", "c"]
    assert run("dataprep.tokenize", write_jsonl(tmp_path / "d.jsonl", texts), trained, tmp_path / "tokens") == 0
    (shard,) = open_tokens(tmp_path / "tokens")
    monkeypatch.setattr(detokenize, "DECODED_TOKENS", 10)
    assert document_ranges(shard) == [(0, 2), (2, 3), (3, 5)]


def test_a_shard_that_changed_is_not_read(tmp_path: Path, trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_jsonl(tmp_path / "documents.jsonl", TEXTS)
    assert run("dataprep.tokenize", source, trained, tmp_path / "tokens") == 0
    shard = tmp_path / "tokens/part-00000.arrow"
    tokens = open_tokens(tmp_path / "tokens")[0].tokens[:2]
    data = shard.read_bytes()
    shard.write_bytes(data.replace(tokens.tobytes(), tokens[::-1].tobytes(), 1))
    assert shard.read_bytes() != data
    assert run("dataprep.detokenize", tmp_path / "tokens", trained, tmp_path / "back") == 1
    assert f"error: {shard}: changed: its size is right, its sha256 is not" in capsys.readouterr().err
