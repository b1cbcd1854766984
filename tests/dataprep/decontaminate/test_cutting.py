"""Cutting hits out of texts: which characters go, which pieces stay, and that no character is lost."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.decontaminate import cutting
from dataprep.decontaminate.cutting import (
    NOTHING_LEFT,
    PLAN_SCHEMA,
    TOO_MANY_PIECES,
    CutRules,
    Span,
    cut_plan,
    keep_part,
    kept_hits,
)
from dataprep.decontaminate.hits import spans_by_row
from dataprep.decontaminate.ngrams import HIT, sentence_ends
from dataprep.decontaminate.offsets import word_spans
from pipelines.command import Part
from pipelines.documents import DOCUMENT_FIELDS
from pipelines.project.explain import explain
from pipelines.project.graph import GraphStage

RULES = CutRules(margin=20, min_chars=10, max_pieces=3)
SENTENCE = "The wheel turns in the cold water. "


def kept(text: str, *needles: str, rules: CutRules = RULES) -> list[str]:
    hits = [(text.index(needle), text.index(needle) + len(needle)) for needle in needles]
    return [text[start:end] for start, end in rules.pieces(text, hits)]


def test_a_cut_goes_on_to_the_ends_of_the_sentences_on_both_sides() -> None:
    # "Just before." and "Right after." end within the margin, so the cut goes on.
    text = f"{SENTENCE * 2}The last word. Just before. A HIT STANDS HERE. Right after. It ends here. {SENTENCE * 2}"
    assert kept(text, "A HIT STANDS HERE") == [(SENTENCE * 2).rstrip(), SENTENCE * 2]


def test_the_margin_counts_from_the_hit_as_it_stands_not_as_its_words_joined() -> None:
    """Defect 24: the length of the words with single spaces is not that of the text."""
    hit = "A  -  HIT,  (that)\n\n\n  is --- stretched"
    text = f"{SENTENCE}{'x' * 19}. {hit}. {'y' * 17}. {SENTENCE}"
    assert kept(text, hit) == [SENTENCE[:-1], SENTENCE]


def test_offsets_are_those_of_the_text_not_of_its_lower_case() -> None:
    """Defect 24: each of these letters is longer in lower case, so all that follows it would shift."""
    text = f"{'İ' * 60}. {SENTENCE}{SENTENCE}A HIT. {SENTENCE * 2}{'İ' * 60}."
    first, second = kept(text, "A HIT")
    assert first == f"{'İ' * 60}. {SENTENCE.strip()}"
    assert second == f"{SENTENCE}{'İ' * 60}."


def test_text_without_the_end_of_a_sentence_is_kept_up_to_the_margin() -> None:
    """Defect 24: it was dropped from the start of the document on, or to its end."""
    text = f"{'before ' * 20}A HIT {'behind ' * 20}"
    first, second = kept(text, "A HIT")
    assert text.startswith(first)
    assert text.endswith(second)
    assert first == "before " * 17  # the margin falls into the 18th word, which goes
    assert second == "behind " * 17


def test_numbers_and_addresses_do_not_end_a_sentence() -> None:
    text = f"{SENTENCE}The value is 3.14 at example.com and A HIT follows it after version 2.0. {SENTENCE}"
    assert kept(text, "A HIT") == [SENTENCE[:-1], SENTENCE]


def test_scripts_with_other_full_stops_are_cut_at_them() -> None:
    text = f"{'水' * 30}。{'車' * 30}。打{'田' * 30}。{'山' * 30}。"
    assert kept(text, "打") == [f"{'水' * 30}。", f"{'山' * 30}。"]


def test_short_pieces_go_and_too_many_or_none_are_a_reason() -> None:
    assert kept(f"Short one. A HIT. {'z' * 21}. {SENTENCE}", "A HIT") == [SENTENCE]
    assert RULES.problem(RULES.pieces("A HIT alone.", [(0, 5)])) == NOTHING_LEFT
    text = "".join(f"{SENTENCE * 2}HIT {number} is here. {SENTENCE * 2}" for number in range(3))
    pieces = RULES.pieces(text, [(text.index(f"HIT {n}"), text.index(f"HIT {n}") + 5) for n in range(3)])
    assert len(pieces) == 4
    assert RULES.problem(pieces) == TOO_MANY_PIECES
    assert RULES.problem(pieces[:3]) == ""


TEXTS = st.text(st.sampled_from("ab .!?\nİé3。水\u0301"), max_size=80)


@given(
    text=TEXTS,
    places=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 9)), min_size=1, max_size=4),
    margin=st.integers(0, 12),
    min_chars=st.integers(0, 6),
)
def test_pieces_and_what_lies_between_are_the_text_and_no_piece_is_near_a_hit(
    text: str, places: list[tuple[int, int]], margin: int, min_chars: int
) -> None:
    hits = [(start, min(start + size, len(text))) for start, size in places if start < len(text)]
    pieces = CutRules(margin, min_chars, 10).pieces(text, hits)
    assert rebuilt(text, pieces) == text
    for start, end in pieces:
        assert end - start > min_chars
        for first, last in hits:
            assert end <= max(0, first - margin) or start >= min(len(text), last + margin)


def rebuilt(text: str, pieces: list[Span]) -> str:
    """The kept pieces and the cut spans between them, one after the other."""
    parts: list[str] = []
    at = 0
    for start, end in [*pieces, (len(text), len(text))]:
        assert at <= start
        parts += [text[at:start], text[start:end]]
        at = end
    return "".join(parts)


def test_a_text_without_hits_is_one_piece() -> None:
    assert RULES.pieces(SENTENCE, []) == [(0, len(SENTENCE))]


def plain_pieces(text: str, hits: list[Span], margin: int, min_chars: int) -> list[Span]:
    """Each hit for itself, looking at no more than the text around it; then character by character."""
    kept = [True] * len(text) + [False]
    for start, end in hits:
        left = plain_edge(text, start - margin)[0] if start > margin else 0
        right = plain_edge(text, end + margin)[1] if end + margin < len(text) else len(text)
        blanks = re.compile(r"\s*").match(text, right)
        assert blanks
        kept[left : blanks.end()] = [False] * (blanks.end() - left)
    edges = [at for at in range(len(kept)) if kept[at] != (at > 0 and kept[at - 1])]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a > min_chars]


def plain_edge(text: str, at: int) -> Span:
    """The sentence ends around `at`; for a side without one, the edge of the word there."""
    around = re.compile(r"\S*").match(text, at)
    first = len(re.sub(r"\S*\Z", "", text[:at]))
    assert around
    spans = zip(*(edges.tolist() for edges in word_spans(text[first : around.end()])), strict=True)
    words = ((first + start, first + end) for start, end in spans)
    start, end = next(((start, end) for start, end in words if start < at < end), (at, at))
    ends = sentence_ends(text)
    return max((each for each in ends if each <= at), default=start), min((e for e in ends if e >= at), default=end)


@given(
    text=st.text(st.sampled_from("ab -.!?\nİﬁ3。水か\u3099\u0301\u0323\u3000"), max_size=60),
    words=st.lists(st.tuples(st.integers(0, 59), st.integers(1, 9)), min_size=1, max_size=4),
    margin=st.integers(0, 12),
    min_chars=st.integers(0, 3),
)
def test_pieces_are_those_that_each_hit_by_itself_leaves(
    text: str, words: list[tuple[int, int]], margin: int, min_chars: int
) -> None:
    hits = [(start, min(start + size, len(text))) for start, size in words if start < len(text)]
    expected = plain_pieces(text, hits, margin, min_chars)
    assert CutRules(margin, min_chars, 10).pieces(text, hits) == expected
    merged = np.zeros(len(hits), HIT)
    merged["start"], merged["end"] = np.array(hits, np.uint64).reshape(-1, 2).T
    joined = next(spans_by_row(merged), [])
    assert CutRules(margin, min_chars, 10).pieces(text, joined) == expected


class CountedText(str):
    """A text that counts how many of its characters are looked at one by one."""

    looked_at = 0

    def __getitem__(self, place: "int | slice") -> str:  # type: ignore[override]
        self.looked_at += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("text", ["word-" * 4000, "水車" * 9000, f"{'a-a ' * 99}b.{' ' * 9000}" * 2, "word. " * 4000])
def test_the_work_grows_with_the_text_and_not_with_the_hits_times_the_text(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no sentence ends, nothing is white space, or all is."""
    searched: list[int] = []

    def counted_spans(part: str) -> object:
        searched.append(len(part))
        return word_spans(str(part))

    monkeypatch.setattr(cutting, "word_spans", counted_spans)
    counted = CountedText(text)
    hits = [(at, at + 1) for at in range(0, len(text), 10) if not text[at].isspace()]
    CutRules(3, 0, 10).pieces(counted, hits)
    assert sum(searched) <= len(text)
    assert counted.looked_at <= 2 * len(text)


