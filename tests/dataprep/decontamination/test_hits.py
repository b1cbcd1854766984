"""What hits mean: common keys, the first item of a row, each item once per row."""

from pathlib import Path

import numpy as np

from dataprep.decontamination.hits import Findings, count_hits
from dataprep.decontamination.items import ItemSource, build_index
from dataprep.decontamination.ngrams import Windows
from dataprep.text.folding import raw_texts
from pipelines.command import Part

WINDOWS = Windows(ngram=3, min_words=2)
TEXTS = ["x d e, a b c d e. a b c", "nothing", "A b c! one.", "d e"]


def findings(folder: Path, threshold: int) -> tuple[Findings, "np.ndarray[tuple[int], np.dtype[np.void]]"]:
    (folder / "mine.txt").write_text("a b c d e\nd e\none\na b c\n")
    build_index(Part("index", (folder / "mine.txt",)), folder, [ItemSource.of_target("mine", "0")], WINDOWS)
    for length in (1, 2, 3):
        np.save(folder / f"counts-{length:02d}.npy", np.zeros(len(np.load(folder / f"keys-{length:02d}.npy"))))
    found = Findings(folder, folder, WINDOWS, threshold)
    hits = found.index.search(raw_texts(TEXTS), 0)
    for length, counts in count_hits([hits], found.index).items():
        np.save(folder / f"counts-{length:02d}.npy", counts)
    return Findings(folder, folder, WINDOWS, threshold), hits


def test_each_item_stands_once_for_each_row_with_its_first_place(tmp_path: Path) -> None:
    found, hits = findings(tmp_path, 10)
    rows = [(row["row"], row["index"], row["kind"], row["ngram"], row["word"]) for row in found.rows(hits)]
    assert rows == [
        (0, 2, "whole", "d e", 1),
        (0, 1, "ngram", "a b c", 3),
        (0, 4, "ngram", "a b c", 3),
        (2, 1, "ngram", "a b c", 0),
        (2, 4, "ngram", "a b c", 0),
        (2, 3, "sentence", "one", 3),
        (3, 2, "whole", "d e", 0),
    ]
    firsts = found.first_items(found.removing(hits))
    assert {row: item["index"] for row, item in firsts.items()} == {0: 2, 2: 1, 3: 2}
    assert found.spans(hits, 3) == [(0, 3)]


def test_a_key_in_too_many_rows_counts_once_for_each_row_and_is_listed(tmp_path: Path) -> None:
    found, hits = findings(tmp_path, 2)
    assert [(row["ngram"], row["documents"], row["items"]) for row in found.ignored()] == [
        ("d e", 2, 1),
        ("a b c", 2, 2),
    ]
    rows = [(row["row"], row["ngram"]) for row in found.rows(found.counting(hits))]
    assert rows == [(0, "b c d"), (2, "one")]
