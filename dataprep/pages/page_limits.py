"""Caps on the shape of a page, tested before the steps whose cost grows faster than the page.

Parsers compare each attribute of a tag with all before it (22 s for 100,000 of them) and some tags with all
that are open (1.5 s for 20,000 options); walks over a tree take time with the square of its depth (28 s for
50,000 levels).
"""

import functools
import re

from resiliparse.parse.html import HTMLTree

MAX_ATTRIBUTES = 1000
"""Most attributes of one tag; real ones have a few dozen."""
_START_OR_END = re.compile(r"</?[a-zA-Z]")
_LONG_TAG = re.compile(r"<[a-zA-Z][^>]{20000}")
_TAG = re.compile(r"<[a-z][^\s/>]*((?:[^>\"']|\"[^\"]*\"|'[^']*')*+)", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"[^\s=>\"'/]+(?:\s*=\s*(?:\"[^\"]*\"|'[^']*'|[^\s>\"']+))?")

Breach = tuple[str, str]
"""The rule that a page breaks, and the value seen."""


def source_breach(text: str, max_elements: int) -> Breach | None:
    """What the source alone shows: far more tags than a page of `max_elements` has, or a tag with too many attributes.

    Three tags for each element leave room for tags in scripts and comments; long values are no harm (data: URLs).
    A tag is looked at when 20,000 characters follow without a bracket that could end it.
    """
    if text.count("<") > 3 * max_elements and (tags := len(_START_OR_END.findall(text))) > 3 * max_elements:
        return "too_many_elements", f"{tags} tags"
    position = 0
    while long := _LONG_TAG.search(text, position):
        tag = _TAG.match(text, long.start())
        attributes = len(_ATTRIBUTE.findall(tag[1])) if tag else 0
        if attributes > MAX_ATTRIBUTES and not _in_script(text, long.start()):
            return "too_many_attributes", str(attributes)
        position = max(long.end(), tag.end() if tag else 0)
    return None


def _in_script(text: str, position: int) -> bool:
    """Whether the last script tag before a position opens one: `a<b` is no tag there."""
    return text.rfind("<script", 0, position) > text.rfind("</script", 0, position)


def tree_breach(tree: HTMLTree, max_elements: int, max_depth: int) -> Breach | None:
    """Too many elements below <body>, or one on too deep a level (<html> is the first); 0.3 ms for a real page."""
    body = tree.body
    if body is None:
        return None
    elements = len(body.get_elements_by_tag_name("*"))
    if elements > max_elements:
        return "too_many_elements", str(elements)
    if elements > max_depth and body.query_selector(_deeper_than(max_depth)) is not None:
        return "too_deep", f"more than {max_depth}"
    return None


@functools.cache
def _deeper_than(depth: int) -> str:
    """What only elements with `depth` others above them match; where one has, so has its parent's first child."""
    return "*>" * depth + "*:first-child"