PLAN_RULES = CutRules(margin=0, min_chars=3, max_pieces=1)


def test_a_plan_is_pieces_or_a_rule_with_what_was_seen() -> None:
    text = "First. A HIT. Last."
    plan = cut_plan(text, [(7, 12)], "rte/test/3", CutRules(0, 3, 9))
    assert plan == {"rule": "", "value": "2 pieces without rte/test/3", "starts": (0, 14), "ends": (6, 19)}
    plan = cut_plan(text, [(7, 12)], "rte/test/3", PLAN_RULES)
    assert plan == {"rule": "too_many_pieces", "value": "2 pieces without rte/test/3", "starts": (), "ends": ()}
    plan = cut_plan("A HIT.", [(0, 5)], "rte/test/3", PLAN_RULES)
    assert plan == {"rule": "nothing_left", "value": "rte/test/3", "starts": (), "ends": ()}


def test_hits_that_are_left_are_those_of_whole_documents_and_within_pieces() -> None:
    places = [(0, 0, 4), (1, 0, 4), (1, 10, 14), (1, 12, 20), (1, 30, 34), (1, 36, 42), (2, 0, 4), (3, 5, 9)]
    hits = np.zeros(len(places), HIT)
    for name, values in zip(("row", "start", "end"), zip(*places, strict=True), strict=True):
        hits[name] = values
    plans = [
        {"row": 1, "rule": "", "value": "", "starts": [10, 30], "ends": [18, 40]},
        {"row": 2, "rule": "glue_overlap", "value": "", "starts": [], "ends": []},
    ]
    kept = kept_hits(hits, plans)
    assert kept[["row", "start", "end"]].tolist() == [(0, 0, 4), (1, 10, 14), (1, 30, 34), (3, 5, 9)]
    assert len(kept_hits(hits[:0], plans)) == 0


