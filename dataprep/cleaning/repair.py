"""ftfy with all its switches, only where a text needs it, and the names of the fixes that changed something.

text -> `Repaired(text, changes)`; the text equals `ftfy.fix_text(text, config)` for every combination of switches
and every text but those below. ftfy 6.3.1 (`__init__.py`: fix_text, fix_and_explain) repairs segment by segment: a
line, or a million characters of a longer one. One scan finds the lines in which it could do more than straighten
quotes (`_doubts` says why no other can change otherwise). Of those, what one round of its fixers settles, and entities
within entities in ASCII, are done directly; the rest goes through its chain of fixers, round by round.

What a round makes can give the next one work (`&amp;amp;`), so ftfy takes time quadratic in such a segment: 20 s for
80,000 characters. Here, a segment in which the rounds would read more than MAX_ROUNDS times its length is left as it
is and its text counted as `UNREPAIRED`, the same on every machine. ftfy's decoder of CESU-8 and Java's nulls copies
what is left of the segment at each of them, which MAX_SEGMENT keeps to seconds. Memory is a few copies of the text.
"""

import functools
import heapq
import itertools
import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import ftfy
from ftfy import chardata, fixes

from dataprep.cleaning.config import FtfySwitches
from dataprep.cleaning.entities import unescape_fully
from dataprep.cleaning.mojibake import (
    SUSPECT_CHARACTERS,
    SUSPECT_CONDITION,
    decode,
    is_mojibake,
    read_as_windows_1252,
)
from dataprep.cleaning.normalization import normalize

MAX_SEGMENT = ftfy.TextFixerConfig().max_decode_length
"""Characters of one line that ftfy repairs at a time (1,000,000); a longer line is cut into such pieces."""

MAX_ROUNDS = 32
"""How many times its own length (of 1,000 characters at least) the rounds on a segment may read.

ftfy's own cases and 1,000 documents of OpenWebText need 5.
"""
UNREPAIRED = "unrepaired"
"""Recorded among the changes of a text with a segment that needs more rounds; it is left as it is."""

FIX_NAMES = {
    "fix_c1_controls": "c1_controls",
    "remove_terminal_escapes": "terminal_escapes",
    "fix_latin_ligatures": "ligatures",
    "fix_character_width": "width",
    "uncurl_quotes": "quotes",
    "fix_line_breaks": "line_breaks",
    "fix_surrogates": "surrogates",
    "remove_control_chars": "control_characters",
}
"""ftfy's fixer of characters -> the name recorded in `Repaired.changes`; the others are below."""
_ENTITIES, _ENCODING, _NORMALIZATION = "entities", "encoding", "normalization"

_CURLY = {quote: fixes.uncurl_quotes(quote) for quote in "\u02bc‘’‚‛“”„‟"}
# ftfy's fixers of characters in its order, with the bodies of regex classes of what each looks for.
_CHARACTER_FIXERS = {
    "fix_c1_controls": "\x80-\x9f",
    "fix_latin_ligatures": "".join(map(chr, chardata.LIGATURES)),
    "fix_character_width": "".join(map(chr, chardata.WIDTH_MAP)),
    "uncurl_quotes": "".join(_CURLY),
    "fix_line_breaks": "\r\x85\u2028\u2029",
    "fix_surrogates": "\ud800-\udfff",
    "remove_terminal_escapes": "\x1b",
    "remove_control_chars": "".join(map(chr, chardata.CONTROL_CHARS)),
}
_LINE = re.compile(r"[^\n]+")
_ENTITY_AFTER_AMPERSAND = r"(?<=&)#?[0-9A-Za-z]{1,24};"


