"""Looking for items in documents: the index against a plain search of word lists."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.decontamination.ngrams import Index, KeyTable, Windows, sentence_edges
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
    """(text, run of words, its first place) for every item run in every text, by comparing lists."""
    found: dict[tuple[int, str], int] = {}
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
            for run, at in places:
                key = (number, " ".join(run))
                found[key] = min(at, found.get(key, at))
    return {(number, run, at) for (number, run), at in found.items()}


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


@settings(deadline=None)
@given(items=st.lists(SENTENCES, min_size=1, max_size=6), texts=TEXTS)
def test_the_index_finds_what_a_plain_search_finds(
    items: list[str], texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    index = build(items, tmp_path_factory.mktemp("index"))
    hits = index.search(find_words(fold_case(raw_texts(texts))), first_row=0)
    found: set[tuple[int, str, int]] = set()
    for hit in hits:
        entry = index.tables[int(hit["length"])].items(int(hit["key"]))[0]
        run = items[entry["item"]].split()[entry["start"] :][: hit["length"]]
        found.add((int(hit["row"]), " ".join(run), int(hit["start"])))
    assert found == plain_search(items, texts)
    assert len(hits) == len(found)


def test_all_items_behind_a_run_are_known(tmp_path: Path) -> None:
    index = build(["x a b c d", "a b c d", "a b c d y"], tmp_path)
    (hit,) = index.search(find_words(raw_texts(["a b c d"])), first_row=5)
    assert hit["row"] == 5
    entries = index.tables[4].items(int(hit["key"]))
    assert [(int(entry["item"]), int(entry["start"])) for entry in entries] == [(0, 1), (1, 0), (2, 0)]


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
