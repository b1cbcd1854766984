"""Steps of ftfy's repair that are much faster here and give equal results, each usable on its own.

- Mojibake: the test for it, ftfy's decoding step by step, and the most common case decoded directly.
  `ftfy.badness.is_bad` tries some forty alternatives at every character (5 MB/s). Each alternative needs characters
  that are rarely side by side in sound text, so one scan for those pairs answers for nearly every text.
- HTML entities within entities, in time linear in the text.
- Unicode normalization, in time linear in the text.
"""

import itertools
import re
import unicodedata
from collections.abc import Callable
from typing import Literal, cast

import ftfy
import regex
from ftfy import badness, chardata, fixes

_GROUPS = badness.MOJIBAKE_CATEGORIES
_C1_CONTROLS = _GROUPS["c1"]
_UNREADABLE_AS_WINDOWS_1252 = re.compile(r"[\x81\x8d\x8f\x90\x9d]|[^\x00-\x9f]")


def _characters(*bodies: str) -> set[str]:
    """Return the characters of the Basic Multilingual Plane that these bodies of regex classes match."""
    return set(re.findall(f"[{''.join(bodies)}]", "".join(map(chr, range(0x80, 0x10000)))))


def _class(characters: set[str]) -> str:
    return f"[{''.join(sorted(characters))}]"


def _suspects() -> tuple[str, str]:
    """Return the characters that may belong to mojibake, and the context that makes one suspect, as regex sources.

    Every alternative of ftfy's expression contains one of these (a test tries everything that each can match):
    a sign beside another named character, an accented small letter beside punctuation, punctuation between two of
    the capitals that remain where UTF-8 of Cyrillic or Greek was misread, or a character that is bad by itself.
    """
    named = _characters(*_GROUPS.values(), *(char for char in badness.BADNESS_RE.pattern if not char.isascii()))
    punctuation = _characters(_GROUPS["start_punctuation"], _GROUPS["end_punctuation"])
    accented = _characters(_GROUPS["lower_accented"], "ó")
    letters = _characters(_GROUPS["kaomoji"], _GROUPS["lower_common"], _GROUPS["upper_common"])
    letters -= _characters(_GROUPS["upper_accented"], "°ÙЂ")
    signs = named - _characters(_GROUPS["common"]) - punctuation - accented - letters
    alone, capitals = f"[{_C1_CONTROLS}ŒœÃÂ]", "[ВГРСΒΓΞΟ]"
    rest = (
        f"(?<={alone})",
        f"(?<={_class(signs)})(?={_class(named)})",
        f"(?<={_class(named)}{_class(signs)})",
        f"(?<={_class(accented)})(?={_class(punctuation)})",
        f"(?<={_class(punctuation)}{_class(accented)})",
        f"(?<={capitals})(?={_class(punctuation)}{capitals})",
    )
    return "".join(sorted(signs | accented | set(capitals[1:-1]))), "|".join(rest)


SUSPECT_CHARACTERS, SUSPECT_CONDITION = _suspects()
"""Body of a regex class, and the alternatives one of which must hold right after such a character."""
_SUSPECT = re.compile(f"[{SUSPECT_CHARACTERS}](?:{SUSPECT_CONDITION})")


def is_mojibake(text: str) -> bool:
    """Return `ftfy.badness.is_bad(text)`."""
    return not text.isascii() and _SUSPECT.search(text) is not None and badness.is_bad(text)


def read_as_windows_1252(text: str) -> str | None:
    """Repair Windows-1252 that was read as Latin-1, as ftfy does; None unless the text is ASCII with C1 controls.

    In every encoding that ftfy tries first, the bytes of such a text are not UTF-8: C1 controls are bytes that
    continue a character, and no byte begins one. So ftfy ends up reading Latin-1 as Windows-1252.
    """
    if text.isascii() or _UNREADABLE_AS_WINDOWS_1252.search(text):
        return None
    return text.encode("latin-1").decode("windows-1252")


