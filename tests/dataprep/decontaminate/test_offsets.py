"""Spans in the text as it is, of words found in the folded text: against folding piece by piece."""

import unicodedata

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dataprep.decontaminate.offsets import OffsetMap, compared_words, word_spans
from dataprep.text.folding import raw_texts
from dataprep.text.spelling import READING

CHANGING = (
    "İßŉǰΐᾳῼﬀﬃẞÅé가각\u1100\u1161\u11a8\u0344\u0345\u0f73\u0f71\u0301\u0323\u0327q\u0307\u0323か\u3099😀 aB.\u200d"
)
TEXTS = st.text(st.one_of(st.sampled_from(CHANGING), st.characters(codec="utf-8")), max_size=12)


READ = (
    "&amp;",
    "&eacute;",
    "&auml",
    ";",
    "ca n't",
    "a-\nb",
    "x\u00ad",
    "-",
    "\n",
    "\r\n ",
    "'t",
    "ca ",
    "n&#39;t",
    "&shy;",
    "Ｆ",
    "ｶﾞ",
    "can not",
    "-LRB-",
    "-LRB-\n",
    "é",
    "ß ",
    "😀",
    "q",
)


def fold(text: str) -> str:
    return unicodedata.normalize("NFC", READING.spell(text)).casefold()


@given(text=TEXTS)
def test_each_place_of_the_folded_text_is_that_of_the_characters_it_came_from(text: str) -> None:
    assume(not READING.edits(text))  # what these drop came from no place
    folded = fold(text)
    places = np.cumsum([0, *(len(character.encode()) for character in folded)])
    offsets = OffsetMap.of(text.encode())
    firsts, lasts = offsets.first_characters(places[:-1]), offsets.last_characters(places[1:])
    assert (firsts < lasts).all()
    assert (np.diff(firsts) >= 0).all()
    assert (np.diff(lasts) >= 0).all()
    assert set(firsts.tolist()) | set(range(len(text))) == set(range(len(text)))
    assert [firsts[0], lasts[-1]] == [0, len(text)] if text else not len(firsts)
    for character, first, last in zip(folded, firsts.tolist(), lasts.tolist(), strict=True):
        assert character in fold(text[first:last])
    if unicodedata.is_normalized("NFC", text):
        origins = [at for at, character in enumerate(text) for _ in character.casefold()]
        assert firsts.tolist() == origins
        assert lasts.tolist() == [at + 1 for at in origins]


@given(text=TEXTS | st.lists(st.sampled_from(READ), max_size=8).map("".join))
def test_each_span_folds_to_its_word_and_the_spans_are_in_order(text: str) -> None:
    words = compared_words(raw_texts([text]))
    starts, ends = word_spans(text)
    assert len(starts) == len(words.starts)
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        assert 0 <= start < end <= len(text)
        assert words.text(number, number + 1) in "".join(fold(text[start:end]).split())  # "ca n't" without its end
    assert (np.diff(starts) >= 0).all()
    assert (np.diff(ends) >= 0).all()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("İstanbul ISTANBUL", ["İstanbul", "ISTANBUL"]),  # İ folds to two characters
        ("die Straße ﬃ x", ["die", "Straße", "ﬃ", "x"]),
        ("caf\u0065\u0301 noir", ["caf\u0065\u0301", "noir"]),  # NFC makes one character of two
        ("😀 a😀b", ["a", "b"]),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af x", ["\u1112\u1161\u11ab\u1100\u1173\u11af", "x"]),
        ("日本か\u3099 x", ["日", "本", "か\u3099", "x"]),
        ("q\u0307\u0323. Ünï", ["q\u0307\u0323", "Ünï"]),  # NFC swaps the marks
        ("a Q&amp;A I ca n't caf&eacute; x", ["a", "Q", "A", "I", "ca n", "t", "caf&eacute;", "x"]),
        (
            "an exam-\n  ple of ｶﾞ mil\u00adlers -LRB- you can\nnot",
            ["an", "exam-\n  ple", "of", "ｶﾞ", "mil\u00adlers", "you", "can\nnot"],
        ),
        # A bracket's last hyphen stands at the end of a line.
        ("so -LRB-\nquietly -rrb- \r\n\tnow x", ["so", "quietly", "now", "x"]),
        ("the x-&amp;\ny-LRB-\nz -RRB-\nca\u00ad\n n't", ["the", "x", "y", "z", "ca\u00ad\n n", "t"]),
        ("", []),
        ("plain ASCII, twice", ["plain", "ASCII", "twice"]),
    ],
)
def test_words_are_found_where_they_stand(text: str, words: list[str]) -> None:
    starts, ends = word_spans(text)
    assert [text[start:end] for start, end in zip(starts, ends, strict=True)] == words
