"""Exact Jaccard similarities from disk."""

from pathlib import Path

import numpy as np
import pytest

from dataprep.dedup.shingle_sets import Mode, ShingleSets, ShingleSetWriter, count_shared, least_jaccard, set_similarity
from dataprep.dedup.shingles import Shingles
from dataprep.dedup.signatures import Permutations, sign

pytestmark = pytest.mark.usefixtures("each_kernel")


def jaccard(a: np.ndarray, b: np.ndarray, mode: Mode) -> float:
    return float(set_similarity(np.array([count_shared(a, b)]), np.array([len(a)]), np.array([len(b)]), mode)[0])


MODES: tuple[Mode, ...] = ("union", "min", "max")


def plain(a: set[int], b: set[int], mode: Mode) -> float:
    whole = {"union": len(a | b), "min": min(len(a), len(b)), "max": max(len(a), len(b))}[mode]
    return len(a & b) / whole if whole else 0.0


@pytest.mark.parametrize("mode", MODES)
def test_similarities_from_disk_are_those_of_pythons_sets(tmp_path: Path, mode: Mode) -> None:
    generator = np.random.default_rng(0)
    base = generator.choice(10_000, 300, replace=False)
    sets = [
        set(base[: generator.integers(1, 300)].tolist()) | set(generator.integers(0, 300, 20).tolist())
        for _ in range(40)
    ]
    sets[7] = set()
    permutations = Permutations.draw(64, 1)
    first = [0, 25, 25, 60]  # shard 1 is empty; of shard 2 only every other row has a set
    numbers = [*range(25), *range(25, 55, 2)]
    writers = [ShingleSetWriter(tmp_path, f"part-{shard:05d}") for shard in range(3)]
    for number, elements in zip(numbers, sets, strict=True):
        shard = 0 if number < 25 else 2
        hashes = np.array(sorted(elements), dtype=np.uint64)
        signature = sign(Shingles(hashes, np.array([0, len(hashes)])), permutations)[0]
        writers[shard].write(number - first[shard], hashes, signature)
    for writer in writers:
        writer.close()
    stored = ShingleSets(tmp_path, first, 64)
    places = [(a, b) for a in range(40) for b in range(40) if a != b]
    a, b = (np.array([numbers[pair[side]] for pair in places], dtype=np.uint64) for side in (0, 1))
    expected = np.array([plain(sets[a], sets[b], mode) for a, b in places])
    np.testing.assert_array_equal(stored.similarity(a, b, mode, 0.0), expected)
    high = stored.similarity(a, b, mode, 0.7)
    np.testing.assert_array_equal(high[expected >= 0.7], expected[expected >= 0.7])
    assert ((high == expected) | (high == 0)).all()


def test_any_number_of_shards_is_open_at_once_without_a_file_descriptor(tmp_path: Path) -> None:
    count = 300
    for shard in range(count):
        writer = ShingleSetWriter(tmp_path, f"part-{shard:05d}")
        writer.write(0, np.arange(shard, shard + 9, dtype=np.uint64), np.zeros(3, np.uint32))
        writer.close()
    assert len(list(tmp_path.iterdir())) == count
    stored = ShingleSets(tmp_path, range(count + 1), 3)
    before = sum(1 for _ in Path("/dev/fd").iterdir())
    numbers = np.arange(count, dtype=np.uint64)
    similarity = stored.similarity(numbers[:-1], numbers[1:], "union", 0.7)
    assert sum(1 for _ in Path("/dev/fd").iterdir()) == before
    np.testing.assert_array_equal(similarity, 8 / 10)


@pytest.mark.parametrize("mode", MODES)
def test_the_least_jaccard_never_rules_out_a_pair_at_the_threshold(mode: Mode) -> None:
    for shared, only_a, only_b in [(7, 3, 0), (7, 0, 3), (7, 2, 1), (10, 0, 0), (1, 0, 9), (3, 3, 3)]:
        a = np.arange(shared + only_a, dtype=np.uint64)
        b = np.concatenate((a[:shared], np.arange(100, 100 + only_b, dtype=np.uint64)))
        similarity, union = jaccard(a, np.sort(b), mode), jaccard(a, np.sort(b), "union")
        sizes = np.array([float(len(a))]), np.array([float(len(b))])
        assert least_jaccard(*sizes, mode, similarity)[0] <= union
        assert least_jaccard(*sizes, mode, min(1.0, similarity + 0.05))[0] > union or similarity == 1.0


def test_sizes_too_far_apart_are_ruled_out_before_any_set_is_read() -> None:
    assert least_jaccard(np.array([10.0]), np.array([100.0]), "union", 0.7)[0] > 1
    assert least_jaccard(np.array([10.0]), np.array([100.0]), "min", 0.7)[0] < 1
