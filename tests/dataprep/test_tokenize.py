"""Tokenize: ids equal Hugging Face's, and documents can be read back."""

import json
from pathlib import Path

import numpy as np
import pytest

from dataprep.text.bpe import END_OF_TEXT, TextEncoder, load_tokenizer
from pipelines.tokens import open_tokens
from tests.dataprep.corpora import TEXTS, run, write_jsonl

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"


def test_tokenize_then_decode_gives_every_text_back_with_end_of_text_after_each(tmp_path: Path, trained: Path) -> None:
    source = write_jsonl(tmp_path / "documents.jsonl", TEXTS)
    assert run("dataprep.tokenize", source, trained, tmp_path / "tokens") == 0
    (shard,) = open_tokens(tmp_path / "tokens")
    tokenizer = load_tokenizer(trained)
    assert len(shard) == len(TEXTS)
    for index, text in enumerate(TEXTS):
        ids = shard.tokens[shard.offsets[index] : shard.offsets[index + 1]].tolist()
        assert ids[-1] == 299
        assert 299 not in ids[:-1]
        assert tokenizer.decode(ids[:-1], skip_special_tokens=False) == text


def test_special_token_text_inside_a_document_stays_text(tmp_path: Path, trained: Path) -> None:
    text = f"before {END_OF_TEXT} after"
    assert run("dataprep.tokenize", write_jsonl(tmp_path / "d.jsonl", [text]), trained, tmp_path / "tokens") == 0
    (shard,) = open_tokens(tmp_path / "tokens")
    assert np.count_nonzero(shard.tokens == 299) == 1
    assert load_tokenizer(trained).decode(shard.tokens[:-1].tolist(), skip_special_tokens=False) == text


def test_gpt2_files_give_the_ids_of_transformers_on_real_text() -> None:
    corpus = DATA / "text" / "openwebtext-1000" / "openwebtext-1000.decoded.jsonl"
    if not corpus.exists():
        pytest.skip("needs ../shared/data")
    from transformers import GPT2TokenizerFast

    files = DATA / "gpt2-tokenizer"
    reference = GPT2TokenizerFast(vocab=str(files / "encoder.json"), merges=str(files / "vocab.bpe"))
    encoder = TextEncoder.load(files)
    assert (encoder.meta.vocab_size, encoder.meta.end_of_text) == (50_257, 50_256)
    with corpus.open() as file:
        texts = [json.loads(line)["text"] for _, line in zip(range(100), file, strict=False)]
    for text, ids in zip(texts, encoder.encode(texts), strict=True):
        assert ids.tolist() == reference(text)["input_ids"]


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
