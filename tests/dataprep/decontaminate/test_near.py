"""Near matches: against edit distances word by word, and planted items with changed words."""

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.decontaminate import near as near_module
from dataprep.decontaminate.items import ItemSource, build_index
from dataprep.decontaminate.keys import NEAR, KeyTable, Windows
from dataprep.decontaminate.ngrams import Index
from dataprep.decontaminate.offsets import compared_words
from dataprep.dedup.shingles import word_hashes
from dataprep.text.folding import raw_texts
from pipelines.command import Part

LETTERS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=20)


def build(items: list[str], folder: Path, windows: Windows) -> Index:
    (folder / "mine.txt").write_text("\n".join(items) + "\n")
    build_index(Part("index", (folder / "mine.txt",)), folder, [ItemSource.of_target("mine", "0")], windows)
    return Index(folder, windows)


def distance(a: list[str], b: list[str]) -> int:
    """How many words must be changed, left out or added to make b of a."""
    row = list(range(len(b) + 1))
    for number, word in enumerate(a, start=1):
        corner, row[0] = row[0], number
        for at, other in enumerate(b, start=1):
            corner, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, corner + (word != other))
    return row[-1]


def edited(words: list[str], edits: int, rng: random.Random, *, inside: bool) -> list[str]:
    """Change, leave out or add so many words, apart from each other."""
    words = list(words)
    ends = 1 if inside else 0
    for at in sorted(rng.sample(range(ends, len(words) - ends), edits), reverse=True):
        kind = rng.choice(("change", "leave out", "add"))
        words[at : at + (kind != "add")] = [] if kind == "leave out" else [f"new{rng.randrange(10**9)}"]
    return words


@given(item=LETTERS, text=LETTERS, edits=st.integers(1, 3))
def test_each_match_is_as_near_as_allowed_and_each_near_whole_item_is_found(
    item: list[str], text: list[str], edits: int
) -> None:
    windows = Windows(ngram=12, min_words=8, edits=edits)
    allowed = int(windows.allowed_edits(np.array([len(item)]))[0])
    with TemporaryDirectory() as folder:
        words = compared_words(raw_texts([" ".join(text)]))
        index = build([" ".join(item)], Path(folder), windows)
        matches = near_module.NearItems(Path(folder), windows).search(words, word_hashes(words))
        hits = index.search(raw_texts([" ".join(text)]), 0)
    needed = min(len(item), windows.ngram)
    for match in matches:
        span = text[int(match["word"]) : int(match["word"] + match["length"])]
        runs = [item[at:stop] for at in range(len(item)) for stop in range(at + needed, len(item) + 1)]
        assert min(distance(run, span) for run in runs) <= allowed
    if allowed and len(item) <= windows.ngram and distance(item, text) <= allowed:
        assert len(matches)
    assert len({length == NEAR for length in hits["length"].tolist()}) < 2  # near only without an exact hit


