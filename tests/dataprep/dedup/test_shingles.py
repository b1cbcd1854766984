"""Words and shingles: the array path equals a plain reading of the rules, one text at a time."""

import re
import tracemalloc
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.dedup import shingles
from dataprep.dedup.shingles import Shingle, distinct_shingles, find_shingles, find_words, hash_shingle, word_hashes
from dataprep.dedup.signatures import EMPTY, Permutations, sign_texts
from dataprep.text.folding import fold_text, fold_texts, raw_texts
from pipelines.errors import ConfigError

pytestmark = pytest.mark.usefixtures("each_kernel")

ALPHABET = "aZ9_ .,-\n'é\u0301\u00df“日本語かナไทยกำ\u0e38हिन्दी\u200d😀𝔸"
ASSIGNED = st.characters(exclude_categories=("Cs", "Cn"))
TEXTS = st.lists(st.text(ASSIGNED) | st.text(alphabet=ALPHABET), max_size=6)
SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9d"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003347f]"
)


def plain_words(text: str) -> list[str]:
    """The rule of `dataprep.dedup.shingles`, character by character."""
    words: list[str] = []
    before = "outside"
    for character in fold_text(text):
        category = unicodedata.category(character)
        if category[0] == "M" or character in "\u200c\u200d":
            kind = "mark"
        elif category[0] == "L":
            kind = "alone" if SPACELESS.match(character) else "letter"
        elif category[0] == "N" or category == "Pc":
            kind = "letter"
        else:
            kind = "outside"
        new_letter = kind == "letter" and before not in ("letter", "mark")
        if kind == "alone" or new_letter or (kind == "mark" and before == "outside"):
            words.append(character)
        elif kind != "outside":
            words[-1] += character
        before = kind
    return words


def plain_shingles(text: str, shingle: Shingle) -> list[int]:
    units = plain_words(text) if shingle.unit == "word" else list(fold_text(text))
    runs = [units[start : start + shingle.size] for start in range(max(1, len(units) - shingle.size + 1))]
    return [hash_shingle(run, shingle.unit) for run in runs if run]


@given(TEXTS)
def test_words_of_many_texts_are_those_of_each_by_the_plain_rule(texts: list[str]) -> None:
    words = find_words(fold_texts(raw_texts(texts)))
    found = [
        [words.text(number, number + 1) for number in range(start, stop)]
        for start, stop in zip(words.first[:-1], words.first[1:], strict=True)
    ]
    assert found == [plain_words(text) for text in texts]


@given(TEXTS, st.sampled_from(["word:1", "word:2", "word:5", "char:1", "char:5"]))
def test_shingles_of_many_texts_have_the_hashes_of_the_definition(texts: list[str], kind: str) -> None:
    shingle = Shingle.parse(kind)
    folded = fold_texts(raw_texts(texts))
    shingles, sets = find_shingles(folded, shingle), distinct_shingles(folded, shingle)
    for number, text in enumerate(texts):
        expected = plain_shingles(text, shingle)
        assert shingles.of(number).tolist() == expected
        assert sets.of(number).tolist() == sorted(set(expected))


def test_a_word_of_any_length_has_the_hash_of_the_definition() -> None:
    words = ["x" * length for length in (1, 7, 8, 9, 15, 16, 17, 1000)]
    hashes = word_hashes(find_words(raw_texts([" ".join(words)])))
    assert [hash_shingle([word], "word") for word in words] == [int(value) for value in _mix_all(hashes)]
    assert len(set(hashes.tolist())) == len(words)


def _mix_all(hashes: np.ndarray) -> np.ndarray:
    from dataprep.dedup.shingles import window_hashes

    return window_hashes(hashes, 1)


def test_the_last_shingle_counts_and_a_text_of_just_one_shingle_has_it() -> None:
    # Megatron's script is off by one: range(0, len - n) loses the last shingle, and a text of n characters has none.
    shingle = Shingle.parse("char:5")
    shingles = find_shingles(raw_texts(["abcde", "abcdef", "abc"]), shingle)
    assert np.diff(shingles.first).tolist() == [1, 2, 1]
    assert int(shingles.hashes[0]) == int(shingles.hashes[1]) == hash_shingle("abcde", "char")
    assert int(shingles.hashes[2]) == hash_shingle("bcdef", "char")


def test_a_text_without_words_has_no_shingle_and_a_short_one_has_one() -> None:
    shingles = find_shingles(fold_texts(raw_texts(["", "...!", "one two", "日本"])), Shingle.parse("word:5"))
    assert np.diff(shingles.first).tolist() == [0, 0, 1, 1]


def test_scripts_without_spaces_are_compared_by_character() -> None:
    shingles = find_shingles(fold_texts(raw_texts(["日本語の文章です"])), Shingle.parse("word:5"))
    assert len(shingles.hashes) == 4


def test_only_leading_nuls_of_a_text_shorter_than_a_shingle_do_not_tell_it_from_another() -> None:
    shingle = Shingle.parse("char:3")
    assert len({*distinct_shingles(raw_texts(["a", "\0a", "b"]), shingle).hashes.tolist()}) == 2
    longer = distinct_shingles(raw_texts(["\0\0a", "\0a\0", "a\0\0", "\0\0\0"]), shingle)
    assert len({*longer.hashes.tolist()}) == 4


@pytest.mark.parametrize("text", ["word", "word:0", "words:5", "char:-1", "5", "word:100"])
def test_a_shingle_that_is_none_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected word:N or char:N .* got"):
        Shingle.parse(text)


@given(st.lists(st.text() | st.text(alphabet="aé日😀\0"), max_size=4), st.integers(1, 9), st.integers(4, 20))
def test_a_long_text_has_the_same_shingles_and_signature_piece_by_piece(
    texts: list[str], size: int, piece_bytes: int
) -> None:
    raw, shingle, permutations = raw_texts(texts), Shingle("char", size), Permutations.draw(16, 1)
    expected, signatures = distinct_shingles(raw, shingle), sign_texts(raw, shingle, permutations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shingles, "LONG_TEXT_BYTES", piece_bytes)
        found = distinct_shingles(raw, shingle)
        np.testing.assert_array_equal(sign_texts(raw, shingle, permutations), signatures)
    np.testing.assert_array_equal(found.hashes, expected.hashes)
    np.testing.assert_array_equal(found.first, expected.first)


def test_the_characters_of_a_long_text_are_not_hashed_all_at_once() -> None:
    texts = raw_texts([" ".join(map(str, range(1_300_000)))])
    permutations, shingle = Permutations.draw(4, 1), Shingle("char", 5)
    tracemalloc.start()
    try:
        distinct = distinct_shingles(texts, shingle)
        assert sign_texts(texts, shingle, permutations).max() < EMPTY
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(distinct.hashes) > 10**5
    assert 8 * len(texts.data) > 70 << 20
    assert peak < 50 << 20
