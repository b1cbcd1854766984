"""The scores of a model as a table in Markdown, beside those of GPT-2 that were measured in the same way."""

from collections.abc import Iterator, Mapping
from typing import Any

PUBLISHED = {
    "hellaswag": {"acc": 0.2892, "acc_norm": 0.3114},
    "lambada_openai": {"acc": 0.3256, "perplexity": 40.06},
    "wikitext": {"word_perplexity": 37.37, "bits_per_byte": 0.9769},
}
"""Task -> scores of OpenAI's weights of GPT-2 124M in lm-evaluation-harness, without examples (its issues 2159 and 911;
workofart/ml-by-hand, release gpt2-124m-openwebtext-56000)."""
MEASURES = (
    *("acc", "acc_norm", "answer_bits_per_byte", "perplexity", "last_token_acc", "last_token_perplexity"),
    *("word_perplexity", "bits_per_byte"),
)
SUBSETS = ("clean", "kept_clean")
"""Documents that are in no document before decontamination, and in none after it."""
NOTE = (
    "GPT-2: OpenAI's weights with 124M parameters in lm-evaluation-harness, without examples. Its paper's LAMBADA, "
    "45.99 %, is of last tokens with a filter of stop words, and compares with none of these."
)


def table(scores: Mapping[str, Any]) -> str:
    """Return the table of what `score` measured."""
    subsets = [name for name in SUBSETS if any(name in task for task in scores["tasks"].values())]
    titles = ["task", "documents", "measure", "this model", *subsets, "GPT-2 124M"]
    lines = [titles, ["---"] * len(titles), *_rows(scores["tasks"], subsets)]
    if centred := scores["centred_mean"]:
        what = f"centred_mean of {', '.join(centred['tasks'])}"
        lines.append([what, "", "", _number(centred["value"]), *("" for _ in subsets), ""])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + f"\n{NOTE}\n"


def _rows(tasks: Mapping[str, Mapping[str, Any]], subsets: list[str]) -> Iterator[list[str]]:
    for name, task in tasks.items():
        for measure in (measure for measure in MEASURES if measure in task):
            others = [_number(task.get(subset, {}).get(measure)) for subset in subsets]
            published = _number(PUBLISHED.get(name, {}).get(measure))
            yield [name, f"{task['docs']:,}", measure, _number(task[measure]), *others, published]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}" if abs(value) < 10 else f"{value:,.2f}"
