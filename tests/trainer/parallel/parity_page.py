"""The bars that every layout has to keep, and docs/parity.md, which shows how far below them the layouts are."""

import dataclasses
import os
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tests.trainer.parallel.cases import BATCH, SCHEDULES, STEPS, Case, Distance

if TYPE_CHECKING:
    from tests.trainer.parallel.matrix import Result

Layout = tuple[int, int, int, str]
BARS = {
    "fp32": Distance(losses=1e-6, norms=1e-6, weights=1e-5, updates=2e-6),
    "bf16": Distance(losses=1.5e-4, norms=7e-3, weights=2e-3, updates=2.5e-2),
    "fp16": Distance(losses=1.5e-5, norms=3e-4, weights=2.5e-4, updates=3e-3),
}
PRECISIONS = tuple(BARS)
FIGURES = [field.name for field in dataclasses.fields(Distance)]
LETTERS = "abcdefghijklmnopqrstuvwxyz"

HEAD = f"""# Parity, proven

Every layout trains the model that one process trains. Made by `make matrix`; do not edit by hand.

A GPT-2 of width 32 with 4 heads and 4 layers (8 where there are 8 stages) trains {STEPS} steps of {BATCH} samples of
16 tokens ({2 * BATCH} samples for `dualpipev` over 4 processes with ZeRO, which needs as many), with AdamW, epsilon
1e-6, gradients clipped at 0.5, no dropout, on CPU processes over gloo. It is compared with one process **in the same
precision**. The weights at the start have to be equal to the bit, and so have the losses and norms that the processes
of a layout report: a case where they are not has failed. The figures are the largest of

- **losses** and **norms** (of gradients, before clipping): the relative error in any step;
- **weights**: the absolute error of any weight after the last step;
- **updates**: the norm of the error of all weights together, relative to that of what the steps have changed. Weights
  move by 0.0064 at most, so an absolute error alone says little in bf16 and fp16.

The product: ZeRO 0, 1, 2, 3 (over 2 processes) x tp 1, 2 x pp 1, 2, 4 with 7 schedules x sequence parallelism x micro
batches of all samples at once, of 1 and of 2 x activation checkpointing none, full, selective x fp32, bf16, fp16; on up
to 8 processes. Each computation is there once: with tp 1 no sequence is split, and a pipeline that is given no size
takes 1 or 2.
"""

EARLIER = """\
> **These figures are of an earlier state of the code.** It has changed since they were computed, and none of them was
> computed again: `make matrix` does that. The digest below is of the code that they belong to.
"""

LOW = """
## What bf16 and fp16 may be off

In fp32 the bars are a few roundings wide, and a wrong layout cannot hide. In bf16 and fp16 a layout that cuts matrix
products or batches another way rounds other numbers, so the question is what rounding alone does. One process shows it:
how far it is from one process in fp32. A layout that is no farther from fp32 than that cannot be farther from the one
process than twice as much (the triangle inequality), whatever the order of its sums. So the bars are twice the largest
of these distances, rounded up:
"""


def layout(case: Case) -> Layout:
    """The row of the table: ZeRO, tp, pp and its schedule."""
    return case.zero, case.tp, case.pp, case.schedule if case.pp > 1 else ""


def keeps(precision: str, found: "Distance | Result") -> bool:
    """Whether each figure is a number, and none above its bar."""
    pairs = [(getattr(found, figure), getattr(BARS[precision], figure)) for figure in FIGURES]
    return all(value is not None and value <= bar for value, bar in pairs)


def page(
    cases: Sequence[Case], refused: Mapping[Layout, Sequence[str]], results: Mapping[str, "Result"], code: str
) -> str:
    """The whole page. `refused`: of each layout, why those of its cases that cannot be computed cannot."""
    done = {case: results[str(case)] for case in cases if str(case) in results}
    alone = {name: result for name, result in results.items() if name.startswith("one-process")}
    letters = dict(
        zip(dict.fromkeys(_reason(each) for all_ in refused.values() for each in all_), LETTERS, strict=False)
    )
    return "\n".join(
        [
            HEAD,
            *_summary(cases, done, code),
            LOW,
            *_distances(alone),
            "\n## Layout by layout\n",
            "Each cell: the worst losses, norms, weights and updates. Refused: how many of the product, and why.\n",
            *_table(cases, done, refused, letters),
            "",
            *(f"- **{letter}**: {reason}" for reason, letter in letters.items()),
            "",
        ]
    )


