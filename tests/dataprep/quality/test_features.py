"""Features are the distinct words and pairs of a folded text, whatever computes them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dedup.shingles import hash_shingle
from dataprep.quality.features import MOST_CHARACTERS, find_features, folded, named_features
from tests.dataprep.clean.documents import NAUGHTY

BITS = 18


def buckets(text: str) -> list[int]:
    return find_features(folded([text]), BITS).buckets.tolist()


def test_a_text_has_the_bucket_of_each_distinct_word_and_pair_once() -> None:
    grams = [["the"], ["mill"], ["turned"], ["the", "mill"], ["mill", "the"], ["mill", "turned"]]
    expected = sorted(hash_shingle(gram, "word") >> (64 - BITS) for gram in grams)
    assert sorted(buckets("The MILL, the mill -- turned!")) == expected


@given(st.lists(st.text(st.sampled_from("ab é水ß.\n"), max_size=30), max_size=8))
def test_texts_together_have_the_features_that_each_has_alone(texts: list[str]) -> None:
    together = find_features(folded(texts), BITS)
    assert [together.of(number).tolist() for number in range(len(texts))] == [buckets(text) for text in texts]


@pytest.mark.parametrize("name", sorted(NAUGHTY))
def test_the_words_that_are_named_are_those_that_are_counted(name: str) -> None:
    text = NAUGHTY[name]
    named = named_features(text, BITS).buckets.tolist()
    assert sorted(named * (2 if len(named) == 1 else 1)) == sorted(buckets(text))


def test_numpy_finds_the_same_features_as_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = folded(list(NAUGHTY.values()))
    native = find_features(texts, BITS)
    monkeypatch.setattr("dataprep.dedup.shingles.kernel", lambda: None)
    ours = find_features(texts, BITS)
    assert np.array_equal(native.buckets, ours.buckets)
    assert np.array_equal(native.first, ours.first)


def test_of_a_long_text_only_the_beginning_counts() -> None:
    text = "mill " * (MOST_CHARACTERS // 5) + "xxxx"
    assert set(buckets(text[:1000])) <= set(buckets(text))
    assert buckets(text) == buckets(f"{text} and a wheel")
