"""Packing: the rows of the textbook's best-fit-decreasing; an index in bounded windows, built once for each input."""

from pathlib import Path

import numpy as np
import pytest

from pipelines.errors import UserError
from pipelines.tokens import write_tokens
from tests.trainer import small
from trainer.data import packing
from trainer.data.packing import best_fit_decreasing, document_pieces, open_index, pack
from trainer.data.stream import TokenStream


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


def one_by_one(lengths: list[int], capacity: int) -> list[int]:
    """Room left in each row of the textbook's algorithm."""
    room: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [row for row, free in enumerate(room) if free >= length]
        if not fitting:
            room.append(capacity)
            fitting = [len(room) - 1]
        room[min(fitting, key=lambda row: room[row])] -= length
    return room


@pytest.mark.parametrize(("number", "capacity"), [(0, 5), (1, 5), (50, 7), (400, 17), (400, 129), (3000, 33)])
def test_the_rows_are_those_of_the_loop(number: int, capacity: int) -> None:
    for seed in range(5):
        lengths = np.random.default_rng(seed).integers(1, capacity + 1, size=number)
        if seed % 2:
            lengths = np.minimum(lengths, np.random.default_rng(seed).integers(1, capacity + 1, size=number))
        pieces, rows = best_fit_decreasing(lengths.astype(np.int32), capacity)
        assert sorted(pieces.tolist()) == list(range(number))
        used = np.bincount(rows, lengths[pieces]).astype(int) if number else np.empty(0, int)
        assert sorted((capacity - used).tolist()) == sorted(one_by_one(lengths.tolist(), capacity))


def test_a_hundred_thousand_pieces_waste_next_to_nothing() -> None:
    lengths = np.minimum(np.random.default_rng(0).lognormal(5.5, 1.2, 100_000).astype(np.int32) + 1, 1025)
    _, rows = best_fit_decreasing(lengths, 1025)
    assert lengths.sum() / (1025 * (int(rows.max()) + 1)) > 0.99
