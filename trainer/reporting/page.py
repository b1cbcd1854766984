"""The contents of the report: its key figures and tables, as text ready to be shown."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelines.config import to_plain
from trainer.config import PretrainConfig
from trainer.glue.metrics import HEADINGS
from trainer.reporting.results import Results, Scored, StageCounts
from trainer.reporting.task_results import TaskResults

WORST = 5
"""How many of the worst rows of each split are shown."""
CHARACTERS = 400
"""How many characters of a row's texts are shown."""


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


def page_values(
    results: Results, tasks: Sequence[TaskResults], losses: Mapping[str, float], *, own_tokenizer: bool
) -> dict[str, Any]:
    """Return everything that the two templates show.

    `losses`: what others published, by who and what. `own_tokenizer`: the vocabulary is not GPT-2's.
    """
    return {
        "results": results,
        "figures": key_figures(results),
        "run_table": run_table(results),
        "stage_table": stage_table(results.corpus_stages),
        "curve_table": curve_table(results),
        "score_table": Table(
            ("score", "value"), [(_words(name), number(value)) for name, value in results.scores.items()]
        ),
        "published_table": published_table(results, losses),
        "own_tokenizer": own_tokenizer,
        "task_table": task_table(results.tasks),
        "task_details": task_details(tasks),
        "stages": [
            (stage, facts_table(stage), [(_words(name), records_table(rows)) for name, rows in stage.tables.items()])
            for stage in (*results.corpus_stages, *results.run_stages)
        ],
    }


def funnel_rows(results: Results) -> list[tuple[str, int]]:
    """Return (stage, documents that it kept), from those that entered on."""
    kept = [(stage.name, stage.rows_out) for stage in results.flow]
    return [("entered", entered(results)), *kept] if kept else []


def score_rows(results: Results) -> list[tuple[str, float]]:
    """Return (task and score, value) of every whole validation split."""
    return [
        (f"{_label(scored)} {_words(name)}", value)
        for scored in results.tasks
        if not scored.split.endswith("clean")
        for name, value in _ordered(scored).items()
        if name in HEADINGS and name != "rows"
    ]


def entered(results: Results) -> int:
    """Count URLs and prepared documents: the rows that entered at the first stage or joined at a later one."""
    joined = (max(0, stage.rows_in - before.rows_out) for before, stage in itertools.pairwise(results.flow))
    return results.flow[0].rows_in + sum(joined)


def key_figures(results: Results) -> list[KeyFigure]:
    """Return the few numbers that a reader looks for first."""
    figures: list[KeyFigure] = []
    if results.flow:
        figures.append(KeyFigure("documents kept", number(results.flow[-1].rows_out), f"of {number(entered(results))}"))
    if (tokens := results.fact("tokenize_train", "tokens")) is not None:
        vocabulary = results.fact("tokenizer", "vocab_size")
        figures.append(
            KeyFigure("training tokens", number(tokens), f"vocabulary {number(vocabulary)}" if vocabulary else "")
        )
    if (parameters := results.fact("pretrain", "parameters")) is not None:
        steps = results.fact("pretrain", "steps")
        figures.append(KeyFigure("parameters", short(parameters), f"{number(steps)} steps" if steps else ""))
    if results.under_way and results.pretrain["step"]:
        steps = results.record.get("pretrain", {}).get("steps")
        of_all = f"of {number(steps)}, not ended" if steps else "not ended"
        figures.append(KeyFigure("step of pretraining", number(results.pretrain["step"][-1]), of_all))
    if (perplexity := results.scores.get("perplexity")) is not None:
        loss = results.scores.get("loss")
        figures.append(KeyFigure("perplexity", number(perplexity), f"validation loss {number(loss)}" if loss else ""))
    for scored in [scored for scored in results.tasks if not scored.split.endswith("clean")][:2]:
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


def run_table(results: Results) -> Table | None:
    """Return what was trained, and how, or None if pretraining has no record."""
    if not results.record:
        return None
    # A record leaves out young keys that have their defaults.
    model, run = results.record["model"], {**to_plain(PretrainConfig()), **results.record["pretrain"]}
    batch, length = run["global_batch_size"], run["sequence_length"]
    tokens, parameters = results.record["tokens"], results.fact("pretrain", "parameters")
    passes = f", {_times(tokens / own)} over the training tokens" if (own := _training_tokens(results)) else ""
    rows = [
        (
            "architecture",
            (
                f"GPT-2, {model['n_layer']} layers, {model['n_head']} heads, width {number(model['n_embd'])}, "
                f"{number(model['n_positions'])} positions, vocabulary {number(model['vocab_size'])}"
            ),
        ),
        *([("parameters", number(parameters))] if parameters else []),  # counted when pretraining ends
        ("tokens", f"{number(tokens)} in {number(results.record['step'])} steps{passes}"),
        ("batch", f"{number(batch)} samples of {number(length)} tokens: {number(batch * length)} tokens per step"),
        (
            "learning rate",
            f"{number(run['lr'])}, {_schedule(run)}, after {number(run['warmup_steps'])} steps of warm-up",
        ),
        (
            "optimizer",
            (
                f"AdamW, betas {run['beta1']} and {run['beta2']}, epsilon {number(run['epsilon'])}, weight decay "
                f"{run['weight_decay']}, gradients clipped at {run['clip_norm']}"
            ),
        ),
        ("precision", run["precision"]),
        ("seed", str(run["seed"])),
        ("training tokens' sha256", _data_hash(results.record, "train")),
        ("validation tokens' sha256", _data_hash(results.record, "val")),
    ]
    return Table(("", ""), rows)


