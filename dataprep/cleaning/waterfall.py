"""The waterfall: how many documents came to each rule, and how many and how large were those it rejected."""

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dataprep.cleaning.checks import Check
from dataprep.cleaning.edits import EDIT
from dataprep.cleaning.language_audit import AGREED, AUDITED
from pipelines.manifest import Counts

if TYPE_CHECKING:
    from rich.table import Table

logger = logging.getLogger(__name__)

WIDTH = 80
"""Most columns of the tables."""
BROKEN_INPUT = "broken_input"
"""The first row: lines and files of the input that held no document."""
_NAME_WIDTH = 30


def rejected_bytes(rule: str) -> str:
    """The name of the total that adds up the bytes of the documents that `rule` rejected."""
    return f"rejected_bytes_{rule}"


def rules(checks: Sequence[Check], counts: Counts) -> list[dict[str, Any]]:
    """A row for broken input, if there is any, and one per active rule, in order; shares are of all that came in."""
    left = counts.rows_in
    broken = sum(counts.rejected.values()) - sum(counts.rejected.get(check.name, 0) for check in checks)
    rejections = [(check.name, check.threshold, counts.rejected.get(check.name, 0)) for check in checks]
    rows: list[dict[str, Any]] = []
    for name, threshold, rejected in [*([(BROKEN_INPUT, "", broken)] if broken else []), *rejections]:
        rows.append(
            {
                "rule": name,
                "threshold": threshold,
                "in": left,
                "rejected": rejected,
                "share": round(rejected / counts.rows_in, 6) if counts.rows_in else 0.0,
                "bytes": counts.totals.get(rejected_bytes(name), 0),
            }
        )
        left -= rejected
    return rows


def edits(counts: Counts) -> list[dict[str, Any]]:
    """A row per kind of edit: the documents that it changed."""
    changed = {name.removeprefix(EDIT): n for name, n in counts.totals.items() if name.startswith(EDIT)}
    return [{"edit": name, "changed": number} for name, number in sorted(changed.items())]


def audit(counts: Counts) -> dict[str, int]:
    """How many documents the engine read whole for comparison, and how many decisions are alike; 0 in mode exact."""
    return {"audited": counts.totals.get(AUDITED, 0), "agreed": counts.totals.get(AGREED, 0)}


def show(stats: Mapping[str, Any], documents: int) -> bool:
    """Print the stats on standard error where notices are wanted; whether the rejections were among them."""
    if not logger.isEnabledFor(logging.INFO):
        return False
    from rich.console import Console

    terminal = sys.stderr.isatty()
    console = Console(stderr=True, highlight=False)
    console.width = min(console.width, WIDTH) if terminal else WIDTH
    edited, judged, audited = stats["edits"], stats["waterfall"], stats["language_audit"]
    if edited:
        rows = [(row["edit"], f"{row['changed']:,}", _percent(row["changed"] / documents)) for row in edited]
        console.print(_table(("edit", "changed", "share"), rows, lines=terminal))
    told = [row for row in judged if row["rejected"]]
    if told:
        heads = ("rule", "threshold", "in", "rejected", "share", "size")
        console.print(_table(heads, map(_cells, told), lines=terminal))
        if len(told) < len(judged):
            console.print(f"rules that rejected nothing: {len(judged) - len(told)}")
    if audited["audited"]:
        console.print(f"language audit: {audited['agreed']:,} of {audited['audited']:,} decisions agree with exact")
    return bool(told)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, lines: bool) -> "Table":
    """A table whose words are folded where there is no room, and its figures never."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD if lines else None, pad_edge=False)
    for head in heads:
        words = head in ("edit", "rule", "threshold")
        table.add_column(head, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for row in rows:
        table.add_row(*row)
    return table


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the waterfall as people read it."""
    from rich.filesize import decimal

    name = _folded(row["rule"])
    size = decimal(row["bytes"]) if row["bytes"] else ""
    return (name, row["threshold"], f"{row['in']:,}", f"{row['rejected']:,}", _percent(row["share"]), size)


def _folded(name: str) -> str:
    """A long name in two lines, broken after an underscore."""
    end = name.rfind("_", 0, _NAME_WIDTH) + 1
    return name if len(name) <= _NAME_WIDTH else f"{name[:end]}\n  {name[end:]}"


def _percent(share: float) -> str:
    return f"{share:.2%}"
