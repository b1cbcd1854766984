"""Fixtures of the data stages."""

from pathlib import Path

import pytest

from tests.dataprep.corpora import TEXTS, run, write_jsonl


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A tokenizer folder with 300 entries, trained on the small texts."""
    source = write_jsonl(tmp_path / "train.jsonl", TEXTS)
    assert run("dataprep.tokenizer", source, tmp_path / "tokenizer", "--vocab-size", 300) == 0
    return tmp_path / "tokenizer"