def _schedule(run: Mapping[str, Any]) -> str:
    """Return how the learning rate changes after the warm-up, in words."""
    end = f"to {run['final_lr_share']:.0%} of it"
    return {"constant": "constant", "wsd": f"constant, then down {end}"}.get(
        run["schedule"], f"{run['schedule']} {end}"
    )


def _training_tokens(results: Results) -> int:
    return int(results.fact("tokenize_train", "tokens") or 0)


def _times(passes: float) -> str:
    """Return how often the data was seen, in words."""
    return "1 pass" if passes == 1 else f"{passes:.3g} passes"


def _data_hash(record: Mapping[str, Any], split: str) -> str:
    return str(record["data"].get(split, "–"))


def stage_table(stages: Sequence[StageCounts]) -> Table:
    """Return rows in, rows out, and rejected rows by reason, per stage."""
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


def curve_table(results: Results) -> Table:
    """Return the first, last and lowest values of pretraining's curves."""
    rows: list[tuple[str, ...]] = []
    for column, name in (("loss", "training loss"), ("val_loss", "validation loss"), ("grad_norm", "gradient norm")):
        values = [value for value in results.pretrain.get(column, ()) if math.isfinite(value)]
        if values:
            rows.append((name, number(values[0]), number(values[-1]), number(min(values))))
    return Table(("", "first", "last", "lowest"), rows)


def published_table(results: Results, losses: Mapping[str, float]) -> Table | None:
    """Return the run's validation loss beside those that others published, or None if there is nothing to compare."""
    loss = results.scores.get("loss")
    if loss is None or not losses:
        return None
    rows = [(who, number(theirs), number(loss), f"{loss - theirs:+.3f}") for who, theirs in losses.items()]
    return Table(("validation loss", "published", "this run", "difference"), rows)


def task_table(tasks: Sequence[Scored]) -> Table:
    """Return one row per task and split, and one column per score; the headline is followed by its interval."""
    present = {name for scored in tasks for name in scored.scores}
    names = [name for name in HEADINGS if name in present] + sorted(present - set(HEADINGS))
    columns = [
        (_words(name), [_score(scored.scores.get(name), scored.std.get(name)) for scored in tasks]) for name in names
    ]
    if any(scored.interval for scored in tasks):
        columns.insert(1, ("95 % interval", [_interval(scored.interval) for scored in tasks]))
    head = ("task", *(name for name, _ in columns))
    rows = [(_label(scored), *cells) for scored, *cells in zip(tasks, *(cells for _, cells in columns), strict=True)]
    return Table(head, rows)


def task_details(tasks: Sequence[TaskResults]) -> list[tuple[TaskResults, Table | None]]:
    """Return each task with the table of its worst rows, WORST of each split."""
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
    """Return `mrpc`, `mnli matched` or `mrpc clean`: all splits are validation splits, so that word is left out."""
    return f"{scored.task} {scored.split.removeprefix('validation').replace('_', ' ').strip()}".strip()


def _score(value: float | None, std: float | None = None) -> str:
    # Four digits after the point, as the field prints them, so that a column lines up.
    if value is not None and std is not None:
        return f"{value:.4f} ± {std:.4f}"
    return number(value) if value is None or value.is_integer() else f"{value:.4f}"


def _words(score: str) -> str:
    return HEADINGS.get(score, score.replace("_", " "))


def _ordered(scored: Scored) -> dict[str, float]:
    names = [name for name in HEADINGS if name in scored.scores]
    return {name: scored.scores[name] for name in [*names, *scored.scores]}


def facts_table(stage: StageCounts) -> Table:
    """Return every number that a stage reported."""
    counts = {"in": stage.rows_in, "out": stage.rows_out}
    rejected = {f"rejected: {rule}": count for rule, count in stage.rejected}
    values = {**counts, **rejected, **stage.facts}
    return Table(("fact", "value"), [(name, number(value)) for name, value in values.items()])


def records_table(records: Sequence[Mapping[str, Any]]) -> Table:
    """Return one row per record, with a column for each key that any of them has."""
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = [tuple(_clipped(_cell(record.get(name))) for name in names) for record in records]
    return Table(tuple(map(_words, names)), rows)


def _cell(value: Any) -> str:
    """Return a value of a record; a list's parts stand one after the other."""
    if isinstance(value, Mapping):
        return "; ".join(f"{name} {_cell(each)}" for name, each in value.items())
    return " · ".join(map(_cell, value)) if isinstance(value, list) else number(value)


def number(value: Any) -> str:
    """Format a value for people: 1,234; 0.7426; 2.4e-05; – for None; text unchanged."""
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
    """Format a large number with three digits, as 124 M, and smaller ones in full."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return number(value)
