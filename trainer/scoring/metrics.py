"""From likelihoods to scores, by the conventions of lm-evaluation-harness; those that are not its own are named so.

| metric | score | |
| --- | --- | --- |
| choices | acc | the right answer has the highest likelihood |
| | acc_norm | ... the highest likelihood by character, without the space before it |
| | acc_bytes | ... by byte |
| | answer_bits_per_byte | mean over documents of the right answer's bits by byte; not of the harness |
| likelier | acc | as above |
| last_word | acc, perplexity | every token of the last word is the likeliest; exp of the mean loss by word |
| | last_token_acc, last_token_perplexity | the same of the text's last token alone, as in GPT-2's paper |
| rolling | word_perplexity, byte_perplexity, bits_per_byte | loss of all texts by their words and bytes |
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelines.task_requests import TaskRequest

Array = np.ndarray[Any, Any]
CENTRED = {
    "hellaswag": ("acc_norm", 0.25),
    "lambada_openai": ("acc", 0.0),
    "piqa": ("acc_norm", 0.5),
    "arc_easy": ("acc_norm", 0.25),
    "arc_challenge": ("acc_norm", 0.25),
    "winogrande": ("acc", 0.5),
    "openbookqa": ("acc_norm", 0.25),
    "boolq": ("acc", 0.62),
    "copa": ("acc", 0.5),
}
"""Tasks of CORE (DataComp-LM's) -> their score here, and what is subtracted: the score of guessing, of BoolQ that of
its more frequent answer, as CORE has it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said to one pair."""

    loss: float
    """The sum of its tokens' negative log-likelihoods, in nats."""
    greedy: bool
    """Whether each of its tokens was the likeliest."""
    last_loss: float
    last_greedy: bool
    """The same of its last token alone."""


def answers(places: Sequence[Sequence[range]], values: Array) -> list[list[Answer]]:
    """Return the answers of each document; `values`: of all windows, from `likelihoods`."""
    return [[_answer(values[place.start : place.stop]) for place in places_of] for places_of in places]


def _answer(values: Array) -> Answer:
    last = values[-1]
    return Answer(math.fsum(-values[:, 0]), bool(values[:, 1].all()), -float(last[2]), bool(last[3]))


def row_scores(request: TaskRequest, said: Sequence[Answer]) -> dict[str, float]:
    """Return what one document adds to the scores of its task; `aggregate` says how."""
    losses = np.array([answer.loss for answer in said])
    if request.metric == "rolling":
        return {"loss": said[0].loss}
    if request.metric == "last_word":
        (only,) = said
        numbers = {"acc": only.greedy, "loss": only.loss}
        return {**numbers, "last_token_acc": only.last_greedy, "last_token_loss": only.last_loss}
    right = {"acc": float(losses.argmin() == request.gold)}
    if request.metric == "likelier":
        return right
    texts = [continuation.removeprefix(" ") for _, continuation in request.pairs]
    characters, sizes = (np.array([max(1, len(each)) for each in some]) for some in (texts, _encoded(texts)))
    return {
        **right,
        "acc_norm": float((losses / characters).argmin() == request.gold),
        "acc_bytes": float((losses / sizes).argmin() == request.gold),
        "answer_bits_per_byte": float(losses[request.gold] / sizes[request.gold] / math.log(2)),
    }


def _encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]


def aggregate(requests: Sequence[TaskRequest], rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the scores of a task, or of some of its documents, from those of the documents."""
    if not rows:
        return {"docs": 0}
    sums = {name: math.fsum(row[name] for row in rows) for name in rows[0]}
    if requests[0].metric == "rolling":
        words, size = sum(request.num_words for request in requests), sum(request.num_bytes for request in requests)
        return {
            "docs": len(rows),
            "word_perplexity": _exp(sums["loss"] / words),
            "byte_perplexity": _exp(sums["loss"] / size),
            "bits_per_byte": sums["loss"] / size / math.log(2),
        }
    means = {name: value / len(rows) for name, value in sums.items()}
    named = {"loss": "perplexity", "last_token_loss": "last_token_perplexity"}
    return {
        "docs": len(rows),
        **{named.get(name, name): _exp(value) if name in named else value for name, value in means.items()},
    }


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def task_scores(requests: Sequence[TaskRequest], rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the scores of a task, and of each of its groups if it has any."""
    groups: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.group, []).append(number)
    whole = {"metric": requests[0].metric, **aggregate(requests, rows)} if requests else {"docs": 0}
    if {*groups} <= {""}:
        return whole
    parts = {
        name: aggregate([requests[n] for n in numbers], [rows[n] for n in numbers]) for name, numbers in groups.items()
    }
    return {**whole, "groups": dict(sorted(parts.items()))}


def headline(scores: Mapping[str, Any]) -> str:
    """Return the name of the score that a line shows of a task."""
    return next((name for name in ("acc_norm", "acc", "bits_per_byte") if name in scores), "docs")


def centred_mean(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the mean over the tasks of CENTRED that were scored of (score - guessing) / (1 - guessing).

    It is not CORE, which has 22 tasks with examples before the question. None if no such task was scored.
    """
    parts = {
        name: (tasks[name][score] - guessing) / (1 - guessing)
        for name, (score, guessing) in CENTRED.items()
        if name in tasks and tasks[name].get(score) is not None
    }
    return {"value": math.fsum(parts.values()) / len(parts), "tasks": [*parts]} if parts else None
