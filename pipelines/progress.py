"""Progress of work: a bar on a terminal; elsewhere a log line every 30 seconds and at the end of long work."""

import logging
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import ProgressColumn

T = TypeVar("T")
I = TypeVar("I", contravariant=True)  # noqa: E741 - the item

logger = logging.getLogger(__name__)

LINE_SECONDS = 30.0
"""Time between two lines in the log; shorter work writes none."""
REFRESH_SECONDS = 0.1
"""Time between two updates of the bar; redrawing it for each item would cost more than many items do."""
NARROWEST_BAR, WIDEST_BAR = 8, 40
"""Widths in terminal columns."""


class Detail(Protocol[I]):
    """Summarizes the items beyond their number: it receives every item, and is asked for its text now and then."""

    def add(self, item: I, /) -> None:
        """Take note of a finished item."""
        ...

    def text(self, seconds: float, /) -> str:
        """Return the summary after this many seconds, such as `3.6 MB/s, 100 pages, http_status 20`."""
        ...


def track(
    items: Iterable[T],
    *,
    what: str,
    total: int,
    unit: str = "shards",
    done: int = 0,
    detail: Detail[T] | None = None,
) -> Iterator[T]:
    """Yield `items`; show `what`, how many of `total` are done, the rate, the time left, and `detail`."""
    started = shown = time.monotonic()
    number = 0
    with _bar(what, total, unit, done) if sys.stderr.isatty() else _log(what, total, unit, done) as (show, interval):
        for number, item in enumerate(items, start=1):
            if detail:
                detail.add(item)
            yield item
            now = time.monotonic()
            if now - shown >= interval:
                shown = now
                show(number, now - started, detail.text(now - started) if detail else "")
        seconds = time.monotonic() - started
        if seconds >= interval:
            show(number, seconds, detail.text(seconds) if detail else "")


@contextmanager
def _log(what: str, total: int, unit: str, done: int) -> Generator[tuple[Any, float]]:
    def show(number: int, seconds: float, detail: str) -> None:
        left = seconds * (total - done - number) / number if number else 0.0
        parts = [f"{done + number:,} of {total:,} {unit}", f"{number / seconds:,.1f}/s", detail, f"{_time(left)} left"]
        logger.info("%s: %s", what, ", ".join(part for part in parts if part))

    yield show, LINE_SECONDS


@contextmanager
def _bar(what: str, total: int, unit: str, done: int) -> Generator[tuple[Any, float]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(_line_column(unit, console), console=console, transient=True) as progress:
        task = progress.add_task(what, total=total, completed=done, rate="", detail="")

        def show(number: int, seconds: float, detail: str) -> None:
            progress.update(task, completed=done + number, rate=f"{number / seconds:,.1f}/s", detail=detail)

        yield show, REFRESH_SECONDS


def _line_column(unit: str, console: "Console") -> "ProgressColumn":
    """Return one column that is the whole line: rich would truncate every column, even the count."""
    from rich.progress import BarColumn, ProgressColumn, Task, TimeRemainingColumn
    from rich.table import Table
    from rich.text import Text

    time_left = TimeRemainingColumn()

    class Line(ProgressColumn):
        def render(self, task: Task) -> Table:
            count = f"{int(task.completed):>{len(str(task.total))}}/{task.total} {unit}"
            parts = [count, task.fields["rate"], str(time_left.render(task)), task.fields["detail"]]
            bar_width, shown = fit_line(task.description, parts, console.width - 1)
            line = Table.grid(padding=(0, 1))
            texts = [Text(text, no_wrap=True) for text in (task.description, shown)]
            line.add_row(texts[0], *([BarColumn(bar_width).render(task)] if bar_width else []), texts[1])
            return line

    return Line()


def fit_line(what: str, parts: Sequence[str], width: int) -> tuple[int, str]:
    """Return (columns for the bar, the text after it) for a line of `width` columns.

    The bar gives way first, then the end of the detail (the last of `parts`), then the parts before it. The count,
    the first of `parts`, always stays.
    """
    count, *others, detail = parts
    head, *tail = detail.split(", ")
    shown = count
    for suffix in [f" {part}" for part in (*others, head) if part] + [f", {part}" for part in tail]:
        if len(what) + 1 + len(shown + suffix) > width:
            return 0, shown
        shown += suffix
    room = width - len(what) - len(shown) - 2
    return (min(room, WIDEST_BAR) if room >= NARROWEST_BAR else 0), shown


def _time(seconds: float) -> str:
    """Format a time as `1 h 05 min`, `5 min` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min" if minutes else f"{rest} s"
