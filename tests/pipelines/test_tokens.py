"""Token shards: mapped without a copy, lineage to the token, one tokenizer per folder."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines.errors import UserError
from pipelines.manifest import Counts, Manifest
from pipelines.tokens import TokenMeta, TokenShard, open_tokens, write_tokens

META = TokenMeta("ab" * 32, 50_257, 50_256)
DOCUMENTS = [np.array([5, 6, 50_256]), np.array([50_256]), np.array([1, 2, 3, 50_256])]
IDS = [bytes([i]) * 16 for i in range(3)]


def test_the_values_buffer_is_the_token_stream_and_offsets_are_the_documents(tmp_path: Path) -> None:
    write_tokens(tmp_path / "part-00000.arrow", DOCUMENTS, IDS, META)
    shard = TokenShard(tmp_path / "part-00000.arrow")
    assert shard.meta == META
    assert shard.tokens.dtype == np.uint16
    assert shard.tokens.tolist() == [5, 6, 50_256, 50_256, 1, 2, 3, 50_256]
    assert shard.offsets.tolist() == [0, 3, 4, 8]
    assert shard.doc_ids == IDS
    assert len(shard) == 3


def test_reading_maps_the_file_and_copies_nothing(tmp_path: Path) -> None:
    write_tokens(tmp_path / "part-00000.arrow", [np.zeros(4_000_000, np.uint16)], IDS[:1], META)
    before = pa.total_allocated_bytes()
    shard = TokenShard(tmp_path / "part-00000.arrow")
    assert shard.tokens.size == 4_000_000
    assert pa.total_allocated_bytes() - before < 100_000
    assert not shard.tokens.flags.owndata
    assert not shard.tokens.flags.writeable


def test_a_large_vocabulary_takes_32_bits(tmp_path: Path) -> None:
    meta = TokenMeta("cd" * 32, 100_000, 99_999)
    write_tokens(tmp_path / "part-00000.arrow", [np.array([70_000, 99_999])], IDS[:1], meta)
    shard = TokenShard(tmp_path / "part-00000.arrow")
    assert shard.tokens.dtype == np.uint32
    assert shard.tokens.tolist() == [70_000, 99_999]


def test_an_empty_shard_is_a_shard(tmp_path: Path) -> None:
    write_tokens(tmp_path / "part-00000.arrow", [], [], META)
    shard = TokenShard(tmp_path / "part-00000.arrow")
    assert shard.tokens.size == 0
    assert shard.offsets.tolist() == [0]


def test_shards_of_two_tokenizers_in_one_folder_are_refused(tmp_path: Path) -> None:
    write_tokens(tmp_path / "part-00000.arrow", DOCUMENTS, IDS, META)
    write_tokens(tmp_path / "part-00001.arrow", DOCUMENTS, IDS, TokenMeta("ef" * 32, 50_257, 50_256))
    with pytest.raises(UserError, match="made by another tokenizer"):
        open_tokens(tmp_path)


def test_a_missing_or_broken_shard_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no token shards"):
        open_tokens(tmp_path)
    (tmp_path / "part-00000.arrow").write_bytes(b"not arrow at all")
    with pytest.raises(UserError, match="not a token shard"):
        open_tokens(tmp_path)


def test_hugging_face_datasets_opens_the_shards_as_they_are(tmp_path: Path) -> None:
    import datasets

    write_tokens(tmp_path / "part-00000.arrow", DOCUMENTS, IDS, META)
    rows = datasets.load_dataset(
        "arrow", data_files=[str(tmp_path / "part-00000.arrow")], split="train", cache_dir=str(tmp_path / "cache")
    )
    assert [row["input_ids"] for row in rows] == [d.tolist() for d in DOCUMENTS]


def test_pyarrow_opens_a_published_folder_by_the_line_in_the_docs(tmp_path: Path) -> None:
    import pyarrow.dataset

    for number in range(2):
        write_tokens(tmp_path / f"part-{number:05d}.arrow", DOCUMENTS, IDS, META)
    Manifest({}, Counts()).save(tmp_path / "manifest.json")
    guide = (Path(__file__).parents[2] / "docs/reference/formats.md").read_text()
    (arguments,) = re.findall(r"(?m)^tokens = pyarrow\.dataset\.dataset\(\".*?\", (.*)\)$", guide)
    assert arguments == 'format="arrow", ignore_prefixes=[".", "manifest"]'
    tokens = pyarrow.dataset.dataset(str(tmp_path), format="arrow", ignore_prefixes=[".", "manifest"])
    assert tokens.to_table()["input_ids"].to_pylist() == [document.tolist() for document in DOCUMENTS] * 2


def test_load_dataset_of_a_published_folder_has_both_splits(tmp_path: Path) -> None:
    import datasets

    for name in ("train", "val"):
        write_tokens(tmp_path / "tokenize" / name / "part-00000.arrow", DOCUMENTS, IDS, META)
        Manifest({}, Counts()).save(tmp_path / "tokenize" / name / "manifest.json")
    splits = datasets.load_dataset(str(tmp_path / "tokenize"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 3, "validation": 3}
