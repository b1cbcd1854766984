"""Looking for items in documents: the index against a plain search of word lists."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.decontaminate.keys import KeyTable, Windows
from dataprep.decontaminate.ngrams import (
    STOPS,
    WIDE_STOPS,
    Index,
    first_of_each,
    sentence_edges,
    sentence_ends,
)
from dataprep.dedup.shingles import find_words
from dataprep.text.folding import fold_case, raw_texts

WINDOWS = Windows(ngram=4, min_words=3)
SENTENCES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=7).map(" ".join)
TEXTS = st.lists(st.lists(SENTENCES, max_size=3).map(". ".join), max_size=4)


def build(items: list[str], folder: Path) -> Index:
    words = find_words(fold_case(raw_texts(items)))
    for length, entries in WINDOWS.item_keys(words, first_item=0).items():
        KeyTable.build(entries).save(folder, length)
    return Index(folder, WINDOWS)


def plain_search(items: list[str], texts: list[str]) -> set[tuple[int, str, int]]:
    """(text, run of words, place) for every item run in every text, by comparing lists."""
    found: set[tuple[int, str, int]] = set()
    for item in items:
        words = item.split()
        length = min(len(words), WINDOWS.ngram)
        runs = [words[at : at + length] for at in range(len(words) - length + 1)]
        for number, text in enumerate(texts):
            if length < WINDOWS.min_words:
                places = sentence_places(text, words)
            else:
                held = text.replace(".", "").split()
                places = [(run, at) for run in runs for at in range(len(held)) if held[at : at + length] == run]
            found |= {(number, " ".join(run), at) for run, at in places}
    return found


def sentence_places(text: str, words: list[str]) -> list[tuple[list[str], int]]:
    """Where `words` are one sentence, or several whole ones in a row."""
    sentences = [sentence.split() for sentence in text.split(".")]
    starts = np.cumsum([0, *(len(sentence) for sentence in sentences)])
    return [
        (words, int(starts[first]))
        for first in range(len(sentences))
        for last in range(first, len(sentences))
        if sentences[first] and sum(sentences[first : last + 1], []) == words  # noqa: RUF017
    ]


@given(items=st.lists(SENTENCES, min_size=1, max_size=6), texts=TEXTS)
def test_the_index_finds_what_a_plain_search_finds(
    items: list[str], texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    index = build(items, tmp_path_factory.mktemp("index"))
    hits = index.search(raw_texts(texts), first_row=0)
    found: set[tuple[int, str, int]] = set()
    for hit in hits:
        entry = index.tables[int(hit["length"])].items(int(hit["key"]))[0]
        run = items[entry["item"]].split()[entry["start"] :][: hit["length"]]
        found.add((int(hit["row"]), " ".join(run), int(hit["word"])))
        assert texts[hit["row"]][hit["start"] : hit["end"]].replace(".", "").split() == run
    assert found == plain_search(items, texts)
    assert len(hits) == len(found)
    firsts = {(int(hit["row"]), int(hit["length"]), int(hit["key"])): int(hit["word"]) for hit in hits[::-1]}
    kept = first_of_each(hits)[["row", "length", "key", "word"]].tolist()
    assert [(*key, word) for key, word in firsts.items()][::-1] == kept


def test_all_items_behind_a_run_are_known(tmp_path: Path) -> None:
    index = build(["x a b c d", "a b c d", "a b c d y"], tmp_path)
    (hit,) = index.search(raw_texts(["a b c d"]), first_row=5)
    assert hit["row"] == 5
    entries = index.tables[4].items(int(hit["key"]))
    assert [(int(entry["item"]), int(entry["start"])) for entry in entries] == [(0, 1), (1, 0), (2, 0)]


@pytest.mark.parametrize("stop", WIDE_STOPS)
def test_a_short_item_after_a_stop_of_another_script_is_found(tmp_path: Path, stop: str) -> None:
    index = build(["水車", "a b"], tmp_path)
    text = f"山{stop}水車{stop}A b{stop}川"
    hits = index.search(raw_texts([text, "山、水車、a b、川"]), first_row=0)
    assert [(int(hit["row"]), text[hit["start"] : hit["end"]]) for hit in hits] == [(0, "水車"), (0, "A b")]


def test_runs_over_the_end_of_a_field_are_the_only_keys_of_joined_texts() -> None:
    pairs = [("a b c d e", "f g h"), ("a", "b c"), ("", "a b c d"), ("a b", "c")]
    words = find_words(raw_texts(["\n".join(pair) for pair in pairs]))
    counts = [np.array([len(pair[field].split()) for pair in pairs]) for field in (0, 1)]
    keys = WINDOWS.joined_keys(words, 10, counts)
    found = {(int(key["item"]), int(key["start"]), length) for length, each in keys.items() for key in each}
    assert found == {(10, 2, 4), (10, 3, 4), (10, 4, 4), (11, 0, 3), (13, 0, 3)}


def test_offsets_hold_in_a_text_that_folding_lengthens(tmp_path: Path) -> None:
    index = build(["die straße führt weit"], tmp_path)
    text = "İ́ 😀 ﬁn: DIE STRASSE FÜHRT WEIT, und die Straße fu\u0308hrt weit."
    hits = index.search(raw_texts(["x", text, "y"]), first_row=0)
    assert [text[hit["start"] : hit["end"]] for hit in hits] == [
        "DIE STRASSE FÜHRT WEIT",
        "die Straße fu\u0308hrt weit",
    ]


def test_sentences_end_at_stops_before_a_gap_and_at_line_breaks() -> None:
    words = find_words(raw_texts(['One. Two v1.5 ex.com? "Three!" four\nfive', "six"]))
    begins, ends = sentence_edges(words)
    named = [words.text(number, number + 1) for number in range(len(words.starts))]
    assert [word for word, begin in zip(named, begins, strict=True) if begin] == [
        "One",
        "Two",
        "Three",
        "four",
        "five",
        "six",
    ]
    assert [word for word, end in zip(named, ends, strict=True) if end] == [
        "One",
        "com",
        "Three",
        "four",
        "five",
        "six",
    ]


@pytest.mark.parametrize("stop", STOPS + WIDE_STOPS)
def test_each_stop_ends_a_sentence_of_words_and_of_characters_also_when_folded(stop: str) -> None:
    text = f"一{stop}{stop} 二{stop}"
    assert list(sentence_ends(text)) == [3, 6]
    begins, ends = sentence_edges(find_words(fold_case(raw_texts([text]))))
    assert begins.tolist() == ends.tolist() == [True, True]


@pytest.mark.parametrize("stop", WIDE_STOPS)
def test_stops_of_other_scripts_need_no_gap(stop: str) -> None:
    text = f"ab{stop}cd ef"
    assert list(sentence_ends(text)) == [3]
    begins, ends = sentence_edges(find_words(raw_texts([text])))
    assert begins.tolist() == [True, True, False]
    assert ends.tolist() == [True, False, True]


def test_stops_inside_numbers_and_addresses_end_nothing() -> None:
    text = "3.14 ex.com?x a!b."
    assert list(sentence_ends(text)) == [18]
    begins, _ = sentence_edges(find_words(raw_texts([text])))
    assert begins.tolist() == [True, *[False] * 6]
