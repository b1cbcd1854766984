"""Stage `report`: one page about a whole run, for people.

stats of the corpus + stats of the run + the run's folder -> `index.html` (self-contained: style and
pictures inside), `report.md` (the same in Markdown) and its `pictures/*.svg`: the funnel of documents
with every reason for rejection, loss curves, scores, generated texts, GLUE with epochs, confusion matrices
and the rows that were hardest. What is missing is said.

    python -m trainer.report stats/sample stats/sample-tiny-pp2 runs/sample-tiny-pp2 report/
"""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.command import Output, Source
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from trainer.page import page_values
from trainer.results import Results, read_results
from trainer.task_results import TaskResults, read_tasks

VERSION = 2
SHAPED_BY = ("matplotlib", "jinja2")


def report(run: StageRun, stats: Source, run_stats: Source, results: Source, output: Output) -> dict[str, Any]:
    """Read everything, draw the pictures, write the page twice."""
    found = read_results(stats.path, run_stats.path, results.path)
    tasks = read_tasks(results.path)
    pictures = draw_pictures(found, tasks)
    for name, picture in pictures.items():
        _write(output.folder / "pictures" / f"{name}.svg", picture)
    page = page_values(found, tasks)
    _write(output.folder / "index.html", render_html(page, pictures))
    _write(output.folder / "report.md", render_markdown(page, pictures))
    run.adopt(output, Counts(rows_in=len(found.corpus_stages) + len(found.run_stages), rows_out=1))
    return {"missing": found.missing}


def _write(path: Path, text: str) -> None:
    with store.create(path) as file:
        file.write(text.encode())


def draw_pictures(found: Results, tasks: Sequence[TaskResults]) -> dict[str, str]:
    """Name -> SVG, of the pictures for which there is something to show."""
    from trainer import glue_pictures, pictures

    drawn: dict[str, str] = {}
    if found.flow:
        drawn["funnel"] = pictures.funnel(found.flow)
    if found.pretrain:
        drawn["pretraining"] = pictures.pretraining(found.pretrain, uniform_loss(found))
    if found.finetune:
        drawn["finetuning"] = pictures.finetuning(found.finetune)
    for task in tasks:
        if task.epochs or task.confusions:
            drawn[task.picture] = glue_pictures.task(task.picture, task.epochs, task.confusions)
    return drawn


def uniform_loss(found: Results) -> float | None:
    """Loss of a model that has learned nothing: ln(vocabulary), or None where it is not known."""
    size = found.fact("tokenizer", "vocab_size")
    return math.log(size) if isinstance(size, int) and size > 0 else None


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
