"""HTML entities replaced again and again, until none is left, in time linear in the text.

`&amp;amp;lt;` takes three rounds of replacing, so a long chain takes a number of rounds that grows with it. Entities
never overlap (an ampersand begins one, a semicolon ends it, neither stands inside), so replacing one changes no
other: whatever the order, the same text comes out, and one pass that looks back at each semicolon finds it.
"""

import re

from ftfy import chardata, fixes

_LONGEST = 27
"""Characters of the longest entity: `&#`, 24 letters or digits, `;`."""
_ENTITY_AT_END = re.compile(chardata.HTML_ENTITY_RE.pattern + r"\Z")


def unescape_fully(text: str) -> str:
    """`ftfy.fixes.unescape_html`, repeated until nothing changes."""
    once = fixes.unescape_html(text)
    if once == text or not chardata.HTML_ENTITY_RE.search(once):
        return once
    made: list[str] = []
    for character in once:
        to_add = [character]
        while to_add:
            made.append(to_add.pop())
            if made[-1] == ";":
                to_add += reversed(_taken_off(made))
    return "".join(made)


def _taken_off(made: list[str]) -> str:
    """Take the entity at the end off, and say what it stands for; nothing where none ends there."""
    found = _ENTITY_AT_END.search("".join(made[-_LONGEST:]))
    if not found:
        return ""
    replaced = fixes.unescape_html(found.group())
    if replaced == found.group():
        return ""
    del made[-len(found.group()) :]
    return replaced
