"""Encodes the documents of request files, task by task."""

import logging
from collections.abc import Sequence
from pathlib import Path

from pipelines.errors import UserError
from pipelines.task_requests import read_requests
from pipelines.terminal import they_are
from trainer.scoring.windows import Encoded, Encoder

logger = logging.getLogger(__name__)


def encode_tasks(files: Sequence[Path], encoder: Encoder, limit: int = 0, *, says: bool = True) -> dict[str, Encoded]:
    """Return the encoded documents of each task, or the first `limit` ones of each.

    `says`: log what is cut off or left out.
    """
    tasks: dict[str, Encoded] = {}
    for file in files:
        requests = list(read_requests(file, limit))
        name = requests[0].task
        kinds = {(request.task, request.metric) for request in requests}
        if len(kinds) > 1:
            raise UserError(
                f"{file}: mixes {', '.join(f'{task} ({metric})' for task, metric in sorted(kinds))}; split it"
            )
        if name in tasks:
            raise UserError(f"{file}: a second file of {name}; leave one out")
        tasks[name] = encoder.add(requests)
        if says:
            _say(name, tasks[name], sum(len(request.pairs) for request in requests))
    return tasks


def _say(name: str, encoded: Encoded, pairs: int) -> None:
    if encoded.truncated:
        logger.warning(
            "score: %s: %d of %d contexts are longer than the model takes and lose tokens on their left, as in "
            "lm-evaluation-harness",
            *(name, encoded.truncated, pairs),
        )
    for reason, count in encoded.skipped.items():
        why = {"too_long": "has an answer longer than the model takes", "no_tokens": "has an answer without tokens"}
        logger.warning(
            "score: %s: %s left out, since each %s; lm-evaluation-harness would fail",
            *(name, they_are(count, "documents"), why[reason]),
        )