def decode(text: str, config: ftfy.TextFixerConfig, spend: Callable[[str], None]) -> str:
    """Return `ftfy.fix_encoding_and_explain(text, config).text`; `spend` gets each text before a step reads it.

    What one step decodes can be the beginning of what the next step decodes, so there may be as many steps as
    characters; `spend` may raise to stop.
    """
    before = None
    while text != before:
        before = text
        spend(text)
        text = _decode_once(text, config, spend)
    return text


def _decode_once(text: str, config: ftfy.TextFixerConfig, spend: Callable[[str], None]) -> str:
    """Do one step of ftfy: decode the whole text as UTF-8, else the parts that are UTF-8, else guess as it does."""
    if not is_mojibake(text):
        return text
    # No public function of ftfy takes a single step.
    whole, steps = ftfy._fix_encoding_one_step_and_explain(  # pyright: ignore[reportPrivateUsage]
        text, config._replace(decode_inconsistent_utf8=False)
    )
    is_utf8 = bool(steps) and steps[-1].action == "decode" and steps[-1].parameter.startswith("utf-8")
    parts = _decode_parts(text, spend) if config.decode_inconsistent_utf8 and not is_utf8 else text
    return parts if parts != text else whole


def _decode_parts(text: str, spend: Callable[[str], None]) -> str:
    """Return `ftfy.fixes.decode_inconsistent_utf8(text)`, which always uses ftfy's default switches."""

    def decoded(match: re.Match[str]) -> str:
        part = match.group()
        return decode(part, ftfy.TextFixerConfig(), spend) if len(part) < len(text) and is_mojibake(part) else part

    return chardata.UTF8_DETECTOR_RE.sub(decoded, text)


_LONGEST_ENTITY = 27
"""Characters of the longest entity: `&#`, 24 letters or digits, `;`."""
_ENTITY_AT_END = re.compile(chardata.HTML_ENTITY_RE.pattern + r"\Z")


def unescape_fully(text: str) -> str:
    """Apply `ftfy.fixes.unescape_html` until nothing changes, in time linear in the text.

    `&amp;amp;lt;` takes three rounds of replacing, so the number of rounds grows with the length of such a chain.
    Entities never overlap (an ampersand begins one, a semicolon ends it, and neither occurs inside), so replacing one
    changes no other, and every order gives the same text. So one pass that looks back at each semicolon is enough.
    """
    once = fixes.unescape_html(text)
    if once == text or not chardata.HTML_ENTITY_RE.search(once):
        return once
    output: list[str] = []
    for character in once:
        pending = [character]
        while pending:
            output.append(pending.pop())
            if output[-1] == ";":
                pending += reversed(_pop_entity(output))
    return "".join(output)


def _pop_entity(output: list[str]) -> str:
    """Remove the entity at the end of `output` and return its replacement; return nothing if none ends there."""
    match = _ENTITY_AT_END.search("".join(output[-_LONGEST_ENTITY:]))
    if not match:
        return ""
    replacement = fixes.unescape_html(match.group())
    if replacement == match.group():
        return ""
    del output[-len(match.group()) :]
    return replacement


Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
# Halfwidth voicing marks are letters that become combining marks in the forms with K.
_MANY_MARKS = regex.compile(r"[\p{M}\uff9e\uff9f]{64,}")


def normalize(form: Form, text: str) -> str:
    """Return `unicodedata.normalize(form, text)`, in time linear in the text.

    Python sorts each run of combining marks by insertion, which takes an hour for a line of a million marks in the
    wrong order. Sorted marks cost it nothing, and marks sorted beforehand are canonically equivalent (UAX #15), so the
    result is the same.
    """
    if not unicodedata.is_normalized(form, text) and _MANY_MARKS.search(text):
        decomposed = cast(Form, form.replace("C", "D"))
        text = _MANY_MARKS.sub(lambda marks: _sort_marks(marks.group(), decomposed), text)
    return unicodedata.normalize(form, text)


def _sort_marks(marks: str, decomposed: Form) -> str:
    """Decompose the marks and sort them by combining class; marks of class 0 stay in place."""
    parts = "".join(unicodedata.normalize(decomposed, mark) for mark in marks)
    groups = itertools.groupby(parts, lambda mark: unicodedata.combining(mark) > 0)
    return "".join("".join(sorted(group, key=unicodedata.combining) if moves else group) for moves, group in groups)
