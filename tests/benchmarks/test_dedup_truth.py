"""The exact truth about duplicates, by which every run is judged."""

import random
from itertools import combinations

import numpy as np
import pytest

from benchmarks.dedup_truth import Pairs, exact_join, jaccard, score, share, shingle_sets


def word_5_jaccards(texts: list[str]) -> dict[tuple[int, int], float]:
    """The definition, for texts of plain lower-case words: all pairs that share anything."""
    words = [text.split() for text in texts]
    sets = [{tuple(each[i : i + 5]) for i in range(len(each) - 4)} for each in words]
    shared = {(a, b): len(sets[a] & sets[b]) for a, b in combinations(range(len(sets)), 2)}
    return {(a, b): n / (len(sets[a]) + len(sets[b]) - n) for (a, b), n in shared.items() if n}


def edited_texts() -> list[str]:
    """Texts of 12 to 60 words from a small vocabulary, most of them edits of earlier ones."""
    draw = random.Random(3)
    words = [f"w{number}" for number in range(60)]
    texts = [draw.choices(words, k=draw.randint(12, 60)) for _ in range(10)]
    for _ in range(150):
        text = list(draw.choice(texts))
        for _ in range(draw.randint(0, 4)):
            text[draw.randrange(len(text))] = draw.choice(words)
        texts.append(text[draw.randint(0, 3) :])
    return [" ".join(text) for text in texts]


@pytest.mark.parametrize("least", [0.3, 0.4, 0.7, 1.0])
def test_the_join_finds_every_pair_that_comparing_all_with_all_finds(least: float) -> None:
    texts = edited_texts()
    found = exact_join(shingle_sets(texts), least)
    joined = dict(zip(zip(found.a.tolist(), found.b.tolist(), strict=True), found.jaccard.tolist(), strict=True))
    assert joined == pytest.approx({pair: value for pair, value in word_5_jaccards(texts).items() if value >= least})
    assert len(joined) > 10


def test_texts_without_words_are_like_no_other_and_a_short_text_is_one_shingle() -> None:
    sets = shingle_sets(["", "...", "two words", "Two  WORDS", "two other words"])
    found = exact_join(sets)
    assert list(zip(found.a, found.b, found.jaccard, strict=True)) == [(2, 3, 1.0)]
    assert jaccard(sets.of(2), sets.of(4)) == 0


def test_a_score_counts_pairs_kept_whole_and_documents_lost() -> None:
    truth = Pairs(np.array([0, 1, 3, 0, 4]), np.array([1, 2, 4, 5, 6]), np.array([0.95, 0.75, 0.5, 0.85, 0.8]))
    judged = score(truth, np.array([True, False, True, True, False, True, False]))
    assert judged.found == {"J >= 0.9": (1, 1), "J >= 0.8": (2, 3), "J >= 0.7": (3, 4), "0.7 to 0.8": (1, 1)}
    # 1 has a kept document at 0.95; 4 has one at 0.5 alone, for 6 goes too; so 6 has none.
    assert (judged.removed, judged.justified, judged.orphans) == (3, 1, 1)


def test_a_share_is_never_rounded_up_to_one() -> None:
    assert share(19_999, 20_000) == "0.999 (19,999 of 20,000)"
    assert share(5, 5) == "1.000 (5 of 5)"
    assert share(0, 0) == "none"
