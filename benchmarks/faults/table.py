"""What a campaign has seen: one row for each case, and the table of all rows."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

HEADER = ("case", "runs", "kills", "outcomes", "lost", "tracebacks", "other bytes", "wrong ends")
SHOWN = 20
"""Problems of a case that are printed."""


@dataclass
class Row:
    """One case: how often it was run, how the commands ended, and what went wrong."""

    case: str
    runs: int = 0
    """Runs from their start to the end of the work, through all kills; for hostile files, the inputs."""
    kills: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    """How commands ended (`exit 0`, `SIGKILL`), and how often they were only paused or refused an error."""
    lost: list[str] = field(default_factory=list[str])
    """Outputs that were there before and are damaged or gone, and work that no rerun could finish."""
    tracebacks: list[str] = field(default_factory=list[str])
    different: list[str] = field(default_factory=list[str])
    """Outputs with other bytes than those of the undisturbed run."""
    wrong: list[str] = field(default_factory=list[str])
    """Other ends than those that are documented: a status, a message of several lines, too much time or memory."""
    skipped: str = ""
    """Why the case could not be run here."""

    @property
    def problems(self) -> list[str]:
        """All that went wrong, each with its kind."""
        kinds = {
            "lost": self.lost,
            "traceback": self.tracebacks,
            "other bytes": self.different,
            "wrong end": self.wrong,
        }
        return [f"{kind}: {what}" for kind, found in kinds.items() for what in found]

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        if self.skipped:
            return (self.case, "", "", f"skipped: {self.skipped}", "", "", "", "")
        seen = ", ".join(f"{name} {number:,}" for name, number in sorted(self.outcomes.items()))
        counts = (self.lost, self.tracebacks, self.different, self.wrong)
        return (self.case, f"{self.runs:,}", f"{self.kills:,}", seen, *(str(len(found)) for found in counts))


def table(rows: Iterable[Row]) -> str:
    """All rows and their sums, in Markdown."""
    rows = list(rows)
    total = Row("all", sum(row.runs for row in rows), sum(row.kills for row in rows))
    for row in rows:
        total.lost += row.lost
        total.tracebacks += row.tracebacks
        total.different += row.different
        total.wrong += row.wrong
    lines = [HEADER, ("---",) * len(HEADER), *(row.cells() for row in [*rows, total])]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def problems(rows: Iterable[Row]) -> list[str]:
    """A line for each of the first problems of each case."""
    lines: list[str] = []
    for row in rows:
        found = row.problems
        lines += [f"{row.case}: {problem}" for problem in found[:SHOWN]]
        lines += [f"{row.case}: and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return lines
