"""Stage `report`: one page about a whole run, for people.

stats of the corpus + stats of the run + the run's folder -> `index.html` (self-contained: style and
pictures inside), `report.md` (the same in Markdown) and its `pictures/*.svg`: the funnel of documents
with every reason for rejection, loss curves, scores, generated texts, GLUE. What is missing is said.

Run: python -m trainer.report stats/sample stats/sample-tiny-dp2 runs/sample-tiny-dp2 report/
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.command import Output, Source
from pipelines.manifest import Counts
from pipelines.stage import StageRun, stage_main
from trainer.results import Results, Scored, StageCounts, read_results

VERSION = 1
SHAPED_BY = ("matplotlib", "jinja2")

METRICS = {
    "accuracy": "accuracy",
    "f1": "F1",
    "matthews_correlation": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "loss": "loss",
    "rows": "rows",
}
"""Score -> heading of its column, in order; other scores follow under their own names."""


def report(run: StageRun, stats: Source, run_stats: Source, results: Source, output: Output) -> dict[str, Any]:
    """Read everything, draw the pictures, write the page twice."""
    found = read_results(stats.path, run_stats.path, results.path)
    pictures = draw_pictures(found)
    for name, picture in pictures.items():
        _write(output.folder / "pictures" / f"{name}.svg", picture)
    page = page_values(found)
    _write(output.folder / "index.html", render_html(page, pictures))
    _write(output.folder / "report.md", render_markdown(page, pictures))
    run.adopt(output, Counts(rows_in=len(found.corpus_stages) + len(found.run_stages), rows_out=1))
    return {"missing": found.missing}


def _write(path: Path, text: str) -> None:
    with store.create(path) as file:
        file.write(text.encode())


def draw_pictures(found: Results) -> dict[str, str]:
    """Name -> SVG, of the pictures for which there is something to show."""
    from trainer import pictures

    drawn: dict[str, str] = {}
    if found.flow:
        drawn["funnel"] = pictures.funnel(found.flow)
    if found.pretrain:
        drawn["pretraining"] = pictures.pretraining(found.pretrain, uniform_loss(found))
    if found.finetune:
        drawn["finetuning"] = pictures.finetuning(found.finetune)
    return drawn


def uniform_loss(found: Results) -> float | None:
    """Loss of a model that has learned nothing: ln(vocabulary), or None where it is not known."""
    size = found.fact("tokenizer", "vocab_size")
    return math.log(size) if isinstance(size, int) and size > 0 else None


# What the page says.


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


def page_values(found: Results) -> dict[str, Any]:
    """Everything the two templates show."""
    return {
        "found": found,
        "figures": key_figures(found),
        "stage_table": stage_table(found.corpus_stages),
        "curve_table": curve_table(found),
        "score_table": Table(("score", "value"), [(name, number(value)) for name, value in found.scores.items()]),
        "task_table": task_table(found.tasks),
        "stages": [(stage, facts_table(stage)) for stage in (*found.corpus_stages, *found.run_stages)],
    }


def key_figures(found: Results) -> list[KeyFigure]:
    """The few numbers that a reader looks for first."""
    figures: list[KeyFigure] = []
    if found.flow:
        kept, seen = found.flow[-1].rows_out, found.flow[0].rows_in
        figures.append(KeyFigure("documents kept", number(kept), f"of {number(seen)} that went in"))
    if (tokens := found.fact("tokenize_train", "tokens")) is not None:
        vocabulary = found.fact("tokenizer", "vocab_size")
        figures.append(
            KeyFigure("training tokens", number(tokens), f"vocabulary {number(vocabulary)}" if vocabulary else "")
        )
    if (parameters := found.fact("pretrain", "parameters", "num_parameters")) is not None:
        figures.append(KeyFigure("parameters", number(parameters), found.run))
    if (perplexity := found.scores.get("perplexity")) is not None:
        loss = found.scores.get("loss")
        figures.append(KeyFigure("validation perplexity", number(perplexity), f"loss {number(loss)}" if loss else ""))
    for scored in found.tasks[:2]:
        name, value = next(iter(_ordered(scored).items()))
        figures.append(KeyFigure(f"{_label(scored)} {METRICS.get(name, name)}", number(value), _rows_note(scored)))
    return figures


def _rows_note(scored: Scored) -> str:
    return f"on {number(scored.scores['rows'])} rows" if "rows" in scored.scores else ""


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
    """One row per task and split, one column per score."""
    present = {name for scored in tasks for name in scored.scores}
    names = [name for name in METRICS if name in present] + sorted(present - set(METRICS))
    head = ("task", *(METRICS.get(name, name) for name in names))
    rows = [(_label(scored), *(number(scored.scores.get(name)) for name in names)) for scored in tasks]
    return Table(head, rows)


def _label(scored: Scored) -> str:
    return f"{scored.task} {scored.split}".strip()


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


# How it looks.


def render_html(page: dict[str, Any], pictures: dict[str, str]) -> str:
    """The page with its style and pictures inside; everything that comes from data is escaped."""
    from markupsafe import Markup

    # matplotlib has escaped every text in its pictures.
    drawn = {name: Markup(svg) for name, svg in pictures.items()}  # noqa: S704
    return _template("report.html.j2", None).render(page, pictures=drawn)


def render_markdown(page: dict[str, Any], pictures: dict[str, str]) -> str:
    """The same as Markdown; every value is escaped, so that none can become markup."""
    from markupsafe import Markup

    def escaped(value: object) -> Markup:
        return value if isinstance(value, Markup) else Markup(escape_markdown(value))  # noqa: S704 - escaped here

    text = _template("report.md.j2", escaped).render(page, pictures=pictures)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _template(name: str, finalize: Callable[[object], object] | None) -> Any:
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, finalize=finalize, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template(name)


def escape_markdown(value: object) -> str:
    """`value` as text that Markdown shows as it is, on one line."""
    text = " ".join(str(value).split("\n"))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", text)


if __name__ == "__main__":
    stage_main("trainer.report")
