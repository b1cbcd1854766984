"""Clusters: union-find, buckets linked by centres, survivors, against plain definitions."""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dedup.clusters import (
    UnionFind,
    all_pairs,
    assign_survivors,
    link_bucket,
    survivor_pairs,
    survivor_ranks,
)
from dataprep.dedup.pairs import DOCUMENT_FIELDS

Edge = tuple[int, int]
THRESHOLD = 0.7


def components(num_nodes: int, edges: list[Edge]) -> list[set[int]]:
    """Connected components by the book."""
    sets = [{node} for node in range(num_nodes)]
    for a, b in edges:
        joined = next(s for s in sets if a in s) | next(s for s in sets if b in s)
        sets = [s for s in sets if not s & joined] + [joined]
    return sorted(sets, key=min)


def edges_strategy(num_nodes: int) -> st.SearchStrategy[list[Edge]]:
    return st.lists(st.tuples(*[st.integers(0, num_nodes - 1)] * 2), max_size=40)


def random_sets(generator: np.random.Generator, families: int, members: int) -> list[set[int]]:
    """Families of near-copies of varied nearness, some of them like members of another family."""
    sets: list[set[int]] = []
    base = set(range(60))
    for family in range(families):
        base = {element if generator.random() > 0.22 else 1000 * (family + 1) + element for element in base}
        for _ in range(members):
            rate = generator.choice([0.0, 0.03, 0.1, 0.2])
            sets.append({e if generator.random() > rate else 10**6 + 1000 * len(sets) + e % 1000 for e in base})
    return [sets[place] for place in generator.permutation(len(sets))]


def jaccard_of(sets: list[set[int]]) -> Any:
    def similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.array([len(sets[x] & sets[y]) / len(sets[x] | sets[y]) for x, y in zip(a, b, strict=True)])

    return similarity


def true_pairs(sets: list[set[int]]) -> dict[Edge, float]:
    similarity = jaccard_of(sets)
    pairs = list(itertools.combinations(range(len(sets)), 2))
    values = similarity(*np.array(pairs).T)
    return {pair: value for pair, value in zip(pairs, values, strict=True) if value >= THRESHOLD}


@settings(deadline=None)
@given(edges_strategy(20))
def test_union_find_gives_the_connected_components(edges: list[Edge]) -> None:
    forest = UnionFind(20)
    for some in itertools.batched(edges, 7) if hasattr(itertools, "batched") else [edges]:
        a, b = np.array(some, dtype=np.int64).reshape(-1, 2).T
        forest.union(a, b)
    assert [set(nodes.tolist()) for nodes in forest.components(least=1)] == components(20, edges)
    assert all(forest.parent[node] == min(nodes) for nodes in components(20, edges) for node in nodes)


@pytest.mark.parametrize("seed", range(8))
def test_a_mixed_bucket_is_linked_as_a_comparison_of_all_pairs_would(seed: int) -> None:
    # The seeds compare one centre and stop: of a bucket with several clusters they find one.
    sets = random_sets(np.random.default_rng(seed), families=6, members=7)
    a, b, values = link_bucket(np.arange(len(sets)), np.arange(len(sets)), jaccard_of(sets), THRESHOLD)
    truth = true_pairs(sets)
    found = {(int(x), int(y)): value for x, y, value in zip(a, b, values, strict=True)}
    assert found.items() <= truth.items()
    assert components(len(sets), list(found)) == components(len(sets), list(truth))


def test_a_bucket_of_one_cluster_costs_one_comparison_per_member() -> None:
    calls: list[int] = []

    def similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        calls.append(len(a))
        return np.ones(len(a))

    link_bucket(np.arange(1000), np.arange(1000), similarity, THRESHOLD)
    assert calls == [999]


def test_members_already_connected_are_not_compared_again() -> None:
    labels = np.array([0, 0, 2, 2])
    a, b, _ = link_bucket(np.arange(4), labels, lambda a, _: np.ones(len(a)), THRESHOLD)
    assert set(zip(a.tolist(), b.tolist(), strict=True)) == {(0, 2), (0, 3)}
    assert len(set(labels.tolist())) == 1


