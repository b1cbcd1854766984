"""Normalised texts: the array path gives what Python's own functions give."""

import unicodedata

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from dataprep.text.characters import ALONE, MARK, SPACE, UNSTABLE, WORD, character_flags
from dataprep.text.folding import fold_text, fold_texts, raw_texts, text_hashes, text_pieces

pytestmark = pytest.mark.usefixtures("each_kernel")

SPACES = " \t\n\r\x0b\x1c\x1f\x85\u00a0\u2003\u2028\u3000"
TRICKY = f"{SPACES}AZaz09_.é\u0301e\u00df\u0130\u1e9e\u01c5“—日本ไทย\u1100\u1161\uac00😀"
TEXTS = st.lists(st.text() | st.text(alphabet=TRICKY), max_size=8)


@given(TEXTS)
def test_folding_many_texts_equals_folding_each_with_unicodedata(texts: list[str]) -> None:
    folded = fold_texts(raw_texts(texts))
    assert [folded.encoded(number).decode() for number in range(len(texts))] == [fold_text(text) for text in texts]


@given(TEXTS)
def test_equal_texts_up_to_case_form_and_white_space_have_equal_hashes(texts: list[str]) -> None:
    twins = [" " + unicodedata.normalize("NFD", text).replace(" ", "\n\t") + "\u00a0" for text in texts]
    hashes, others = ([row.tobytes() for row in text_hashes(fold_texts(raw_texts(each)))] for each in (texts, twins))
    assert others == hashes
    assert hashes == [xxhash.xxh3_128_digest(fold_text(text).encode()) for text in texts]


def test_texts_of_a_sliced_arrow_array_are_its_own() -> None:
    sliced = pa.array(["no", "Yes", "", "ÄH", "no"]).slice(1, 3)
    folded = fold_texts(raw_texts(sliced))
    assert [folded.encoded(number).decode() for number in range(3)] == ["yes", "", "äh"]


def test_pieces_cover_every_text_once_even_one_larger_than_a_piece() -> None:
    texts = pa.array(["a", "b" * 3_000_000, "", "c"] + ["d" * 400_000] * 4)
    pieces = list(text_pieces(texts))
    assert [text for _, piece in pieces for text in piece.to_pylist()] == texts.to_pylist()
    assert [start for start, _ in pieces] == [0, 1, 2, 5, 6, 7]


def test_characters_above_ascii_are_classed_as_unicode_says() -> None:
    flags = character_flags()
    for character in map(chr, [*range(0x3400), *range(0xA000, 0xAC10), *range(0xF900, 0x11000), 0x1F600, 0x2F800]):
        if "\ud800" <= character <= "\udfff" or unicodedata.category(character) in ("Cn", "Co"):
            continue
        flag = int(flags[ord(character)])
        assert bool(flag & SPACE) == character.isspace()
        if character.isalnum():
            assert flag & ~UNSTABLE in (WORD, ALONE), hex(ord(character))
        if unicodedata.category(character)[0] == "M":
            assert flag & ~UNSTABLE == MARK
        if character.casefold() != character or unicodedata.normalize("NFC", character) != character:
            assert flag & UNSTABLE
