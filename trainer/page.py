"""What the report says: its key figures and tables, as text ready to be shown."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.results import Results, Scored, StageCounts
from trainer.task_results import TaskResults

METRICS = {
    "headline": "score",
    "matthews": "Matthews",
    "accuracy": "accuracy",
    "f1": "F1",
    "macro_f1": "mean F1",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "majority": "majority guess",
    "rows": "rows",
}
"""Score -> heading of its column, in order; other scores follow under their own names."""
WORST = 5
"""Rows of each split that are shown of those that the model is most wrong about."""
CHARACTERS = 400
"""Shown of a row's texts."""


@dataclass(frozen=True, slots=True)
class KeyFigure:
    """A number at the top of the page."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; the first column names its rows."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def page_values(found: Results, tasks: Sequence[TaskResults]) -> dict[str, Any]:
    """Everything the two templates show."""
    return {
        "found": found,
        "figures": key_figures(found),
        "stage_table": stage_table(found.corpus_stages),
        "curve_table": curve_table(found),
        "score_table": Table(
            ("score", "value"), [(_words(name), number(value)) for name, value in found.scores.items()]
        ),
        "task_table": task_table(found.tasks),
        "task_details": task_details(tasks),
        "stages": [(stage, facts_table(stage)) for stage in (*found.corpus_stages, *found.run_stages)],
    }


def entered(found: Results) -> int:
    """URLs and prepared documents together: what came in at the first stage, and what joined at a later one."""
    joined = (max(0, stage.rows_in - before.rows_out) for before, stage in itertools.pairwise(found.flow))
    return found.flow[0].rows_in + sum(joined)


def key_figures(found: Results) -> list[KeyFigure]:
    """The few numbers that a reader looks for first."""
    figures: list[KeyFigure] = []
    if found.flow:
        figures.append(KeyFigure("documents kept", number(found.flow[-1].rows_out), f"of {number(entered(found))}"))
    if (tokens := found.fact("tokenize_train", "tokens")) is not None:
        vocabulary = found.fact("tokenizer", "vocab_size")
        figures.append(
            KeyFigure("training tokens", number(tokens), f"vocabulary {number(vocabulary)}" if vocabulary else "")
        )
    if (parameters := found.fact("pretrain", "parameters")) is not None:
        steps = found.fact("pretrain", "steps")
        figures.append(KeyFigure("parameters", short(parameters), f"{number(steps)} steps" if steps else ""))
    if (perplexity := found.scores.get("perplexity")) is not None:
        loss = found.scores.get("loss")
        figures.append(KeyFigure("perplexity", number(perplexity), f"validation loss {number(loss)}" if loss else ""))
    for scored in [scored for scored in found.tasks if not scored.split.endswith("clean")][:2]:
        name, value = next(iter(_ordered(scored).items()))
        words = " and ".join(map(_words, scored.headline_of)) or _words(name)
        figures.append(KeyFigure(f"{_label(scored)} {words}", number(value), _rows_note(scored)))
    return figures


def _rows_note(scored: Scored) -> str:
    rows = [f"on {number(scored.scores['rows'])} rows"] if "rows" in scored.scores else []
    low_high = [f"95 %: {_interval(scored.interval)}"] if scored.interval else []
    seeds = [f"mean of {scored.seeds} seeds ± {scored.std['headline']:.4f}"] if scored.std else []
    return ", ".join([*rows, *low_high, *seeds])


def _interval(ends: tuple[float, float] | None) -> str:
    return "–" if ends is None else f"{ends[0]:.4f} to {ends[1]:.4f}"


def stage_table(stages: Sequence[StageCounts]) -> Table:
    """Rows in, out, and rejected with reason, per stage."""
    rows = [
        (
            stage.name,
            number(stage.rows_in),
            number(stage.rows_out),
            ", ".join(f"{rule} {number(count)}" for rule, count in stage.rejected) or "–",
        )
        for stage in stages
    ]
    return Table(("stage", "in", "out", "rejected"), rows)


def curve_table(found: Results) -> Table:
    """Where pretraining began and where it ended."""
    rows: list[tuple[str, ...]] = []
    for column, name in (("loss", "training loss"), ("val_loss", "validation loss"), ("grad_norm", "gradient norm")):
        values = [value for value in found.pretrain.get(column, ()) if math.isfinite(value)]
        if values:
            rows.append((name, number(values[0]), number(values[-1]), number(min(values))))
    return Table(("", "first", "last", "lowest"), rows)


def task_table(tasks: Sequence[Scored]) -> Table:
    """One row per task and split, one column per score; the headline's interval stands beside it."""
    present = {name for scored in tasks for name in scored.scores}
    names = [name for name in METRICS if name in present] + sorted(present - set(METRICS))
    columns = [
        (_words(name), [_score(scored.scores.get(name), scored.std.get(name)) for scored in tasks]) for name in names
    ]
    if any(scored.interval for scored in tasks):
        columns.insert(1, ("95 % interval", [_interval(scored.interval) for scored in tasks]))
    head = ("task", *(name for name, _ in columns))
    rows = [(_label(scored), *cells) for scored, *cells in zip(tasks, *(cells for _, cells in columns), strict=True)]
    return Table(head, rows)


def task_details(tasks: Sequence[TaskResults]) -> list[tuple[TaskResults, Table | None]]:
    """Each task with the table of its worst rows, the first WORST of each split."""
    details: list[tuple[TaskResults, Table | None]] = []
    for task in tasks:
        splits = dict.fromkeys(row.split for row in task.worst)
        rows = [row for split in splits for row in [row for row in task.worst if row.split == split][:WORST]]
        table = Table(
            ("text", "label", "prediction", "probability" if task.confusions else "error"),
            [(_clipped(row.texts), row.label, row.prediction, row.amount) for row in rows],
        )
        details.append((task, table if rows else None))
    return details


def _clipped(text: str) -> str:
    return text if len(text) <= CHARACTERS else f"{text[:CHARACTERS]} …"


def _label(scored: Scored) -> str:
    """`mrpc`, `mnli matched`, `mrpc clean`: every scored split is of validation, so that word says nothing."""
    return f"{scored.task} {scored.split.removeprefix('validation').replace('_', ' ').strip()}".strip()


def _score(value: float | None, std: float | None = None) -> str:
    # Four digits after the point, as the field prints them, so that a column lines up.
    if value is not None and std is not None:
        return f"{value:.4f} ± {std:.4f}"
    return number(value) if value is None or value.is_integer() else f"{value:.4f}"


def _words(score: str) -> str:
    return METRICS.get(score, score.replace("_", " "))


def _ordered(scored: Scored) -> dict[str, float]:
    names = [name for name in METRICS if name in scored.scores]
    return {name: scored.scores[name] for name in [*names, *scored.scores]}


def facts_table(stage: StageCounts) -> Table:
    """Every number that a stage reported."""
    counts = {"in": stage.rows_in, "out": stage.rows_out}
    rejected = {f"rejected: {rule}": count for rule, count in stage.rejected}
    values = {**counts, **rejected, **stage.facts}
    return Table(("fact", "value"), [(name, number(value)) for name, value in values.items()])


def number(value: Any) -> str:
    """A value as a person reads it: 1,234; 0.7426; 2.4e-05; – for none; text as it is."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def short(value: float) -> str:
    """A large number in three digits: 124 M; smaller ones in full."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return number(value)