def test_all_pieces_are_found_under_the_name_of_their_document(tmp_path: Path) -> None:
    out = tmp_path / "decontaminate"
    out.mkdir()
    row = {"doc_id": bytes(range(16)), "url": "http://mill.test/a", "text": "First. A HIT. Last.", "source": ""}
    pq.write_table(pa.Table.from_pylist([row], pa.schema(DOCUMENT_FIELDS)), tmp_path / "documents.parquet")
    plan = {"row": 0, "rule": "", "value": "", "starts": [0, 14], "ends": [6, 19]}
    pq.write_table(pa.Table.from_pylist([plan], PLAN_SCHEMA), tmp_path / "plan.parquet")
    files = (tmp_path / "documents.parquet", tmp_path / "plan.parquet")
    counts = keep_part(Part("part-00000", files), out, cut=True, extra=[])
    assert (counts.rows_in, counts.rows_out, counts.totals["pieces"]) == (1, 2, 2)
    stage = GraphStage("decontaminate", ("python -m dataprep.decontaminate",), (), (), (out,), ())
    assert [verdict for _, verdict in explain("http://mill.test/a", [stage])] == [
        "kept in decontaminate/part-00000.parquet: piece_start=0, piece_end=6",
        "kept in decontaminate/part-00000.parquet: piece_start=14, piece_end=19",
    ]