@dataclass(frozen=True, slots=True)
class Repaired:
    """A text after the repair, and the sorted names of the fixes that changed it, or `UNREPAIRED`."""

    text: str
    changes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Repair(FtfySwitches):
    """A repair with ftfy's switches, all of them on unless given otherwise."""

    uncurl_quotes: bool = True
    """Make curly quotes straight."""

    def apply(self, text: str) -> Repaired:
        """The text as ftfy repairs it."""
        if text.isascii() and not text.encode("ascii").translate(None, self._plain_bytes):
            return Repaired(text, ())
        pieces: list[Repaired] = []
        settled = 0
        for start, end, entities in self._doubtful_segments(text):
            pieces.append(self._straighten(text[settled:start]))
            segment = text[start:end]
            pieces.append(
                self._repair_in_one_round(segment, entities=entities)
                or self._repair_in_rounds(segment, entities=entities)
            )
            settled = end
        pieces.append(self._straighten(text[settled:]))
        changes = {name for piece in pieces for name in piece.changes}
        return Repaired("".join(piece.text for piece in pieces), tuple(sorted(changes)))

    def _doubtful_segments(self, text: str) -> Iterator[tuple[int, int, bool]]:
        """Start and end of each segment of a doubtful line, and whether ftfy replaces entities in it."""
        markup = text.find("<") if self.unescape_html == "auto" else -1
        entities_end = 0 if self.unescape_html == "never" else markup if markup >= 0 else len(text)
        done = 0
        for position in self._doubts_in(text, entities_end):
            if position < done:
                continue
            line_start = max(done, text.rfind("\n", done, position) + 1)
            done = text.find("\n", position) + 1 or len(text)
            for start in range(line_start, done, MAX_SEGMENT):
                end = min(start + MAX_SEGMENT, done)
                yield start, end, end <= entities_end

    def _doubts_in(self, text: str, entities_end: int) -> Iterator[int]:
        """Positions in rising order, at least one in each doubtful line; entities count before `entities_end`."""
        doubts = itertools.chain(
            self._doubts[True].finditer(text, 0, entities_end), self._doubts[False].finditer(text, entities_end)
        )
        if self._is_normalized(text):
            return (match.start() for match in doubts)
        abnormal = (match for match in _LINE.finditer(text) if not self._is_normalized(match.group()))
        return heapq.merge((match.start() for match in doubts), (match.start() for match in abnormal))

    def _straighten(self, text: str) -> Repaired:
        """Do what ftfy's uncurl_quotes does, for text in which nothing else can change."""
        if not self.uncurl_quotes or text.isascii():
            return Repaired(text, ())
        straight = text
        for curly, plain in _CURLY.items():
            straight = straight.replace(curly, plain)
        return Repaired(straight, ("quotes",) if straight != text else ())

    def _repair_in_one_round(self, segment: str, *, entities: bool) -> Repaired | None:
        """The first round of ftfy's chain without the two costly steps; None unless ftfy would stop after it."""
        text, names = segment, set[str]()
        if self.fix_encoding:
            windows = read_as_windows_1252(segment)
            if windows is not None:
                text, names = windows, {_ENCODING}
            if is_mojibake(text):
                return None
        if entities and chardata.HTML_ENTITY_RE.search(text):
            return self._replace_entities(segment)
        for fixer, characters in self._fixers.items() if self._fixable.search(text) else ():
            if characters.search(text):
                text, names = _changed(text, ftfy.FIXERS[fixer](text), names, FIX_NAMES[fixer])
        if not self._is_normalized(text):
            text, names = _changed(text, self._normalize(text), names, _NORMALIZATION)
        if self._needs_another_round(text, entities=entities):
            return None
        return Repaired(text, tuple(names) if text != segment else ())

    def _needs_another_round(self, text: str, *, entities: bool) -> bool:
        return (
            self._fixable.search(text) is not None
            or (entities and chardata.HTML_ENTITY_RE.search(text) is not None)
            or not self._is_normalized(text)
            or (self.fix_encoding and is_mojibake(text))
        )

    def _replace_entities(self, segment: str) -> Repaired | None:
        """Entities to the end where no other fixer has anything to do before, between and after; else None.

        What a fixer looks for is no part of an entity, so what is not there at the end never was between.
        """
        if not segment.isascii() or self._fixable.search(segment):
            return None
        text = unescape_fully(segment)
        if not text.isascii() or self._fixable.search(text):
            return None
        return Repaired(text, (_ENTITIES,) if text != segment else ())

    def _repair_in_rounds(self, segment: str, *, entities: bool) -> Repaired:
        """The chain of ftfy's fixers, repeated until nothing changes."""
        text, names, before = segment, set[str](), None
        work = _Work(MAX_ROUNDS * max(len(segment), _SHORT_SEGMENT))
        try:
            while text != before:
                before = text
                work.spend(text)
                for name, fix in self._chain(work, entities=entities):
                    text, names = _changed(text, fix(text), names, name)
        except _TooMuchWorkError:
            return Repaired(segment, (UNREPAIRED,))
        return Repaired(text, tuple(names) if text != segment else ())

    def _chain(self, work: "_Work", *, entities: bool) -> Iterator[tuple[str, Callable[[str], str]]]:
        """Names and functions of the fixers that are on, in ftfy's order."""
        if entities:
            yield _ENTITIES, fixes.unescape_html
        if self.fix_encoding:
            yield _ENCODING, lambda text: decode(text, self._config, work.spend)
        for fixer in self._fixers:
            yield FIX_NAMES[fixer], ftfy.FIXERS[fixer]
        if self.normalization != "none":
            yield _NORMALIZATION, self._normalize

    def _normalize(self, text: str) -> str:
        return text if self.normalization == "none" or text.isascii() else normalize(self.normalization, text)

    def _is_normalized(self, text: str) -> bool:
        return self.normalization == "none" or text.isascii() or unicodedata.is_normalized(self.normalization, text)

    @functools.cached_property
    def _config(self) -> ftfy.TextFixerConfig:
        """Ours in ftfy's terms."""
        switches = {name: getattr(self, name) for name in ftfy.TextFixerConfig._fields if hasattr(self, name)}
        switches["normalization"] = None if self.normalization == "none" else self.normalization
        return ftfy.TextFixerConfig(**switches)

    @functools.cached_property
    def _fixers(self) -> dict[str, re.Pattern[str]]:
        """The fixers of characters that are on, in ftfy's order, and what each looks for."""
        return {name: re.compile(f"[{body}]") for name, body in _CHARACTER_FIXERS.items() if getattr(self, name)}

    @functools.cached_property
    def _fixable(self) -> re.Pattern[str]:
        """A character that some fixer which is on looks for."""
        bodies = "".join(_CHARACTER_FIXERS[name] for name in self._fixers)
        return re.compile(f"[{bodies}]" if bodies else "(?!)")

    @functools.cached_property
    def _plain_bytes(self) -> bytes:
        """The ASCII characters that no fixer which is on looks for."""
        plain = (chr(code) for code in range(128) if chr(code) != "&" or self.unescape_html == "never")
        return "".join(character for character in plain if not self._fixable.match(character)).encode("ascii")

    @functools.cached_property
    def _doubts(self) -> dict[bool, re.Pattern[str]]:
        """By whether entities count: matches in each normalized line that ftfy may change by more than quotes.

        Each of ftfy's fixers leaves a text alone in which it finds nothing: a character of its table, an entity,
        or, for mojibake, a suspect. Quotes that become straight give the others nothing new: the test for
        mojibake names none, and takes both kinds equally where it takes any character but a letter; straight
        quotes are in no table, are no part of an entity, and never join a combining character. A part of a
        text that matches nothing matches nothing either, and a part of normalized text is normalized, so the
        limits of lines and segments play no role.
        """
        return {entities: self._compile_doubts(entities=entities) for entities in (False, True)}

    def _compile_doubts(self, *, entities: bool) -> re.Pattern[str]:
        """One class of characters first, which `re` scans for quickly, then what makes each of them a doubt."""
        bodies = [_CHARACTER_FIXERS[name] for name in self._fixers if name != "uncurl_quotes"]
        first, conditions = "".join(bodies), [f"(?<=[{''.join(bodies)}])"] if bodies else []
        if entities:
            first, conditions = first + "&", [*conditions, _ENTITY_AFTER_AMPERSAND]
        if self.fix_encoding:
            first, conditions = first + SUSPECT_CHARACTERS, [*conditions, SUSPECT_CONDITION]
        return re.compile(f"[{first}](?:{'|'.join(conditions)})[^\n]*" if first else "(?!)")


def _changed(before: str, after: str, names: set[str], name: str) -> tuple[str, set[str]]:
    return after, names | {name} if after != before else names


_SHORT_SEGMENT = 1000


class _TooMuchWorkError(Exception):
    """The rounds on a segment read more than they may."""


class _Work:
    """Characters that the rounds on a segment may still read."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def spend(self, text: str) -> None:
        """Raises _TooMuchWorkError when nothing is left for reading `text`."""
        self._left -= len(text)
        if self._left < 0:
            raise _TooMuchWorkError
