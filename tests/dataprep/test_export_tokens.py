"""Exports read back by readers written from the formats' definitions."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataprep import export_tokens
from pipelines import store
from pipelines.manifest import Counts, FileEntry, Manifest
from pipelines.tokens import TokenMeta, write_tokens
from tests.dataprep.corpora import run

META = TokenMeta("ab" * 32, 50_257, 50_256)
SHARDS = [[[5, 6, 50_256], [50_256], [1, 2, 3, 50_256]], [], [[7, 50_256]]]
DOCUMENTS = [document for shard in SHARDS for document in shard]


MEGATRON_DTYPES = (None, np.uint8, np.int8, np.int16, np.int32, np.int64, np.float64, np.float32, np.uint16)


class MegatronReader:
    """As `_IndexReader` and `_MMapBinReader` of NVIDIA/Megatron-LM's indexed_dataset.py read the two files."""

    def __init__(self, prefix: Path) -> None:
        index = prefix.with_suffix(".idx").read_bytes()
        assert index[:9] == b"MMIDIDX\x00\x00"
        version, code, self.count, documents = struct.unpack("<QBQQ", index[9:34])
        assert version == 1
        self.dtype: Any = np.dtype(MEGATRON_DTYPES[code])
        self.lengths = np.frombuffer(index, np.int32, self.count, 34)
        self.pointers = np.frombuffer(index, np.int64, self.count, 34 + 4 * self.count)
        self.documents = np.frombuffer(index, np.int64, documents, 34 + 12 * self.count)
        assert len(index) == 34 + 12 * self.count + 8 * documents
        assert len(self.lengths) == self.documents[-1]
        self.data = np.memmap(prefix.with_suffix(".bin"), self.dtype, mode="r")

    def __getitem__(self, i: int) -> list[int]:
        return np.frombuffer(self.data, self.dtype, self.lengths[i], self.pointers[i]).tolist()


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    return make(tmp_path / "tokens", META)


def make(folder: Path, meta: TokenMeta) -> Path:
    entries: dict[str, FileEntry] = {}
    for number, shard in enumerate(SHARDS):
        ids = [bytes([number, i]) * 8 for i in range(len(shard))]
        path = folder / f"part-{number:05d}.arrow"
        write_tokens(path, [np.array(d, meta.dtype) for d in shard], ids, meta)
        entries[path.name] = FileEntry(len(shard), path.stat().st_size, store.sha256(path))
    Manifest(entries, Counts()).save(folder / "manifest.json")
    return folder


@pytest.mark.parametrize(("vocab_size", "dtype"), [(50_257, np.uint16), (100_000, np.int32)])
def test_megatron_reads_every_document(
    tmp_path: Path, vocab_size: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_tokens, "CHUNK", 3)
    source = make(tmp_path / "tokens", TokenMeta("ab" * 32, vocab_size, 50_256))
    assert run("dataprep.export_tokens", source, tmp_path / "out", "--name", "web") == 0
    reader = MegatronReader(tmp_path / "out" / "web_text_document")
    assert reader.dtype == dtype
    assert [reader[i] for i in range(reader.count)] == DOCUMENTS
    assert reader.documents.tolist() == [0, 1, 2, 3, 4]
    assert len(reader.data) == sum(map(len, DOCUMENTS))


def test_nanogpt_reads_the_stream(tmp_path: Path, tokens: Path) -> None:
    assert run("dataprep.export_tokens", tokens, tmp_path / "out", "--format", "nanogpt") == 0
    data = np.memmap(tmp_path / "out" / "train.bin", dtype=np.uint16, mode="r")
    assert data.tolist() == [token for document in DOCUMENTS for token in document]


def test_a_vocabulary_that_nanogpts_type_cannot_hold_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make(tmp_path / "tokens", TokenMeta("ab" * 32, 65_537, 50_256))
    arguments = ("dataprep.export_tokens", source, tmp_path / "out", "--format", "nanogpt")
    assert run(*arguments) == 1
    error = capsys.readouterr().err
    assert "a vocabulary of 65,537 does not fit in uint16, whose largest id is 65,535" in error
    assert "--dtype uint32" in error
    assert run(*arguments, "--dtype", "uint32") == 0
    data = np.memmap(tmp_path / "out" / "train.bin", dtype=np.uint32, mode="r")
    assert data.tolist() == [token for document in DOCUMENTS for token in document]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--name", "a/b"], "'a/b' is not a file name"),
        (["--name", ".."], "'..' is not a file name"),
        (["--dtype", "uint16"], "Megatron's follows from the vocabulary"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    tmp_path: Path, tokens: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("dataprep.export_tokens", tokens, tmp_path / "out", *flags) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_token_shards_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert run("dataprep.export_tokens", tmp_path / "empty", tmp_path / "out") == 1
    assert "has no token shards (part-*.arrow); run tokenize first" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_shard_missing_from_the_middle_is_named_even_without_a_manifest(
    tmp_path: Path, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tokens / "part-00001.arrow").unlink()
    assert run("dataprep.export_tokens", tokens, tmp_path / "out") == 1
    assert "part-00001.arrow: missing" in capsys.readouterr().err
    (tokens / "manifest.json").unlink()
    assert run("dataprep.export_tokens", tokens, tmp_path / "out") == 1
    assert "has no manifest.json, so no stage finished it" in capsys.readouterr().err


def test_a_shard_that_changed_is_not_exported(tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = tokens / "part-00000.arrow"
    data = shard.read_bytes()
    first = np.array(DOCUMENTS[0], META.dtype).tobytes()
    shard.write_bytes(data.replace(first, np.array([5, 7, 50_256], META.dtype).tobytes()))
    assert run("dataprep.export_tokens", tokens, tmp_path / "out") == 1
    assert f"error: {shard}: changed: its size is right, its sha256 is not" in capsys.readouterr().err