@pytest.mark.parametrize(("size", "edits"), [(8, 1), (11, 1), (12, 2), (13, 2), (16, 3), (30, 1), (30, 2), (30, 3)])
def test_every_item_with_so_many_changed_words_is_found_where_it_is(tmp_path: Path, size: int, edits: int) -> None:
    rng = random.Random(size + edits)
    windows = Windows(ngram=16, min_words=8, edits=edits)
    items = [[f"w{rng.randrange(500)}" for _ in range(size)] for _ in range(50)]
    index = build([" ".join(item) for item in items], tmp_path, windows)
    around = "something else before and after it"
    for number, item in enumerate(items):
        changed = edited(item, edits, rng, inside=size > windows.ngram)
        text = f"{around}. {' '.join(changed)}. {around}"
        hits = index.search(raw_texts(["", text]), 7)
        assert set(hits["row"].tolist()) == {8}
        if near := [hit for hit in hits if hit["length"] == NEAR]:
            assert {int(hit["key"]) for hit in near} == {number}
            spans = [text[int(hit["start"]) : int(hit["end"])] for hit in near]
            assert all(span in " ".join(changed) for span in spans) or size <= windows.ngram
    assert not len(index.search(raw_texts([" ".join(items[0][: size // 2]), around]), 0))


@pytest.mark.parametrize("ngram", range(1, 30))
def test_so_many_words_may_differ_as_the_longest_run_allows_and_no_more(ngram: int) -> None:
    windows = Windows(ngram=ngram, min_words=1, edits=100)
    assert windows.allowed_edits(np.arange(60)).max() == windows.most_edits


def test_an_edit_at_the_end_counts_only_for_a_whole_item(tmp_path: Path) -> None:
    windows = Windows(ngram=10, min_words=8, edits=1)
    long, short = "a b c d e f g h i j k l", "m n o p q r s t u"
    index = build([long, short], tmp_path, windows)
    texts = ["x a b c d e f g h i x", "x a b c d x f g h i j x", "m n o p q r s t x", "m n o p q r s x x"]
    hits = index.search(raw_texts(texts), 0)
    assert [(hit["row"], hit["key"], texts[hit["row"]][hit["start"] : hit["end"]]) for hit in hits] == [
        (1, 0, "a b c d x f g h i j"),
        (2, 1, "m n o p q r s t x"),
    ]


@pytest.mark.parametrize("backwards", [False, True])
def test_a_phrase_that_too_many_items_have_is_no_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, backwards: bool
) -> None:
    """Else the time a document takes grows with its places of the phrase times the items that have it."""
    monkeypatch.setattr(near_module, "MOST_PLACES", 20)
    windows = Windows(ngram=13, min_words=8, edits=1)
    common, rare = "at the end of the day", "in the middle of a night"
    items = [f"{common} a{n} b{n} c{n} d{n} e{n} f{n}" for n in range(21)]
    items += [f"{rare} h{n} i{n} j{n} k{n} l{n} m{n}" for n in range(20)]
    items = items[::-1] if backwards else items
    (tmp_path / "mine.txt").write_text("\n".join(items) + "\n")
    source = ItemSource.of_target("mine", "0")
    counts = build_index(Part("index", (tmp_path / "mine.txt",)), tmp_path, [source], windows)
    assert counts.totals["common_seeds"] == 1
    seeds = KeyTable.load(tmp_path / "seeds", 6)
    assert np.bincount(seeds.num_entries(np.arange(len(seeds.keys)))).tolist() == [0, 6 * 41, *[0] * 18, 1]
    index = Index(tmp_path, windows)
    for number, item in enumerate(items):
        words = item.split()
        changed = [" ".join([*words[:at], "x", *words[at + 1 :]]) for at in (2, 6, 8)]
        rows = {int(hit["row"]) for hit in index.search(raw_texts(changed), 0) if hit["key"] == number}
        # All six words before the seventh are common; of those before the ninth, the last six are not.
        assert rows == ({0, 2} if item.startswith(common) else {0, 1, 2})


def test_items_of_nothing_but_common_seeds_have_no_near_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near_module, "MOST_PLACES", 2)
    item = "a b c d e f g h i"
    index = build([item] * 3, tmp_path, Windows(ngram=13, min_words=8, edits=1))
    hits = index.search(raw_texts([item, item.replace("i", "x")]), 0)
    assert [(hit["row"], hit["length"]) for hit in hits] == [(0, 9)]


def test_few_pairs_at_a_time_give_the_same_matches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = Windows(ngram=10, min_words=8, edits=2)
    rng = random.Random(1)
    items = [" ".join(rng.choices("abc", k=rng.randrange(8, 20))) for _ in range(30)]
    index = build(items, tmp_path, windows)
    texts = raw_texts([" ".join(rng.choices("abc", k=60)) for _ in range(10)])
    expected = index.search(texts, 0)
    monkeypatch.setattr(near_module, "_BATCH", 5)
    assert (expected["length"] == NEAR).any()
    np.testing.assert_array_equal(index.search(texts, 0), expected)
