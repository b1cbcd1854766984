"""Buckets of equal keys on disk, in however many slices."""

from pathlib import Path

import numpy as np
import pytest

from dataprep.dedup.buckets import (
    SMALL_BUCKET,
    bucket_pairs,
    buckets,
    gather_slice,
    large_buckets,
    load_lists,
    plan_slices,
    save_lists,
    write_sorted_keys,
)


@pytest.mark.parametrize("memory", [1, 1 << 20, 1 << 40])
@pytest.mark.parametrize("workers", [1, 3])
def test_slices_in_order_hold_every_record_once_in_sorted_order(tmp_path: Path, memory: int, workers: int) -> None:
    generator = np.random.default_rng(0)
    bands, sizes = 3, [5000, 0, 7000]
    files: list[Path] = []
    for shard, size in enumerate(sizes):
        keys = generator.choice(generator.integers(0, 2**64, 4000, dtype=np.uint64), (bands, size))
        numbers = np.arange(size, dtype=np.uint64) + np.uint64(sum(sizes[:shard]))
        files.append(tmp_path / f"{shard}.npy")
        write_sorted_keys(files[-1], np.stack((keys, np.broadcast_to(numbers, keys.shape)), axis=1))
    slices = plan_slices(sum(sizes), bands, memory, workers)
    for band in range(bands):
        pieces = [gather_slice(files, part, band) for part in slices if band in part.bands]
        keys, numbers = np.concatenate(pieces, axis=1)
        assert sorted(numbers.tolist()) == list(range(sum(sizes)))
        order = np.lexsort((numbers, keys))
        np.testing.assert_array_equal(order, np.arange(len(keys)))
    if memory == 1:
        assert len(slices) == 3 * bands


def test_small_buckets_give_all_their_pairs_once_and_large_ones_their_members() -> None:
    sizes = [1, 2, 3, SMALL_BUCKET, SMALL_BUCKET + 1, 1, 2]
    keys = np.repeat(np.arange(len(sizes), dtype=np.uint64), sizes)
    numbers = np.arange(len(keys), dtype=np.uint64)
    starts, found = buckets(keys)
    assert found.tolist() == [size for size in sizes if size > 1]
    pairs = bucket_pairs(numbers, starts, found)
    expected = [
        (a, b)
        for a in range(len(keys))
        for b in range(a + 1, len(keys))
        if keys[a] == keys[b] and sizes[int(keys[a])] <= SMALL_BUCKET
    ]
    assert [tuple(pair) for pair in pairs.tolist()] == expected
    assert [members.tolist() for members in large_buckets(numbers, starts, found)] == [list(range(22, 39))]


def test_no_keys_are_no_buckets() -> None:
    starts, sizes = buckets(np.empty(0, np.uint64))
    assert len(starts) == len(sizes) == len(bucket_pairs(np.empty(0, np.uint64), starts, sizes)) == 0


@pytest.mark.parametrize("lists", [[], [[1, 2, 3]], [[5], [], [2**60, 7]]])
def test_lists_come_back_as_they_were_saved(tmp_path: Path, lists: list[list[int]]) -> None:
    save_lists(tmp_path, "x", [np.array(members, dtype=np.uint64) for members in lists])
    assert [members.tolist() for members in load_lists(tmp_path, "x")] == lists
