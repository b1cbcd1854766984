"""Hard corpora through the three commands: nothing is lost without a reason, and nothing takes for ever."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dataprep.dedup.chain import deduplicate, families, read_lines, read_rows, urls, write_texts
from tests.work import at_most


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_texts_of_no_words_and_of_one_word_are_duplicates_only_when_equal(tmp_path: Path) -> None:
    texts = ["", "", "...", "!!!", " ...", "word", "Word", "word!", "words", "字", "字", "a b", "a b c"]
    kept = deduplicate(write_texts(tmp_path / "d.jsonl", texts), tmp_path / "run", group=["--survivor", "first"])
    assert [row["text"] for row in kept] == ["", "...", "!!!", "word", "words", "字", "a b", "a b c"]
    rules = {row["url"][-2:]: row["rule"] for row in read_lines(tmp_path / "run" / "kept.rejected.jsonl")}
    exact = {"01", "04", "06", "10"}
    assert rules == dict.fromkeys(exact, "exact_duplicate") | {"07": "near_duplicate"}


def test_documents_with_identical_ids_are_told_apart_by_their_place(tmp_path: Path) -> None:
    one, other = families(1, originals=2, copies=0)
    rows = [{"url": "http://same.test/", "text": text} for text in (one, one, other, one)]
    kept = deduplicate(write_rows(tmp_path / "d.jsonl", rows), tmp_path / "run")
    assert [row["text"] for row in kept] == [one, other]
    removed = [row["row"] for row in read_rows(tmp_path / "run" / "groups") if not row["is_survivor"]]
    assert removed == [1, 3]


def test_lines_without_the_keys_are_counted_and_every_other_line_is_accounted_for(tmp_path: Path) -> None:
    text = families(2, originals=1, copies=0)[0]
    lines = [{"text": text}, {"url": "no text"}, {"text": 7}, {"text": f"{text} more"}, {}, {"text": "short"}]
    documents = write_rows(tmp_path / "d.jsonl", lines)
    kept = deduplicate(documents, tmp_path / "run", group=["--survivor", "first"])
    assert [row["text"] for row in kept] == [text, "short"]
    rejected = [row["rule"] for row in read_lines(tmp_path / "run" / "kept.rejected.jsonl")]
    assert sorted(rejected) == ["near_duplicate", "no_text", "no_text", "text_not_text"]
    assert json.loads((tmp_path / "run" / "find.json").read_text())["in"] == len(lines)


def test_a_document_of_5_mb_is_compared_like_any_other(tmp_path: Path) -> None:
    long = " ".join(map(str, range(750_000)))
    assert len(long) > 5_000_000
    texts = [long, "a short text", f"{long} and an end"]
    with at_most(100):
        kept = deduplicate(write_texts(tmp_path / "d.jsonl", texts), tmp_path / "run")
        assert urls(kept) == ["http://mill.test/000001", "http://mill.test/000002"]


def test_ten_thousand_copies_of_one_document_are_one_group_without_a_comparison(tmp_path: Path) -> None:
    text = " ".join(families(3, originals=1, copies=0)[0].split()[:20])
    documents = write_texts(tmp_path / "d.jsonl", (text.upper() if n % 2 else text for n in range(10_000)))
    with at_most(100):
        kept = deduplicate(documents, tmp_path / "run", group=["--survivor", "first"])
    assert urls(kept) == ["http://mill.test/000000"]
    stats = json.loads((tmp_path / "run" / "group.json").read_text())
    assert stats["group_sizes"]["8193-16384"] == 1
    assert stats["alarms"][0]["share"] == 1.0
    assert json.loads((tmp_path / "run" / "find.json").read_text())["candidate_pairs"] == 0


def test_thousands_of_near_copies_of_one_document_are_a_large_bucket_that_is_counted(tmp_path: Path) -> None:
    words = families(4, originals=1, copies=0)[0].split()
    texts = [" ".join([*words[: n % 120], f"new{n}", *words[n % 120 + 1 :]]) for n in range(3000)]
    with at_most(300):
        assert len(deduplicate(write_texts(tmp_path / "d.jsonl", texts), tmp_path / "run")) == 1
    stats = json.loads((tmp_path / "run" / "find.json").read_text())
    assert stats["large_buckets"] >= 20
    assert 1000 < stats["largest_bucket"] <= 3000
    assert stats["in_large_buckets"] > 20 * 1000


@pytest.mark.parametrize("rule", ["longest", "best_source"])
def test_a_star_of_chains_removes_nothing_that_is_unlike_its_survivor(tmp_path: Path, rule: str) -> None:
    # Every chain starts at the same text and drifts off another way: one cluster, with few true duplicates.
    words = [f"word{number}" for number in range(100)]
    texts = [
        " ".join([*words[: 100 - 7 * step], *(f"arm{arm}x{number}" for number in range(7 * step))])
        for arm in range(12)
        for step in range(12)
    ]
    rows = [{"text": text, "url": f"http://mill.test/{n}", "source": "ab"[n % 2]} for n, text in enumerate(texts)]
    documents = write_rows(tmp_path / "d.jsonl", rows)
    group = ["--survivor", rule, *(["--sources", "b", "a"] if rule == "best_source" else [])]
    deduplicate(documents, tmp_path / "run", find=["--sources", "b", "a"], group=group)
    groups = [row for row in read_rows(tmp_path / "run" / "groups") if not row["is_survivor"]]
    assert len(groups) > 50
    sets = [{tuple(text.split()[at : at + 5]) for at in range(96)} for text in texts]
    for row in groups:
        if row["kind"] == "near":
            one, other = sets[row["row"]], sets[row["survivor_row"]]
            assert len(one & other) / len(one | other) >= 0.7
    kept = {int(url.rpartition("/")[2]) for url in urls(read_lines(tmp_path / "run" / "kept.jsonl"))}
    alike = [(a, b) for a in kept for b in kept if a < b and len(sets[a] & sets[b]) / len(sets[a] | sets[b]) >= 0.7]
    assert alike == []
