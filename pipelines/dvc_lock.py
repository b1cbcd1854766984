"""What a stage knows of DVC, which runs it: its entry in dvc.lock.

DVC deletes the outputs of a stage before it runs it, also the stats (`persist: true` would keep them, but such a stage
is never restored from DVC's cache). A stage that refuses its parameters or fails would leave them deleted, so each
stage first puts them back as dvc.lock knows them.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.config import parse_yaml
from pipelines.errors import UserError
from pipelines.outputs import provenance_path

DVC_LOCK = Path("dvc.lock")
DVC_CACHE = Path(".dvc/cache/files/md5")


def lock_entry() -> dict[str, Any]:
    """Return what dvc.lock says of the stage that DVC runs now; nothing outside of DVC, or if it never ran."""
    name = os.environ.get("DVC_STAGE")
    if not name or not DVC_LOCK.exists():
        return {}
    return _stages(DVC_LOCK, lambda text: _only(text, name)).get(name, {})


def lock_entries(lock: Path) -> dict[str, Any]:
    """Return what a dvc.lock says of each stage; nothing if it is not there."""
    return _stages(lock, str) if lock.is_file() else {}


def _stages(lock: Path, part: Callable[[str], str]) -> dict[str, Any]:
    from pipelines.yaml_bounds import DVC_LOCK as BOUNDS

    return parse_yaml(lock, BOUNDS, part).get("stages") or {}


def _only(text: str, stage: str) -> str:
    """Return of the lock's text only this stage, as DVC writes it; all if it is not found in that form.

    A stage would otherwise take seconds to begin in a project whose lock has a megabyte.
    """
    head = re.search(r"^stages:\n", text, re.MULTILINE)
    entry = re.search(rf"^  {re.escape(stage)}:\n(?:   .*\n)+", text, re.MULTILINE)
    return head[0] + entry[0] if head and entry else text


def put_back_stats() -> None:
    """Write the stats that DVC has deleted as they were, from the stage's provenance or else from DVC's cache."""
    for out in lock_entry().get("outs", []):
        path = Path(out["path"])
        if path.suffix != ".json" or path.exists():
            continue
        for content in _copies(path, str(out.get("md5"))):
            if hashlib.md5(content, usedforsecurity=False).hexdigest() == out.get("md5"):
                with store.create(path, durable=False) as file:
                    file.write(content)
                break


def _copies(stats: Path, md5: str) -> Iterator[bytes]:
    """Yield the contents that a stats file may have had."""
    provenance = provenance_path(stats)
    with contextlib.suppress(UserError, KeyError, TypeError):  # it is not there, or of an earlier version
        yield store.json_bytes(store.read_json(provenance)["stats"])
    cached = DVC_CACHE / md5[:2] / md5[2:]
    if cached.is_file():
        yield cached.read_bytes()