def marked(text: str, code: str) -> str:
    """A page that says that it is of an earlier state where the code is another today, and only there."""
    plain = text.replace(f"{EARLIER}\n", "")
    found = re.search(r"code has the sha256 (\w+)", plain)
    if found and found[1] == code:
        return plain
    title, _, rest = plain.partition("\n\n")
    return f"{title}\n\n{EARLIER}\n{rest}"


def _summary(cases: Sequence[Case], done: Mapping[Case, "Result"], code: str) -> Iterable[str]:
    """How many cases there are, how many were computed, and the worst of them."""
    import torch

    wrong = {case: result for case, result in done.items() if not keeps(case.precision, result)}
    hours = sum(result.seconds for result in done.values()) / 3600
    yield f"**{len(done)} of {len(cases)} feasible cases were computed; {len(done) - len(wrong)} keep all bars.**\n"
    yield "| precision | feasible | computed | keep the bars | losses | norms | weights | updates |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for precision, bars in BARS.items():
        mine = {case: result for case, result in done.items() if case.precision == precision}
        feasible = sum(case.precision == precision for case in cases)
        kept = sum(case not in wrong for case in mine)
        worst = [f"{_worst(mine.values(), figure)} (bar {_short(getattr(bars, figure))})" for figure in FIGURES]
        yield f"| {precision} | {feasible} | {len(mine)} | {kept} | {' | '.join(worst)} |"
    yield ""
    for case, result in wrong.items():
        yield f"- `{case}`: {result.error or 'above a bar: ' + _cell([result])}"
    yield (
        f"Command: `make matrix`; its cases took {hours:.1f} hours together, on {os.cpu_count()} cores. "
        f"Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, {platform.machine()}. "
        f"The trainer's code has the sha256 {code} (what counts: `CODE` in tests/trainer/parallel/matrix.py)."
    )


def _distances(alone: Mapping[str, "Result"]) -> Iterable[str]:
    yield "| | losses | norms | weights | updates |\n| --- | --- | --- | --- | --- |"
    for name, result in alone.items():
        figures = [_worst([result], figure) for figure in FIGURES]
        yield f"| {name.replace('-', ' ')} | {' | '.join(figures)} |"
    for precision in PRECISIONS[1:]:
        figures = [_short(getattr(BARS[precision], figure)) for figure in FIGURES]
        yield f"| **bar of {precision}** | {' | '.join(figures)} |"


def _table(
    cases: Sequence[Case],
    done: Mapping[Case, "Result"],
    refused: Mapping[Layout, Sequence[str]],
    letters: Mapping[str, str],
) -> Iterable[str]:
    yield "| ZeRO | tp | pp | computed | fp32 | bf16 | fp16 | refused |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in sorted({layout(case) for case in cases} | refused.keys(), key=_place):
        zero, tp, pp, schedule = row
        here = [case for case in cases if layout(case) == row]
        cells = [_cell(done[case] for case in here if case in done and case.precision == each) for each in BARS]
        counts = Counter(letters[_reason(reason)] for reason in refused.get(row, ()))
        why = ", ".join(f"{count} {letter}" for letter, count in sorted(counts.items()))
        computed = f"{sum(case in done for case in here)} of {len(here)}" if here else "none"
        yield f"| {zero} | {tp} | {pp} {schedule} | {computed} | {' | '.join(cells)} | {why} |"


def _place(row: Layout) -> tuple[int, int, int, int]:
    zero, tp, pp, schedule = row
    return zero, tp, pp, SCHEDULES.index(schedule) if schedule else 0


def _cell(results: Iterable["Result"]) -> str:
    found = list(results)
    return " ".join(_worst(found, figure) for figure in FIGURES) if found else ""


def _worst(results: Iterable["Result"], figure: str) -> str:
    """The largest; a case without a number is the worst of all."""
    values = [getattr(result, figure) for result in results]
    if not values:
        return ""
    return "failed" if None in values else _short(np.max(values))


def _short(value: float) -> str:
    return f"{value:.1e}".replace("e-0", "e-")


def _reason(message: str) -> str:
    """What the trainer says, without the schedule and the stage of ZeRO that it says it of."""
    return re.sub(r"\b(schedule|zero) \w+(?=[ :].*: |: )", r"\1", message)
