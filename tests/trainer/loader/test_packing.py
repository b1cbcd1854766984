"""The index of packed rows: bounded windows, made once, never taken for another's."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import UserError
from pipelines.tokens import write_tokens
from tests.trainer import small
from trainer.loader import packing
from trainer.loader.packing import document_pieces, open_index, pack
from trainer.loader.stream import TokenStream


@pytest.fixture
def stream(tmp_path: Path) -> TokenStream:
    return TokenStream(small.write_stream(tmp_path / "tokens", shards=20))


def test_windows_bound_the_work_and_lose_no_piece(stream: TokenStream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "WINDOW", 64)
    monkeypatch.setattr(packing, "_DOCUMENTS", 7)
    pieces = list(document_pieces(stream, 17, drop_tail=False))
    windows = list(pack(iter(pieces), 17))
    assert all(len(starts) <= 64 for starts, _, _ in windows)
    assert len(windows) > 3
    starts = np.concatenate([window[0] for window in windows])
    assert sorted(starts.tolist()) == np.concatenate([each[0] for each in pieces]).tolist()
    for _, lengths, rows in windows:
        assert np.add.reduceat(lengths, rows).max() <= 17


def test_an_index_is_made_once_and_its_digest_names_what_it_is_of(tmp_path: Path, stream: TokenStream) -> None:
    root = tmp_path / "index"
    first = open_index(root, stream, "abc", 16, bestfit=True, drop_tail=False)
    (folder,) = root.iterdir()
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}
    again = open_index(root, stream, "abc", 16, bestfit=True, drop_tail=False)
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()} == before
    assert isinstance(first.starts, np.memmap)
    assert len(again) == len(first)
    for other in [
        ("abd", 16, True, False),
        ("abc", 15, True, False),
        ("abc", 16, False, False),
        ("abc", 16, True, True),
    ]:
        open_index(root, stream, other[0], other[1], bestfit=other[2], drop_tail=other[3])
    assert len(list(root.iterdir())) == 5


def test_a_half_written_index_is_made_again(tmp_path: Path, stream: TokenStream) -> None:
    whole = open_index(tmp_path / "a", stream, "abc", 16, bestfit=True, drop_tail=False)
    (folder,) = (tmp_path / "a").iterdir()
    (tmp_path / "b" / f"{folder.name}.tmp").mkdir(parents=True)
    (tmp_path / "b" / f"{folder.name}.tmp" / "starts.i64").write_bytes(b"half")
    again = open_index(tmp_path / "b", stream, "abc", 16, bestfit=True, drop_tail=False)
    assert again.starts.tolist() == whole.starts.tolist()


def test_documents_without_anything_to_predict_are_refused(tmp_path: Path) -> None:
    meta = TokenStream(small.write_stream(tmp_path / "a")).meta
    write_tokens(tmp_path / "b/part-00000.arrow", [np.array([60])] * 3, [bytes(16)] * 3, meta)
    with pytest.raises(UserError, match="no document has two tokens"):
        open_index(tmp_path / "index", TokenStream(tmp_path / "b"), "x", 16, bestfit=False, drop_tail=False)
