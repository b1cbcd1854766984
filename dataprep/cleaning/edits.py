"""The edits of `clean`, in their fixed order: repair, the seeds' cleanings, C4's lines, masking.

A text in; the edited one, and by whom it was changed, out. Everything is optional but the order.
"""

import dataclasses
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from dataprep.cleaning import seed_edits
from dataprep.cleaning.c4 import Cut, remove_lines
from dataprep.cleaning.config import CleanConfig, Masked
from dataprep.cleaning.masking import mask
from dataprep.cleaning.repair import UNREPAIRED, Repair
from pipelines.manifest import Counts

REPAIRS = "repairs"
EDIT = "edit_"
"""Totals of the documents that an edit changed begin so."""
MASKED = typing.get_args(Masked)
_NO_REPAIRS = {UNREPAIRED, "gutenberg", "general_cleaning", "stories", "realnews", "c4_lines", "masked"}
"""What is no fix of ftfy's among the changes."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A text after all edits."""

    text: str
    uncut: str
    """The same without C4's removal of lines."""
    changes: tuple[str, ...]
    """What changed it: fixes of the repair, and names of the other edits."""
    masked: Mapping[str, int]
    """Kind of personal data -> places masked."""
    cut: Cut
    """What C4's removal of lines counted."""


def edit_fields(config: CleanConfig) -> list[pa.Field]:
    """The columns that say what was edited; those of masking only where it is on, or for annotations."""
    kinds = MASKED if config.mask or config.annotate else ()
    return [
        pa.field(REPAIRS, pa.list_(pa.string())),
        *(pa.field(f"masked_{kind}", pa.int32()) for kind in kinds),
    ]


def edit_columns(edited: Edited) -> dict[str, Any]:
    """Their values."""
    return {REPAIRS: list(edited.changes), **{f"masked_{kind}": edited.masked.get(kind, 0) for kind in MASKED}}


def count_edits(columns: Mapping[str, Any], counts: Counts) -> None:
    """Add up the documents that each edit changed, those that ftfy repaired, and the places masked."""
    changes: Sequence[str] = columns[REPAIRS]
    for change in changes:
        counts.total(f"{EDIT}{change}", 1)
    counts.total("repaired", int(not _NO_REPAIRS.issuperset(changes)))
    for kind in MASKED:
        if columns.get(f"masked_{kind}"):
            counts.total(f"masked_{kind}", columns[f"masked_{kind}"])


def count_lines(edited: Edited, counts: Counts) -> None:
    """Add up the lines that C4 took out, for each reason, and the citations: `c4_lines_javascript`, `c4_citations`.

    A run from annotations does not know them: they are no columns.
    """
    for reason, number in edited.cut.counts.items():
        counts.total("c4_citations" if reason == "citations" else f"c4_lines_{reason}", number)


class Edits:
    """The edits that a configuration asks for."""

    def __init__(self, config: CleanConfig) -> None:
        self._repair = (
            Repair(uncurl_quotes=config.uncurl_quotes, **dataclasses.asdict(config.ftfy)) if config.repair else None
        )
        self._others = list(_seed_edits(config))
        self._lines = config.c4.lines
        self._mask = config.mask

    def apply(self, text: str) -> Edited:
        """`text` after all of them."""
        changes: list[str] = []
        if self._repair:
            repaired = self._repair.apply(text)
            text, changes = repaired.text, list(repaired.changes)
        for name, edit in self._others:
            edited = edit(text)
            changes += [name] if edited != text else []
            text = edited
        uncut = text
        cut = remove_lines(text, self._lines)
        changes += ["c4_lines"] if cut.text != uncut else []
        return self._masked(cut, uncut, changes)

    def _masked(self, cut: Cut, uncut: str, changes: list[str]) -> Edited:
        text = cut.text
        if not self._mask:
            return Edited(text, uncut, tuple(changes), {}, cut)
        masked, counts = mask(text, self._mask)
        return Edited(
            masked,
            masked if uncut == text else mask(uncut, self._mask)[0],
            (*changes, *(["masked"] if masked != text else [])),
            counts,
            cut,
        )


def _seed_edits(config: CleanConfig) -> Iterator[tuple[str, Callable[[str], str]]]:
    """The seeds' cleanings. The one for books needs the lines that general_cleaning joins, so it comes first."""
    if config.gutenberg:
        yield "gutenberg", seed_edits.gutenberg
    if config.general_cleaning and not (config.compat and config.repair):  # Megatron returns after ftfy
        yield "general_cleaning", seed_edits.general_cleaning
    if config.stories:
        yield "stories", seed_edits.stories
    if config.realnews:
        yield "realnews", seed_edits.realnews
