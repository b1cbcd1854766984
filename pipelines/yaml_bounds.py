"""A YAML parser with bounds: a few bytes could otherwise take all memory, or minutes.

It counts events before they become values, so that neither depth nor aliases have cost anything when it refuses them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent, ScalarEvent
from ruamel.yaml.parser import Parser

MOST_BYTES = 200_000
"""Of a file of parameters; of the slowest text the parser reads about 50 kB a second."""
MOST_DEPTH = 50
MOST_DIGITS = 1000
"""Python prints no number with many more."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a file may have."""

    bytes: int
    values: int
    """Once each alias stands for all that it names."""
    usual: str
    """How long such files are, for who made one that is longer."""


PARAMETERS = Bounds(MOST_BYTES, 20_000, "parameters take a few thousand")
DVC_LOCK = Bounds(20_000_000, 2_000_000, "a thousand stages take two million")
"""DVC writes this one: 1 to 2 kB for each stage, of which it reads half a million bytes a second."""


def bounded_text(path: Path, bounds: Bounds) -> str:
    """Return the text of a file, which may be a pipe or a device; raise ValueError if it is too long or not UTF-8."""
    with path.open("rb") as file:
        data = file.read(bounds.bytes + 1)
    if len(data) > bounds.bytes:
        raise ValueError(f"more than {bounds.bytes:,} bytes; {bounds.usual}")
    return data.decode("utf-8")


class BoundedParser(Parser):
    """The parser of ruamel.yaml; raises ValueError for what is too deep, or too much once aliases are filled in."""

    bounds = PARAMETERS

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._sizes: dict[str, int] = {}  # anchor -> values that an alias to it stands for
        self._open: list[tuple[str | None, int]] = []  # anchors of the open collections, and the values before them
        self._values = 0

    def get_event(self) -> Any:
        """Return the next event."""
        event: Any = super().get_event()
        if isinstance(event, CollectionEndEvent):
            anchor, before = self._open.pop()
            self._sizes |= {anchor: self._values - before} if anchor else {}
        elif isinstance(event, NodeEvent):
            self._count(event)
        return event

    def _count(self, event: Any) -> None:
        line = f"line {event.start_mark.line + 1}"
        if isinstance(event, AliasEvent) and any(anchor == event.anchor for anchor, _ in self._open):
            raise ValueError(f"{line}: *{event.anchor} stands inside what it names")
        self._values += self._sizes.get(event.anchor, 1) if isinstance(event, AliasEvent) else 1
        if isinstance(event, CollectionStartEvent):
            self._open.append((event.anchor, self._values - 1))
        if len(self._open) > MOST_DEPTH:
            raise ValueError(f"{line}: lists or keys inside each other, more than {MOST_DEPTH} deep")
        if self._values > self.bounds.values:
            raise ValueError(f"{line}: more than {self.bounds.values:,} values, those included that aliases repeat")
        if isinstance(event, ScalarEvent) and event.implicit[0] and _is_long_number(event.value):
            raise ValueError(f"{line}: a number of {len(event.value):,} digits")


def parser_within(bounds: Bounds) -> type[BoundedParser]:
    """Return the parser of a file with these bounds."""
    return type("Parser", (BoundedParser,), {"bounds": bounds})


def _is_long_number(text: str) -> bool:
    return len(text) > MOST_DIGITS and text.lstrip("+-")[:1].isdigit()
