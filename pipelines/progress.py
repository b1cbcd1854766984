"""How work is going: a bar on a terminal; elsewhere a line in the log every half minute and at the end of long work."""

import logging
import sys
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
I = TypeVar("I", contravariant=True)  # noqa: E741 - the item

logger = logging.getLogger(__name__)

LINE_SECONDS = 30.0
"""Between two lines in the log; work that takes no longer writes none."""
REFRESH_SECONDS = 0.1
"""Between two changes of the bar; to redraw it for each item would cost more than many items do."""


class Detail(Protocol[I]):
    """What else there is to say: it is told of every item, and asked for its text now and then."""

    def add(self, item: I, /) -> None:
        """Take note of an item that is done."""
        ...

    def text(self, seconds: float, /) -> str:
        """What was noted in so many seconds, such as `3.6 MB/s, 100 pages, http_status 20`."""
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
    """Yield `items`; show `what`, how many of `total` there are, the rate, the time left, and `detail`."""
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
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total, completed=done, rate="", detail="")

        def show(number: int, seconds: float, detail: str) -> None:
            progress.update(task, completed=done + number, rate=f"{number / seconds:,.1f}/s", detail=detail)

        yield show, REFRESH_SECONDS


def _time(seconds: float) -> str:
    """`1 h 05 min`, `5 min` or `12 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min" if minutes else f"{rest} s"
