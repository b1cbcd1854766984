"""Large buckets: families that are tight and unlike are told apart by a few distances, and no connection is missed."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dedup import links
from dataprep.dedup.corpus import Against, Corpus
from dataprep.dedup.links import link_bucket

THRESHOLD = 0.7
Sets = list[frozenset[int]]


class Counted:
    """The similarity of some sets, and how many comparisons were made; below `least` it says 0."""

    def __init__(self, sets: Sets, least: float) -> None:
        self.sets, self.least, self.count = sets, least, 0

    def __call__(self, a: Any, b: Any) -> Any:
        self.count += len(a)
        values = [
            len(self.sets[x] & self.sets[y]) / len(self.sets[x] | self.sets[y]) for x, y in zip(a, b, strict=True)
        ]
        return np.array([value if value >= self.least else 0.0 for value in values])


def family(start: int, size: int, members: int, changes: int) -> Sets:
    """Sets that differ from one another in a few elements; families with starts close by share elements."""
    return [
        frozenset(
            {*range(start, start + size), *range(10**6 * (start + 1) + 10 * n, 10**6 * (start + 1) + 10 * n + changes)}
        )
        - {start + n % size}
        for n in range(members)
    ]


def linked(sets: Sets, corpus: Corpus, labels: list[int], *, exact: bool) -> tuple[Any, ...]:
    plain, full = Counted(sets, THRESHOLD), Counted(sets, 0.0)
    known = np.array(labels)
    found = link_bucket(np.arange(len(sets)), known, plain, THRESHOLD, corpus, full if exact else None)
    return plain.count + full.count, known.tolist(), sorted(zip(*found, strict=True))


@pytest.mark.parametrize("apart", [30, 100])
@pytest.mark.parametrize("known", [False, True])
def test_tight_families_cost_a_few_comparisons_for_each_member_and_family(apart: int, known: bool) -> None:
    families = [family(apart * number, 100, 150, 2) for number in range(3)]
    sets = [one for members in zip(*families, strict=True) for one in members]
    labels = [n % 3 for n in range(len(sets))] if known else list(range(len(sets)))
    corpus = Corpus.of([len(sets)])
    count, *found = linked(sets, corpus, labels, exact=True)
    full, *expected = linked(sets, corpus, labels, exact=False)
    assert found == expected
    assert full > 60_000
    assert count < 3 * 3 * len(sets)


def test_a_straggler_near_a_family_costs_no_more_than_its_own_comparisons() -> None:
    near, far = family(0, 100, 200, 2), family(1000, 100, 200, 2)
    straggler = frozenset(range(18, 118))  # 0.67 of what it and a member of the first family have
    sets = [*near, *far, straggler]
    corpus = Corpus.of([len(sets)])
    count, *found = linked(sets, corpus, list(range(len(sets))), exact=True)
    full, *expected = linked(sets, corpus, list(range(len(sets))), exact=False)
    assert found == expected
    assert full > 40_000
    assert count < 6 * len(sets)


def test_where_distances_rule_nothing_out_they_are_soon_given_up() -> None:
    # Rings of a loose chain: every set has a few like it, and all the others are near enough to be so.
    sets = [frozenset((20 * n + place) % 4000 for place in range(100)) for n in range(200)]
    corpus = Corpus.of([len(sets)])
    count, *found = linked(sets, corpus, list(range(len(sets))), exact=True)
    full, *expected = linked(sets, corpus, list(range(len(sets))), exact=False)
    assert found == expected
    assert count <= 1.2 * full + 2 * len(sets)


universe = st.integers(0, 11)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.frozensets(universe, min_size=1, max_size=12), min_size=2, max_size=24),
    st.sampled_from([0.3, 0.5, 0.7, 0.75]),
    st.sampled_from(["both", "old", "joint"]),
    st.floats(0, 1),
)
def test_no_connection_is_missed_wherever_the_sets_lie(
    sets: Sets, threshold: float, against: Against, old: float
) -> None:
    num_old = int(old * len(sets))
    corpus = Corpus.of([num_old, len(sets) - num_old], ["old"], against)
    plain, full = Counted(sets, threshold), Counted(sets, 0.0)
    labels = np.arange(len(sets))
    with mock.patch.object(links, "_WORTH", 0), mock.patch.object(links, "_PATIENCE", 0):  # a survey from each centre
        a, b, values = link_bucket(np.arange(len(sets)), labels, plain, threshold, corpus, full)
    expected = np.arange(len(sets))
    again = link_bucket(np.arange(len(sets)), expected, plain, threshold, corpus, None)
    assert labels.tolist() == expected.tolist()
    assert sorted(zip(a, b, values, strict=True)) == sorted(zip(*again, strict=True))
    everyone = np.stack(np.triu_indices(len(sets), 1))
    true = corpus.compares(*everyone) & (full(*everyone) >= threshold)
    for x, y in everyone[:, true].T:  # brute force: every pair that counts is within one set
        assert labels[x] == labels[y]
