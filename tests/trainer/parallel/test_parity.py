"""Every layout trains the model that one process trains.

`make test` runs a few cases that have every value of every setting between them, in fp32, where a wrong layout cannot
hide. Those that have every pair of values, and bf16 and fp16, are marked `nightly`, for `.ci/run` and `make matrix`.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.nightly import nightly, nightly_but
from tests.trainer.parallel.cases import SCHEDULES, STEPS, Case, References, covering, distance, feasible, trained
from tests.trainer.parallel.parity_page import BARS, FIGURES, PRECISIONS, keeps

SMALL = list(feasible(processes=4))
LARGE = [
    Case(zero=3, tp=2, pp=2, schedule="interleaved_1f1b", micro_batch_size=2),
    Case(zero=1, pp=4, schedule="zbv", micro_batch_size=1, activation_checkpointing="full", dropout=True),
]
CASES = [*covering(SMALL), *LARGE]


def with_every_value(cases: list[Case]) -> list[Case]:
    """Few of these cases that have between them each value that any of them has, those of few exchanges first."""
    having = {case: {*dataclasses.asdict(case).items()} for case in cases}
    left, chosen = set[Any]().union(*having.values()), list[Case]()
    while left:
        chosen.append(max(cases, key=lambda case: (len(left & having[case]), -case.exchanges)))
        left -= having[chosen[-1]]
    return chosen


BY_DAY = with_every_value([case for case in CASES if case.precision == "fp32" and case not in LARGE])
MARKED = [case if case in BY_DAY else nightly(case) for case in CASES]


@pytest.fixture(scope="module")
def references(workers: Any, tmp_path_factory: pytest.TempPathFactory) -> References:
    return References(workers, tmp_path_factory.mktemp("parity"))


def test_the_cases_have_every_pair_of_values_that_is_possible() -> None:
    assert len(CASES) <= 80
    pairs = {pair for case in CASES for pair in case.pairs()}
    assert not {pair for case in SMALL for pair in case.pairs()} - pairs
    exact = {pair for case in CASES if case.precision == "fp32" for pair in case.pairs()}
    assert not {pair for case in SMALL if case.precision == "fp32" for pair in case.pairs()} - exact
    assert {case.schedule for case in CASES if case.pp > 1} == set(SCHEDULES)
    assert {case.zero for case in CASES if case.pp > 1} == {0, 1, 2, 3}


def test_a_few_cases_have_every_value() -> None:
    assert len(BY_DAY) <= 12
    for name in ("zero", "tp", "pp", "schedule", "offload", "activation_checkpointing", "micro_batch_size", "dropout"):
        assert {getattr(case, name) for case in BY_DAY} == {getattr(case, name) for case in SMALL}, name


@pytest.mark.parametrize("case", MARKED, ids=str)
def test_a_layout_trains_the_model_of_one_process(references: References, case: Case) -> None:
    one, ranks = references.of(case), references.run(case)
    found = distance(one, ranks)
    assert keeps(case.precision, found), f"{found}, but the bars are {BARS[case.precision]}"


def test_the_reference_learns_and_is_clipped(references: References) -> None:
    one = references.of(Case())
    assert len(one["losses"]) == STEPS
    assert one["losses"][0] == pytest.approx(np.log(61), abs=0.1)
    assert one["losses"][-1] < one["losses"][0] - 0.02
    assert min(one["norms"]) > 0.5, "clipping must act, or these tests do not test it"
    moved = max(np.abs(one["weights"][name] - weight).max() for name, weight in one["initial"].items())
    assert moved > 1e-3


def test_dropout_and_precision_change_what_is_compared(references: References) -> None:
    """Or equal losses would not show that masks and rounding are those of one process.

    Over all steps: on a processor with units for fp16 the first loss in fp16 can be fp32's to the last digit.
    """
    plain = references.of(Case())
    for changed in (Case(dropout=True), Case(precision="bf16"), Case(precision="fp16")):
        found = references.of(changed)
        assert np.max(np.abs(np.subtract(found["losses"], plain["losses"]))) > 1e-6, changed
        assert not keeps("fp32", distance(plain, [found])), changed
    assert abs(references.of(Case(dropout=True))["losses"][0] - plain["losses"][0]) > 1e-4


@pytest.mark.parametrize("precision", BARS)
def test_training_without_clipping_is_above_the_bars(references: References, precision: str) -> None:
    """It is what is wrong in a small way: losses differ by 1e-4, and no weight by more than it may move."""
    case = Case(precision=precision)
    job = references.job(case)
    wrong = dataclasses.replace(job, config=dataclasses.replace(job.config, clip_norm=0.0))
    found = distance(references.of(case), references.workers.run(1, trained, wrong))
    assert not keeps(precision, found), found


def test_bars_are_a_few_times_what_rounding_does_to_one_process(references: References) -> None:
    shapes = (Case(), Case(pp=4, schedule="zbv"))
    for precision in PRECISIONS[1:]:
        low = [
            (references.of(shape), references.of(dataclasses.replace(shape, precision=precision))) for shape in shapes
        ]
        found = [distance(exact, [rounded]) for exact, rounded in low]
        for figure in FIGURES:
            assert getattr(BARS[precision], figure) < 4 * max(getattr(each, figure) for each in found), figure


@pytest.mark.parametrize(
    "case",
    nightly_but(
        [
            Case(tp=4, micro_batch_size=2),
            Case(tp=2, sequence_parallel=False, dp_replicate=2),
            Case(pp=2, schedule="zbv", tp=2, micro_batch_size=2),
            Case(pp=4, schedule="gpipe", micro_batch_size=1),
            Case(zero=3, dp_replicate=2, activation_checkpointing="full"),
        ],
        1,
        4,
    ),
    ids=str,
)
def test_a_value_is_dropped_in_every_layout_or_in_none(references: References, case: Case) -> None:
    dropping = dataclasses.replace(case, dropout=True)
    one, ranks = references.of(dropping), references.run(dropping)
    assert {rank["losses"][0] for rank in ranks} == {ranks[0]["losses"][0]}
    assert ranks[0]["losses"][0] == pytest.approx(one["losses"][0], rel=1e-6)
