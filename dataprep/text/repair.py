"""ftfy with all its switches, run only where a text needs it; it names the fixes that changed something.

text -> `Repaired(text, changes)`; the text equals `ftfy.fix_text(text, config)` for every combination of switches
and every text, with one exception, named below. ftfy 6.3.1 (`__init__.py`: fix_text, fix_and_explain) repairs segment
by segment: a line, or a million characters of a longer one. One scan finds the lines in which it could do more than
straighten quotes (`_doubts` says why no other line can change). If one round of ftfy's fixers settles such a line, or
if it holds entities within entities in ASCII, it is repaired directly; the rest goes through ftfy's chain of fixers,
round by round.

One round can create work for the next (`&amp;amp;`), so ftfy takes time quadratic in such a segment: 20 s for
80,000 characters. Here, a segment in which the rounds would read more than MAX_ROUNDS times its length stays
unchanged, and its text is counted as `UNREPAIRED`, the same on every machine. ftfy's decoder of CESU-8 and of Java's
nulls copies the rest of the segment at each of them, which MAX_SEGMENT limits to seconds. Memory: a few copies of the
text.
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

from dataprep.text.ftfy_switches import FtfySwitches
from dataprep.text.repair_steps import (
    SUSPECT_CHARACTERS,
    SUSPECT_CONDITION,
    decode,
    is_mojibake,
    normalize,
    read_as_windows_1252,
    unescape_fully,
)

MAX_SEGMENT = ftfy.TextFixerConfig().max_decode_length
"""Characters of one line that ftfy repairs at a time (1,000,000); a longer line is cut into such segments."""

MAX_ROUNDS = 32
"""Limit of the characters that the rounds on a segment may read, as a multiple of its length (at least 1,000).

ftfy's own cases and 1,000 documents of OpenWebText need 5.
"""
UNREPAIRED = "unrepaired"
"""Recorded among the changes of a text with a segment that needs more rounds, which stays unchanged."""

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
"""ftfy's fixers of characters -> the names recorded in `Repaired.changes`; the other names are below."""
_ENTITIES, _ENCODING, _NORMALIZATION = "entities", "encoding", "normalization"

