"""The matrix of all layouts: its order, that it goes on, and that its page hides nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.parallel import matrix
from tests.trainer.parallel.cases import Case
from tests.trainer.parallel.matrix import Result, Task
from tests.trainer.parallel.parity_page import EARLIER, PRECISIONS, layout, marked, page


def test_each_computation_is_there_once_and_every_layout_comes_first_in_fp32() -> None:
    cases = matrix.feasible()
    assert len({str(case) for case in cases}) == len(cases)
    layouts = {layout(case) for case in cases}
    first = cases[: len(layouts)]
    assert {layout(case) for case in first} == layouts
    assert {case.precision for case in first} == {"fp32"}
    pairs = {pair for case in cases for pair in case.pairs()}
    assert {pair for case in cases[: 2 * len(layouts)] for pair in case.pairs()} == pairs


def test_the_product_is_what_is_feasible_and_what_is_refused() -> None:
    refused = sum(len(reasons) for reasons in matrix.refused().values())
    assert len(matrix.feasible()) + refused == len(list(matrix.combinations()))


def test_a_failing_case_stops_nothing_and_is_tried_again(workers: Any, tmp_path: Path) -> None:
    workers.run(1, len, [])  # children that are not the matrix' own, for which it must not wait
    results = tmp_path / "results.jsonl"
    tasks = {"wrong": Task(Case(dp_replicate=3)), "right": Task(Case(micro_batch_size=2))}
    results.write_text('{"case": "cut sho')
    matrix.run(tasks, results, "code", jobs=1)
    wrong, right = (json.loads(line) for line in results.read_text().splitlines()[1:])
    assert "does not divide by 3 data-parallel processes" in wrong["error"]
    assert right["error"] == ""
    assert 0 < right["updates"] < 1e-6
    assert not Result(**wrong).counts
    assert Result(**right).counts


def test_results_of_other_code_and_lines_that_were_cut_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    lines = [json.dumps({"case": name, "code": code, "seconds": 1.0}) for name, code in (("a", "old"), ("b", "new"))]
    file.write_text("\n".join([*lines, lines[1][:-9]]))
    assert list(matrix.read_results(file, "new")) == ["b"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_page_names_what_failed_and_says_what_was_not_computed(precision: str) -> None:
    cases = [Case(precision=precision, micro_batch_size=size) for size in (0, 1, 2)]
    fine = Result(case=str(cases[0]), code="c", seconds=1.0, losses=1e-9, norms=0.0, weights=0.0, updates=0.0)
    broken = Result(case=str(cases[1]), code="c", seconds=1.0, error="ZeroDivisionError: of all things")
    text = page(cases, {layout(Case(zero=2)): ["parallel.zero 2: not today"]}, {r.case: r for r in (fine, broken)}, "c")
    assert "2 of 3 feasible cases were computed; 1 keep all bars" in text
    assert f"- `{cases[1]}`: ZeroDivisionError: of all things" in text
    assert "| 0 | 1 | 1  | 2 of 3 |" in text
    assert "| 2 | 1 | 1  | none |" in text
    assert "- **a**: parallel.zero: not today" in text


ROOT = Path(__file__).parents[3]


def test_all_code_that_decides_on_the_figures_is_there() -> None:
    assert [name for name in matrix.CODE if not (ROOT / name).exists()] == []


def test_the_page_says_where_its_figures_are_of_an_earlier_state_of_the_code() -> None:
    """`python -m tests.trainer.parallel.matrix --mark` brings it up to date; `make matrix` computes them anew."""
    text = (ROOT / "docs/parity.md").read_text()
    assert text == marked(text, matrix.code_digest(ROOT))


def test_the_mark_comes_with_other_code_and_goes_with_figures_of_todays(tmp_path: Path) -> None:
    today = matrix.code_digest(ROOT)
    text = page([Case()], {}, {}, today)
    assert marked(text, today) == text
    of_earlier = text.replace(today, "0123456789ab")
    once = marked(of_earlier, today)
    assert EARLIER in once[:600]
    assert marked(once, today) == once
    assert marked(once, "0123456789ab") == of_earlier
    assert EARLIER in marked("# Without a digest\n\nSome text\n", today)
    (tmp_path / "page.md").write_text(of_earlier)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert matrix.main(["--mark", "--output", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == once
