"""Plans for documents that hold items, and what `explain` then says of the pieces."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.decontamination.cutting import CutRules
from dataprep.decontamination.ngrams import HIT
from dataprep.decontamination.plans import PLAN_SCHEMA, cut_plan, keep_part, kept_hits
from pipelines.command import Part
from pipelines.documents import DOCUMENT_FIELDS
from pipelines.explain import explain
from pipelines.graph import GraphStage

RULES = CutRules(margin=0, min_chars=3, max_pieces=1)


def test_a_plan_is_pieces_or_a_rule_with_what_was_seen() -> None:
    text = "First. A HIT. Last."
    plan = cut_plan(text, [(7, 12)], "rte/test/3", CutRules(0, 3, 9))
    assert plan == {"rule": "", "value": "2 pieces without rte/test/3", "starts": (0, 14), "ends": (6, 19)}
    plan = cut_plan(text, [(7, 12)], "rte/test/3", RULES)
    assert plan == {"rule": "too_many_pieces", "value": "2 pieces without rte/test/3", "starts": (), "ends": ()}
    plan = cut_plan("A HIT.", [(0, 5)], "rte/test/3", RULES)
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
    counts = keep_part(Part("part-00000", files), out, cut=True)
    assert (counts.rows_in, counts.rows_out, counts.totals["pieces"]) == (1, 2, 2)
    stage = GraphStage("decontaminate", ("python -m dataprep.decontaminate",), (), (), (out,), ())
    assert [verdict for _, verdict in explain("http://mill.test/a", [stage])] == [
        "kept in decontaminate/part-00000.parquet: piece_start=0, piece_end=6",
        "kept in decontaminate/part-00000.parquet: piece_start=14, piece_end=19",
    ]
