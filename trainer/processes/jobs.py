"""The work of a training as the processes of a cluster pass it on: JSON, checked as parameters are, and no pickle."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines.config import check, to_plain
from pipelines.errors import UserError

KEY = "millrace/job"


def send(store: Any, logs: Path | None, arguments: Sequence[Any]) -> None:
    """Tell the processes that wait at torch's `store` the folder of their logs, and their job."""
    jobs = [to_plain(each) for each in arguments if dataclasses.is_dataclass(each)]
    store.set(KEY, json.dumps({"logs": logs and str(logs), "jobs": jobs}))


def receive(store: Any, kind: type[Any]) -> tuple[Path | None, Any]:
    """Wait for the folder of the logs and the job, of a dataclass. Raises UserError if anything else arrives."""
    try:
        message = json.loads(store.get(KEY))
        logs, (job,) = message["logs"] and Path(message["logs"]), message["jobs"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"rank 0 sent no job ({error}); start all processes from the same code") from None
    return logs, check(kind, job, "job", "rank 0")
