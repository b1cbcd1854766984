"""Arms compared with the raw one: intervals, tests over seeds and over documents, a table and a picture.

Seeds and documents answer different questions. The interval and the test over documents say whether the trained models
(each document's mean over seeds) differ on other documents like these. The test over seeds says whether models of
other seeds would. Both are paired: the same seed starts with the same weights, and every model reads the same
documents. p values are Holm's for the arms of a measure.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.curation.prepare import HELD_OUT
from pipelines import store
from pipelines.task_requests import read_requests, request_files

Array = np.ndarray[Any, Any]
RESAMPLES = 2000
BASE = "raw"
MEASURES = {"held_out": "held-out clean text", "answers": "right answers"}


@dataclass(frozen=True, slots=True)
class Measure:
    """Bits and bytes of the same documents by models of several seeds."""

    bits: Array
    """(seeds, documents)."""
    weights: Array
    """(documents,): bytes, or ones where each document counts the same."""

    @property
    def by_seed(self) -> Array:
        """Return bits per byte of all documents, for each seed."""
        return self.bits.sum(1) / self.weights.sum()


@dataclass(frozen=True, slots=True)
class Row:
    """An arm beside the raw one."""

    arm: str
    mean: float
    spread: float
    """Half of the 95 % interval of the mean over seeds, by Student's t."""
    difference: float = 0.0
    low: float = 0.0
    high: float = 0.0
    """The 95 % bootstrap interval of the difference over documents."""
    p_seeds: float = math.nan
    p_documents: float = math.nan


def compare(runs: Path, picture: Path | None) -> None:
    """Print the tables of a folder of runs, and draw the picture."""
    settings = store.read_json(runs / "settings.json")
    requests = next((each for each in (runs / "arms/requests",) if each.exists()), None)
    found = read(runs, requests)
    rows = {measure: rows_of({arm: each[measure] for arm, each in found.items()}) for measure in MEASURES}
    print("\n".join(lines(settings, rows, min(len(each["held_out"].bits) for each in found.values()))))
    if picture:
        draw(rows, settings, picture)


def read(runs: Path, requests: Path | None) -> dict[str, dict[str, Measure]]:
    """Return the measures of each arm, of the seeds that all arms have."""
    if requests is None:
        raise SystemExit(f"{runs}: has no arms/requests; copy the folder arms of `prepare` there")
    sizes = np.array([each.num_bytes for each in read_requests(requests / f"{HELD_OUT}.jsonl")], float)
    tasks = [file.stem for file in request_files(requests) if file.stem != HELD_OUT]
    arms = [arm for arm in store.read_json(runs / "settings.json")["plan"]["arms"] if seeds_of(runs, arm)]
    if BASE not in arms:
        raise SystemExit(f"{runs}: has no scores of the arm {BASE}, with which the others are compared; train it")
    seeds = sorted(set.intersection(*(seeds_of(runs, arm) for arm in arms)))
    if not seeds:
        raise SystemExit(f"{runs}: no seed was scored in all arms; run `train` to its end")
    return {arm: measures([runs / "scores" / f"{arm}-{seed}" for seed in seeds], sizes, tasks) for arm in arms}


def seeds_of(runs: Path, arm: str) -> set[int]:
    """Return the seeds of which an arm has scores."""
    found = (runs / "scores").glob(f"{arm}-*/scores.json")
    return {int(file.parent.name.rpartition("-")[2]) for file in found}


def measures(scores: Sequence[Path], sizes: Array, tasks: Sequence[str]) -> dict[str, Measure]:
    """Return what the models of one arm scored."""
    read_rows = [rows(each / "rows" / f"{HELD_OUT}.jsonl") for each in scores]
    held_out = [[-row["log_likelihoods"][0] / math.log(2) for row in found] for found in read_rows]
    sizes = sizes[[row["doc"] for row in read_rows[0]]]
    answers = [
        [
            row["answer_bits_per_byte"]
            for task in tasks
            for row in rows(each / "rows" / f"{task}.jsonl")
            if "answer_bits_per_byte" in row
        ]
        for each in scores
    ]
    ones = np.ones(len(answers[0]))
    return {"held_out": Measure(np.array(held_out), sizes), "answers": Measure(np.array(answers), ones)}


def rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows that `trainer.score` wrote."""
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def rows_of(found: dict[str, Measure]) -> list[Row]:
    """Return a row for each arm, the raw one first."""
    base = found[BASE]
    made = [Row(BASE, *mean_of_seeds(base.by_seed))]
    made += [beside(arm, measure, base) for arm, measure in found.items() if arm != BASE]
    for name in ("p_seeds", "p_documents"):
        adjusted = holm([getattr(row, name) for row in made[1:]])
        made[1:] = [dataclasses.replace(row, **{name: p}) for row, p in zip(made[1:], adjusted, strict=True)]
    return made


def mean_of_seeds(values: Array) -> tuple[float, float]:
    """Return the mean and half of its 95 % interval; of one seed there is none."""
    if len(values) < 2:
        return float(values.mean()), math.nan
    return float(values.mean()), float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))


def beside(arm: str, measure: Measure, base: Measure) -> Row:
    """Compare an arm with the raw one."""
    off = (measure.bits - base.bits).mean(0)
    samples = np.random.default_rng(0).integers(len(off), size=(RESAMPLES, len(off)))
    resampled = off[samples].sum(1) / base.weights[samples].sum(1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    seeds = measure.by_seed - base.by_seed
    p_seeds = float(stats.ttest_rel(measure.by_seed, base.by_seed).pvalue) if len(seeds) > 1 else math.nan
    ranked: Any = stats.wilcoxon(off / base.weights) if off.any() else None
    p_documents = float(ranked.pvalue) if ranked else 1.0
    difference = float(seeds.mean())
    return Row(arm, *mean_of_seeds(measure.by_seed), difference, float(low), float(high), p_seeds, p_documents)


def holm(values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number, by Holm's method; those that are not numbers stay so."""
    order = sorted((n for n, value in enumerate(values) if not math.isnan(value)), key=lambda n: values[n])
    adjusted, least = list(values), 0.0
    for rank, n in enumerate(order):
        least = max(least, min(1.0, values[n] * (len(order) - rank)))
        adjusted[n] = least
    return adjusted


def lines(settings: dict[str, Any], found: dict[str, list[Row]], seeds: int) -> list[str]:
    """Return the tables as Markdown."""
    plan = settings["plan"]
    trained = f"{settings['size']}, {settings['steps']} steps of {settings['step_tokens']:,} tokens"
    said = [
        f"Raw: {plan['raw']}; cleaned by `{plan['preset']}`. {trained}, {seeds} seeds.",
        "",
        "| arm | documents | tokens trained on | tokens that the step left |",
        "| --- | --- | --- | --- |",
    ]
    for arm, of in plan["arms"].items():
        said.append(f"| {arm} | {of['documents']:,} of {of['of']:,} | {of['tokens']:,} | {of['of_tokens']:,} |")
    for measure, rows_found in found.items():
        said += [
            "",
            f"Bits per byte of {MEASURES[measure]} (less is better):",
            "",
            "| arm | mean ± 95 % over seeds | less raw | 95 % over documents | p, seeds | p, documents |",
            "| --- | --- | --- | --- | --- | --- |",
            *map(line, rows_found),
        ]
    return said


def line(row: Row) -> str:
    """Return the line of an arm."""
    head = f"| {row.arm} | {row.mean:.4f} ± {row.spread:.4f} |"
    if row.arm == BASE:
        return f"{head} | | | |"
    p_values = " | ".join(f"{p:.2g}" for p in (row.p_seeds, row.p_documents))
    return f"{head} {row.difference:+.4f} | {row.low:+.4f} to {row.high:+.4f} | {p_values} |"


def draw(found: dict[str, list[Row]], settings: dict[str, Any], file: Path) -> None:
    """Draw the differences with their intervals."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "curation"
    figure, all_axes = plt.subplots(1, len(found), figsize=(9, 2.6), sharey=True, layout="constrained")
    for axes, (measure, rows_found) in zip(all_axes, found.items(), strict=True):
        shown = rows_found[1:]
        middle = [row.difference for row in shown]
        reach = [
            [max(0.0, row.difference - row.low) for row in shown],
            [max(0.0, row.high - row.difference) for row in shown],
        ]
        axes.errorbar(middle, range(len(shown)), xerr=reach, fmt="o", capsize=3)
        axes.axvline(0, color="grey", linewidth=1)
        axes.set_yticks(range(len(shown)), [row.arm for row in shown])
        axes.invert_yaxis()
        axes.set_title(f"{MEASURES[measure]}", fontsize=10)
        axes.set_xlabel("bits per byte less those of raw", fontsize=9)
    figure.suptitle(f"{settings['plan']['raw']}, {settings['size']}", fontsize=10)
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)