@pytest.mark.parametrize("seed", range(5))
def test_all_pairs_of_a_small_cluster_are_those_of_the_exact_join(seed: int) -> None:
    sets = random_sets(np.random.default_rng(seed), families=2, members=5)
    a, b, values = all_pairs(np.arange(len(sets)), jaccard_of(sets), THRESHOLD)
    assert {(int(x), int(y)): v for x, y, v in zip(a, b, values, strict=True)} == true_pairs(sets)


def regroup(ranks: list[int], pairs: dict[Edge, float]) -> dict[int, tuple[int, float]]:
    """The definition: in each cluster the best survives, those alike go, the others are grouped again."""
    result: dict[int, tuple[int, float]] = {}
    waiting = [set(range(len(ranks)))]
    while waiting:
        nodes = sorted(waiting.pop())
        inner = [(nodes.index(a), nodes.index(b)) for a, b in pairs if a in nodes and b in nodes]
        for places in components(len(nodes), inner):
            cluster = {nodes[place] for place in places}
            best = min(cluster, key=lambda node: ranks[node])
            result[best] = best, 1.0
            for node in cluster - {best}:
                value = pairs.get((min(node, best), max(node, best)))
                if value is not None:
                    result[node] = best, value
            if left := cluster - result.keys():
                waiting.append(left)
    return result


@settings(deadline=None)
@given(edges_strategy(12), st.permutations(range(12)))
def test_survivors_in_order_of_rank_are_those_of_regrouping(edges: list[Edge], ranks: list[int]) -> None:
    pairs = {(min(a, b), max(a, b)): 0.7 + (a * 7 + b) % 30 / 100 for a, b in edges if a != b}
    a, b = np.array(list(pairs), dtype=np.int64).reshape(-1, 2).T
    survivor, value = assign_survivors(np.array(ranks), a, b, np.array(list(pairs.values())))
    expected = regroup(ranks, pairs)
    assert {node: (int(survivor[node]), float(value[node])) for node in range(12)} == expected


@pytest.mark.parametrize("seed", range(5))
def test_the_pairs_of_a_large_cluster_suffice_to_group_it_as_all_pairs_would(seed: int) -> None:
    generator = np.random.default_rng(seed)
    sets = random_sets(generator, families=5, members=12)
    order = generator.permutation(len(sets))
    a, b, values = survivor_pairs(np.arange(len(sets)), order, jaccard_of(sets), THRESHOLD)
    ranks = np.argsort(order)
    all_a, all_b = np.array(list(true_pairs(sets))).T
    expected = assign_survivors(ranks, all_a, all_b, np.array(list(true_pairs(sets).values())))
    found = assign_survivors(ranks, a, b, values)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert len(a) < len(all_a)


def documents(*rows: tuple[str, int, str]) -> pa.Table:
    """Rows of (doc_id letter, length, url), in input order."""
    columns = [
        [0] * len(rows),
        list(range(len(rows))),
        [letter.encode() * 16 for letter, _, _ in rows],
        [url for _, _, url in rows],
        [length for _, length, _ in rows],
    ]
    return pa.Table.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, DOCUMENT_FIELDS, strict=True)], schema=pa.schema(DOCUMENT_FIELDS)
    )


def test_each_survivor_rule_ranks_as_it_says_and_breaks_ties_by_doc_id_then_place() -> None:
    table = documents(("c", 10, "http://b"), ("b", 30, ""), ("a", 30, "http://a"), ("a", 30, "http://a"))
    best_first = {
        rule: np.argsort(survivor_ranks(table, rule)).tolist() for rule in ("longest", "first", "earliest_url")
    }
    assert best_first == {"longest": [2, 3, 1, 0], "first": [0, 1, 2, 3], "earliest_url": [2, 3, 0, 1]}
