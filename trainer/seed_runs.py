"""The same fine-tuning with several seeds: which is best, means and standard deviations. Pure but for the files."""

import csv
import io
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines import store
from trainer.results import SEEDS

_NO_SCORES = ("rows", "majority", "headline_low", "headline_high")

Scores = Mapping[str, Mapping[str, Any]]
"""Split -> score -> value."""


def seed_name(seed: int) -> str:
    """The folder of one seed's run."""
    return f"seed-{seed}"


def best_seed(scores: Mapping[int, Scores]) -> int:
    """The seed with the highest headline score on the first validation split, the first of equal ones."""
    return max(scores, key=lambda seed: next(iter(scores[seed].values()))["headline"])


def write_spread(found: Mapping[int, dict[str, Any]], best: int, folder: Path) -> dict[str, Any]:
    """Means and deviations as scores.json, every score as seeds.csv, the best as seeds.json; the stage's stats."""
    runs = {seed: each["scores"] for seed, each in found.items()}
    scores = {**_over_seeds(runs, statistics.fmean, ""), **_over_seeds(runs, statistics.stdev, "_std")}
    store.write_json(folder / "scores.json", scores)
    headlines = {seed_name(seed): next(iter(run.values()))["headline"] for seed, run in runs.items()}
    store.write_json(folder / SEEDS, {"best": seed_name(best), "headlines": headlines})
    lines = io.StringIO()
    table = csv.writer(lines, lineterminator="\n")
    table.writerow(("seed", "split", "score", "value"))
    for seed, splits in runs.items():
        for split, values in splits.items():
            table.writerows((seed, split, name, value) for name, value in values.items() if _is_score(name, value))
    with store.create(folder / "seeds.csv") as file:
        file.write(lines.getvalue().encode())
    first = next(iter(found.values()))
    losses = {"train_loss": round(statistics.fmean(each["train_loss"] for each in found.values()), 6)}
    same = {name: first[name] for name in ("rows", "steps", "tokens", "num_labels")}
    return {**same, **losses, "seeds": len(found), "best_seed": best, **scores}


def _over_seeds(runs: Mapping[int, Scores], over: Any, suffix: str) -> dict[str, dict[str, float]]:
    first = next(iter(runs.values()))
    return {
        f"{split}{suffix}": {
            name: round(over([run[split][name] for run in runs.values()]), 6)
            for name, value in values.items()
            if _is_score(name, value)
        }
        | ({} if suffix else {"rows": values["rows"]})
        for split, values in first.items()
    }


def _is_score(name: str, value: Any) -> bool:
    return name not in _NO_SCORES and isinstance(value, (int, float))
