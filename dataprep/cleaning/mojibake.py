"""ftfy's test for mojibake, many times faster and equal; its decoding, step by step; the commonest mojibake directly.

`ftfy.badness.is_bad` tries some forty alternatives at every character (5 MB/s). Each of them asks for characters
that text without mojibake rarely has side by side, so one scan for those pairs answers for nearly every text.
"""

import re
from collections.abc import Callable

import ftfy
from ftfy import badness, chardata

_GROUPS = badness.MOJIBAKE_CATEGORIES
_C1_CONTROLS = _GROUPS["c1"]
_UNREADABLE_AS_WINDOWS_1252 = re.compile(r"[\x81\x8d\x8f\x90\x9d]|[^\x00-\x9f]")


def _characters(*bodies: str) -> set[str]:
    """The characters of the Basic Multilingual Plane in the bodies of regex classes."""
    return set(re.findall(f"[{''.join(bodies)}]", "".join(map(chr, range(0x80, 0x10000)))))


def _class(characters: set[str]) -> str:
    return f"[{''.join(sorted(characters))}]"


def _suspects() -> tuple[str, str]:
    """A character that may belong to mojibake, and what must stand about it.

    Every alternative of ftfy's expression holds one of these (a test goes through all that each can match):
    a sign beside another named character, an accented small letter beside punctuation, punctuation between
    two capitals of those that UTF-8 leaves of Cyrillic and Greek, or a character that is bad by itself.
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
"""Body of a regex class, and the alternatives of which one must hold right behind a character of it."""
_SUSPECT = re.compile(f"[{SUSPECT_CHARACTERS}](?:{SUSPECT_CONDITION})")


def is_mojibake(text: str) -> bool:
    """`ftfy.badness.is_bad(text)`."""
    return not text.isascii() and _SUSPECT.search(text) is not None and badness.is_bad(text)


def read_as_windows_1252(text: str) -> str | None:
    """Repair, as ftfy does, ASCII with C1 controls, Windows-1252 that was read as Latin-1; None for other texts.

    The bytes of such a text are no UTF-8 in any encoding that ftfy tries before (C1 controls are bytes that
    continue a character, and none begins one), so it comes to read Latin-1 as Windows-1252.
    """
    if text.isascii() or _UNREADABLE_AS_WINDOWS_1252.search(text):
        return None
    return text.encode("latin-1").decode("windows-1252")


def decode(text: str, config: ftfy.TextFixerConfig, spend: Callable[[str], None]) -> str:
    """`ftfy.fix_encoding_and_explain(text, config).text`; `spend` is told each text before a step reads it.

    What one step decodes can begin what the next one does, so there may be as many steps as characters: `spend`
    may raise to end it.
    """
    before = None
    while text != before:
        before = text
        spend(text)
        text = _decode_once(text, config, spend)
    return text


def _decode_once(text: str, config: ftfy.TextFixerConfig, spend: Callable[[str], None]) -> str:
    """One step of ftfy: the whole text as UTF-8, else the parts that are UTF-8, else its weaker guesses."""
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
    """`ftfy.fixes.decode_inconsistent_utf8(text)`, which knows only ftfy's default switches."""

    def decoded(match: re.Match[str]) -> str:
        part = match.group()
        return decode(part, ftfy.TextFixerConfig(), spend) if len(part) < len(text) and is_mojibake(part) else part

    return chardata.UTF8_DETECTOR_RE.sub(decoded, text)
