"""The scores of a model as tables, beside those of GPT-2 that others published, each with how it was measured."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Rows = list[tuple[str, ...]]
HARNESS = "lm-evaluation-harness, without examples"
PAPER_LAMBADA = "GPT-2's paper: the text's last token, with a filter of stop words that is not published"
PAPER_WIKITEXT = "GPT-2's paper: WikiText-{}, which is the same text, normalised in another way"


@dataclass(frozen=True, slots=True)
class Published:
    """A score of OpenAI's weights of GPT-2 124M that others published."""

    task: str
    measure: str
    value: float
    convention: str = HARNESS
    compares: bool = True
    """Whether our measure of this name is measured in the same way."""


PUBLISHED = (
    Published("hellaswag", "acc", 0.2892),
    Published("hellaswag", "acc_norm", 0.3114),
    Published("lambada_openai", "acc", 0.3256),
    Published("lambada_openai", "perplexity", 40.06),
    Published("lambada_openai", "acc", 0.4599, PAPER_LAMBADA, compares=False),
    Published("lambada_openai", "perplexity", 35.13, PAPER_LAMBADA, compares=False),
    Published("wikitext", "word_perplexity", 37.37),
    Published("wikitext", "bits_per_byte", 0.9769),
    Published("wikitext", "word_perplexity", 29.41, PAPER_WIKITEXT.format("2"), compares=False),
    Published("wikitext", "word_perplexity", 37.50, PAPER_WIKITEXT.format("103"), compares=False),
)
"""Those of the harness are from its issues 2159 and 911 and from workofart/ml-by-hand, release
gpt2-124m-openwebtext-56000."""
DOCUMENTS = {
    "hellaswag": 10_042,
    "lambada_openai": 5_153,
    "wikitext": 62,
    "piqa": 1_838,
    "arc_easy": 2_376,
    "arc_challenge": 1_172,
    "winogrande": 1_267,
    "openbookqa": 500,
    "boolq": 3_270,
    "sciq": 1_000,
    "copa": 100,
    "blimp": 67_000,
}
"""How many documents each task has whole, at the commits of `dataprep.score_requests`."""
MEASURES = (
    *("acc", "acc_norm", "answer_bits_per_byte", "perplexity", "last_token_acc", "last_token_perplexity"),
    *("word_perplexity", "bits_per_byte"),
)
SUBSETS = {"clean": "clean", "kept_clean": "unseen"}
"""Documents that are in no document before decontamination, and in none after it; what tables call them."""
NOTE = "GPT-2 124M: OpenAI's weights. These were measured in other ways, and compare with none of the scores above:"


def table(scores: Mapping[str, Any], limited: str = "") -> str:
    """Return what `score` measured as Markdown. `limited`: what made it a trial."""
    head, rows = score_table(scores)
    lines = [f"**A trial on a part of the data: {limited}.**\n\n"] if limited else []
    lines += [_line(head), _line(["---"] * len(head)), *map(_line, rows)]
    if centred := centred_words(scores):
        lines.append(f"\n{centred}\n")
    other_head, others = other_conventions(scores)
    if others:
        lines += [f"\n{NOTE}\n\n", _line(other_head), _line(["---"] * len(other_head)), *map(_line, others)]
    return "".join(lines)


def _line(cells: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def score_table(scores: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    """Return the head and the rows of a table of what `score` measured, beside GPT-2's where it compares."""
    tasks: Mapping[str, Mapping[str, Any]] = scores["tasks"]
    subsets = [name for name in SUBSETS if any(name in task for task in tasks.values())]
    head = ("task", "documents", "measure", "this model", *(SUBSETS[name] for name in subsets))
    return (*head, "GPT-2 124M", "measured by"), list(_rows(tasks, subsets))


def other_conventions(scores: Mapping[str, Any]) -> tuple[tuple[str, ...], Rows]:
    """Return GPT-2's published scores of the tasks that were scored which compare with none of ours."""
    rows = [
        (each.task, each.measure, shown(each.value), each.convention)
        for each in PUBLISHED
        if not each.compares and each.task in scores["tasks"]
    ]
    return ("task", "measure", "GPT-2 124M", "measured by"), rows


def centred_words(scores: Mapping[str, Any]) -> str:
    """Return the combined score with what it is of; empty if no task of it was scored."""
    centred = scores["centred_mean"]
    return f"centred_mean of {', '.join(centred['tasks'])}: {shown(centred['value'])}" if centred else ""


def _rows(tasks: Mapping[str, Mapping[str, Any]], subsets: list[str]) -> Iterator[tuple[str, ...]]:
    published = {(each.task, each.measure): each for each in PUBLISHED if each.compares}
    for name, task in tasks.items():
        for measure in (measure for measure in MEASURES if measure in task):
            others = [shown(task.get(subset, {}).get(measure)) for subset in subsets]
            theirs = published.get((name, measure))
            beside = (shown(theirs.value), theirs.convention) if theirs else ("", "")
            yield (name, documents(name, task), measure, shown(task[measure]), *others, *beside)


def documents(name: str, task: Mapping[str, Any]) -> str:
    """Return how many documents of a task were scored: `10,042`, or `3 of 10,042` if it has more."""
    whole = DOCUMENTS.get(name, task["docs"])
    return f"{task['docs']:,}" if task["docs"] == whole else f"{task['docs']:,} of {whole:,}"


def is_whole(name: str, task: Mapping[str, Any]) -> bool:
    """Return whether a task was scored as others score it: every document of it."""
    return DOCUMENTS.get(name) == task["docs"]


def shown(value: float | None) -> str:
    """Return a score as the tables show it."""
    return "" if value is None else f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"
