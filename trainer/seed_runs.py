"""The same fine-tuning with several seeds: which is best, means and standard deviations. Pure but for the files."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines import store
from trainer.results import SEEDS

_SAME = ("rows", "majority", "headline_of")

Scores = Mapping[str, Mapping[str, Any]]
"""Split -> score -> value."""


def seed_name(seed: int) -> str:
    """The folder of one seed's run."""
    return f"seed-{seed}"


def best_seed(scores: Mapping[int, Scores]) -> int:
    """The seed with the highest headline score on the first validation split, the first of equal ones."""
    return max(scores, key=lambda seed: next(iter(scores[seed].values()))["headline"])


def write_spread(runs: Mapping[int, Scores], best: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Means and deviations as scores.json, every score as seeds.csv, the best seed as seeds.json; returns the first."""
    first = next(iter(runs.values()))
    spread = {split: _over_seeds([run[split] for run in runs.values()]) for split in first}
    store.write_json(folder / "scores.json", spread)
    headlines = {seed_name(seed): next(iter(run.values()))["headline"] for seed, run in runs.items()}
    store.write_json(folder / SEEDS, {"best": seed_name(best), "headlines": headlines})
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(("seed", "split", "score", "value"))
    for seed, splits in runs.items():
        for split, values in splits.items():
            table.writerows((seed, split, name, values[name]) for name in _scores_in(values))
    with store.create(folder / "seeds.csv") as file:
        file.write(lines.getvalue().encode())
    return spread


def _over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One split's mean scores, with `std` and how many seeds; what is the same in all runs as it is."""
    values = {name: [run[name] for run in runs] for name in _scores_in(runs[0])}
    same = {name: runs[0][name] for name in _SAME if name in runs[0]}
    means = {name: round(statistics.fmean(each), 6) for name, each in values.items()}
    std = {name: round(statistics.stdev(each), 6) for name, each in values.items()}
    return {**means, **same, "seeds": len(runs), "std": std}


def _scores_in(values: Mapping[str, Any]) -> list[str]:
    return [name for name, value in values.items() if name not in _SAME and isinstance(value, (int, float))]
