"""Corpora made to be deduplicated, and the words that the rivals get."""

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.dedup_corpus import main
from benchmarks.dedup_rivals import WORD, shingles
from benchmarks.dedup_truth import exact_join, shingle_sets


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def make(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Path:
    """300 documents from 40 texts of random words."""
    draw = random.Random(1)
    texts = [" ".join(str(draw.randrange(10**6)) for _ in range(draw.randint(80, 300))) for _ in range(40)]
    source, out = folder / "source.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    monkeypatch.setattr(sys, "argv", ["dedup_corpus", str(source), str(out), "--documents", "300", *arguments])
    main()
    return out


def test_only_the_planted_copies_are_alike_and_as_much_as_the_truth_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = make(tmp_path, monkeypatch, "--near", "0.2", "--exact", "0.05")
    documents, truth = read(out), read(out.with_suffix(".truth.jsonl"))
    number = {row["url"]: place for place, row in enumerate(documents)}
    assert len(number) == 300
    assert [row["kind"] for row in truth].count("exact") == 15
    assert len(truth) == 75
    found = exact_join(shingle_sets([row["text"] for row in documents]), 0.3)
    values = dict(zip(zip(found.a.tolist(), found.b.tolist(), strict=True), found.jaccard.tolist(), strict=True))
    origin = {number[row["copy"]]: number[row["orig"]] for row in truth}
    assert all(origin.get(a, a) == origin.get(b, b) for a, b in values)
    for row in truth:
        a, b = sorted((number[row["copy"]], number[row["orig"]]))
        assert values.get((a, b), 0) == pytest.approx(row["jaccard"] if row["jaccard"] >= 0.3 else 0, abs=1e-4)
    assert len({round(row["jaccard"], 1) for row in truth}) > 4


def test_the_same_arguments_give_the_same_bytes_and_another_seed_gives_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, other = (make(tmp_path, monkeypatch, "--seed", seed).read_bytes() for seed in ("1", "1", "2"))
    assert first == again != other


def test_documents_are_as_long_as_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [row["text"] for row in read(make(tmp_path, monkeypatch, "--characters", "500"))]
    assert 450 < sum(map(len, texts)) / len(texts) < 560


@pytest.mark.parametrize(
    "text",
    ["A b, c_d e-f 1.5 g\nh", "naïve Straße über ÅÄ élan vital x", "", "...", "two words", "a\tb\x0bc\x1cd e f\x7fg"],
)
def test_the_rivals_fast_shingles_are_those_of_the_regular_expression(text: str) -> None:
    words = WORD.findall(text.lower())
    expected = [" ".join(words[i : i + 5]).encode() for i in range(max(1, len(words) - 4))]
    assert shingles(text) == expected
