"""Hashes in C are those of the package xxhash, whatever the values, and wrong offsets are refused."""

import sys
import types

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from pipelines.identity import document_id, document_ids
from pipelines.native import built, hashes, lines

URLS = ["", "http://a.test/x", "HTTP://User@A.test:80/b?utm_source=c", "no URL", "http://é.test/", "https://b.test/\0"]
TEXTS = ["", "a", "日本語 \0 text", "word " * 20, "longer " * 40, "x" * 5000]


@pytest.fixture(params=["C", "Python"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "Python":
        monkeypatch.setattr(hashes, "module", lambda: None)
    elif hashes.module() is None:
        pytest.skip("the native kernel is not built here")
    return request.param


@pytest.mark.usefixtures("implementation")
def test_every_length_of_value_has_the_digest_of_xxhash() -> None:
    data = np.random.default_rng(0).integers(0, 256, 1 << 17, dtype=np.uint8)
    sizes = np.array([*range(1200), 2047, 2048, 2049, 65_536, 100_001], np.int64)
    starts = np.arange(len(sizes), dtype=np.int64)
    expected = [
        xxhash.xxh3_128_digest(data[start : start + size].tobytes())
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]
    assert [row.tobytes() for row in hashes.digests(data, starts, starts + sizes)] == expected
    assert hashes.digests(data, starts[:0], starts[:0]).shape == (0, 16)


@pytest.mark.usefixtures("implementation")
def test_documents_have_the_same_ids_one_by_one_and_as_columns() -> None:
    rows = [(url, text) for url in URLS for text in TEXTS]
    urls, texts = (pa.array(values, pa.string()) for values in zip(*rows, strict=True))
    expected = [document_id(url, text) for url, text in rows]
    assert document_ids(urls, texts).to_pylist() == expected
    assert document_ids(urls.slice(5), texts.slice(5)).to_pylist() == expected[5:]
    assert document_ids(urls[:0], texts[:0]).to_pylist() == []
    assert document_id(URLS[1], "a") == xxhash.xxh3_128_digest(b"http://a.test/x\0a")


@pytest.mark.usefixtures("implementation")
def test_ids_have_the_hash_of_xxhash() -> None:
    ids = [xxhash.xxh3_128_digest(bytes([number])) for number in range(200)]
    column = pa.array(ids, pa.binary(16))
    expected = [xxhash.xxh3_64_intdigest(each) for each in ids]
    assert hashes.id_hashes(column).tolist() == expected
    assert hashes.id_hashes(column.slice(3, 7)).tolist() == expected[3:10]
    assert hashes.id_hashes(column[:0]).tolist() == []


def test_a_module_that_was_built_from_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((hashes, "_hashes"), (lines, "_lines")):
        monkeypatch.setitem(sys.modules, f"pipelines.native.{name}", types.ModuleType(name))
        module.module.cache_clear()
        with pytest.raises(ImportError, match="built from other sources"):
            built.load(f"pipelines.native.{name}", 7)
    monkeypatch.setattr(sys.modules["pipelines.native._lines"], "interface", 0, raising=False)
    assert lines.module() is None
    lines.module.cache_clear()
    hashes.module.cache_clear()


def test_offsets_beyond_the_data_are_refused() -> None:
    module = hashes.module()
    if module is None:
        pytest.skip("the native kernel is not built here")
    data, out = np.zeros(10, np.uint8), np.zeros(16, np.uint8)
    for start, end in ((0, 11), (5, 4), (-1, 3)):
        with pytest.raises(ValueError, match="offsets"):
            module.spans(data, np.array([start]), np.array([end]), out)
        with pytest.raises(ValueError, match="offsets"):
            module.pairs(np.array([start, end], np.int32), data, np.array([0, 3], np.int32), data, out)
    with pytest.raises(ValueError, match="ends"):
        module.spans(data, np.array([0, 1]), np.array([1]), np.zeros(32, np.uint8))
    with pytest.raises(ValueError, match="out"):
        module.spans(data, np.array([0]), np.array([1]), np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="offsets"):
        module.pairs(np.zeros(1, np.int32), data, np.zeros(2, np.int32), data, out)
    with pytest.raises(ValueError, match="out"):
        module.ids(np.zeros(32, np.uint8), np.zeros(1, np.uint64))