_CURLY = {quote: fixes.uncurl_quotes(quote) for quote in "\u02bc‘’‚‛“”„‟"}
# ftfy's fixers of characters in its order, each with the body of a regex class of the characters that it looks for.
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
    """A text after the repair, and the sorted names of the fixes that changed it; `UNREPAIRED` may be among them."""

    text: str
    changes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Repair(FtfySwitches):
    """A repair with ftfy's switches, all on by default."""

    uncurl_quotes: bool = True
    """Make curly quotes straight."""

    def apply(self, text: str) -> Repaired:
        """Repair `text` as ftfy does."""
        if text.isascii() and not text.encode("ascii").translate(None, self._plain_bytes):
            return Repaired(text, ())
        repaired: list[Repaired] = []
        settled = 0
        for start, end, entities in self._doubtful_segments(text):
            repaired.append(self._straighten(text[settled:start]))
            segment = text[start:end]
            repaired.append(
                self._repair_in_one_round(segment, entities=entities)
                or self._repair_in_rounds(segment, entities=entities)
            )
            settled = end
        repaired.append(self._straighten(text[settled:]))
        changes = {name for part in repaired for name in part.changes}
        return Repaired("".join(part.text for part in repaired), tuple(sorted(changes)))

    def by_ftfy(self, text: str) -> str:
        """Return what ftfy itself makes of `text`; it may take time quadratic in the text."""
        return ftfy.fix_text(text, self._config)

    def _doubtful_segments(self, text: str) -> Iterator[tuple[int, int, bool]]:
        """Yield start and end of each segment of a doubtful line, and whether ftfy replaces entities in it."""
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
        """Return rising positions, at least one in each doubtful line; entities count only before `entities_end`."""
        doubts = itertools.chain(
            self._doubts[True].finditer(text, 0, entities_end), self._doubts[False].finditer(text, entities_end)
        )
        if self._is_normalized(text):
            return (match.start() for match in doubts)
        abnormal = (match for match in _LINE.finditer(text) if not self._is_normalized(match.group()))
        return heapq.merge((match.start() for match in doubts), (match.start() for match in abnormal))

    def _straighten(self, text: str) -> Repaired:
        """Straighten quotes as ftfy's uncurl_quotes does, in text in which nothing else can change."""
        if not self.uncurl_quotes or text.isascii():
            return Repaired(text, ())
        straight = text
        for curly, plain in _CURLY.items():
            straight = straight.replace(curly, plain)
        return Repaired(straight, ("quotes",) if straight != text else ())

    def _repair_in_one_round(self, segment: str, *, entities: bool) -> Repaired | None:
        """Run the first round of ftfy's chain without its two costly steps; None unless ftfy would stop after it."""
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
        """Replace all entities, if no other fixer has anything to do before, during or after it; else return None.

        No fixer looks for a character that occurs in an entity, so what is absent at the end never appeared in between.
        """
        if not segment.isascii() or self._fixable.search(segment):
            return None
        text = unescape_fully(segment)
        if not text.isascii() or self._fixable.search(text):
            return None
        return Repaired(text, (_ENTITIES,) if text != segment else ())

    def _repair_in_rounds(self, segment: str, *, entities: bool) -> Repaired:
        """Repeat the chain of ftfy's fixers until nothing changes."""
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
        """Yield names and functions of the fixers that are on, in ftfy's order."""
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
        """The same switches as ftfy's own configuration."""
        switches = {name: getattr(self, name) for name in ftfy.TextFixerConfig._fields if hasattr(self, name)}
        switches["normalization"] = None if self.normalization == "none" else self.normalization
        return ftfy.TextFixerConfig(**switches)

    @functools.cached_property
    def _fixers(self) -> dict[str, re.Pattern[str]]:
        """The fixers of characters that are on, in ftfy's order, with a pattern of what each looks for."""
        return {name: re.compile(f"[{body}]") for name, body in _CHARACTER_FIXERS.items() if getattr(self, name)}

    @functools.cached_property
    def _fixable(self) -> re.Pattern[str]:
        """A pattern of the characters that the fixers in use look for."""
        bodies = "".join(_CHARACTER_FIXERS[name] for name in self._fixers)
        return re.compile(f"[{bodies}]" if bodies else "(?!)")

    @functools.cached_property
    def _plain_bytes(self) -> bytes:
        """The ASCII characters that no fixer in use looks for."""
        plain = (chr(code) for code in range(128) if chr(code) != "&" or self.unescape_html == "never")
        return "".join(character for character in plain if not self._fixable.match(character)).encode("ascii")

    @functools.cached_property
    def _doubts(self) -> dict[bool, re.Pattern[str]]:
        """Patterns, by whether entities count, that match in each normalized line that ftfy may change beyond quotes.

        Each of ftfy's fixers changes a text only if it finds something: a character of its table, an entity, or, for
        mojibake, a suspect. Straightening quotes gives the other fixers nothing new: the test for mojibake names no
        quote, and accepts both kinds wherever it accepts any character but a letter; straight quotes are in no table,
        belong to no entity, and never combine with another character. If a text has no match, no part of it has one,
        and a part of normalized text is normalized, so it does not matter where lines and segments end.
        """
        return {entities: self._compile_doubts(entities=entities) for entities in (False, True)}

    def _compile_doubts(self, *, entities: bool) -> re.Pattern[str]:
        """Compile one class of characters, which `re` finds quickly, followed by the contexts that raise a doubt."""
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
    """Raised when the rounds on a segment have read too much."""


class _Work:
    """The number of characters that the rounds on a segment may still read."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def spend(self, text: str) -> None:
        """Count `text` as read; raise _TooMuchWorkError if that is more than the limit."""
        self._left -= len(text)
        if self._left < 0:
            raise _TooMuchWorkError
