"""Texts from outside (file names, servers, documents) on a terminal: on one line, and with nothing that controls it."""

import re
import sys
from collections.abc import Mapping

from pipelines.called import as_called

MANY = 4
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, other line breaks, and what turns the direction of a text."""
_UNPRINTABLE_RUN = re.compile(r"(.)\1*", re.DOTALL)
_SLASH = re.compile(r"\b(s3|hf):/(?=[^/])")
"""Of an address that was made a path."""
_ONE = re.compile("(?<=ch)es$|(?<=ss)es$|s$")
"""What `batches`, `processes` and `shards` have more than one of them."""
_called: dict[str, str] = {}
"""Folder, with a slash at its end -> what messages call it."""


def call_in_messages(names: Mapping[str, str]) -> None:
    """Have messages call what lies below these folders by other names from now on: copies by their addresses."""
    _called.update(names)


def visible(text: str) -> str:
    """Return `text` on one line that cannot control a terminal: unprintable runs as an escape with their length."""
    text = _SLASH.sub(r"\1://", text)
    for folder, name in _called.items():
        if folder in text:  # not of scratch, which people remove by its path
            text = re.sub(rf"{re.escape(folder)}(?!\S*/?\.work/)", lambda _, name=name: name, text)
    return text if text.isprintable() else _UNPRINTABLE_RUN.sub(lambda match: _escaped(match[0]), text)


def without_controls(text: str) -> str:
    """Return a text of several lines with its control characters escaped, so that no terminal or page obeys them."""
    return _CONTROLS.sub(lambda control: ascii(control[0])[1:-1], text)


def counted(number: int, units: str) -> str:
    """Return `1 shard`, or `2,048 shards` for a number of other `units`."""
    return f"{number:,} {in_number(units, number)}"


def in_number(units: str, number: float) -> str:
    """Return `units`, or the word for one of them."""
    return _ONE.sub("", units) if number == 1 else units


def they_are(number: int, units: str) -> str:
    """Return `1 line is`, or `2,048 lines are`."""
    return f"{counted(number, units)} {'is' if number == 1 else 'are'}"


def _escaped(run: str) -> str:
    """Return a run of one character, escaped if it is unprintable."""
    if run[0].isprintable():
        return run
    escape = ascii(run[0])[1:-1]
    return escape * len(run) if len(run) < MANY else f"{escape}×{len(run)} "


def print_error(error: object) -> None:
    """Print what a command ends with as one line on standard error; commands in it are named as this one was."""
    print(f"error: {visible(as_called(str(error)))}", file=sys.stderr)


def print_line(line: str) -> None:
    """Print one line on standard output."""
    print(visible(line))
