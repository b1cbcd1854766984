"""The main text of an HTML page. Pure: bytes in, text or a reason out.

trafilatura's fast mode, without comments and with tables: on the 181 pages of the article extraction
benchmark F1 .962 (.959 without tables, .955 with comments).
"""

import re
from dataclasses import dataclass
from typing import Any

import lxml.etree
import trafilatura
from trafilatura.utils import load_html

from dataprep.pages.charset import decode_html

_BLOCK = re.compile(r"<(?:article|blockquote|body|br|div|h[1-6]|ol|p|pre|section|table|ul)[\s>/]", re.IGNORECASE)
# What hostile pages have been seen to raise inside the extractor; anything else ends the child process.
EXTRACTOR_ERRORS = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    MemoryError,
    lxml.etree.LxmlError,
)


@dataclass(frozen=True, slots=True)
class PageText:
    """The text of a page, or the rule that it breaks and the value seen."""

    text: str = ""
    rule: str = ""
    value: str = ""


def page_text(body: bytes, charset: str | None, *, max_elements: int, max_depth: int, tables: bool) -> PageText:
    """The main text of one page; `charset` is what its HTTP header says."""
    try:
        tree = parse_html(decode_html(body, charset))
        if tree is None:
            return PageText(rule="not_html", value="no tags that make a page")
        elements, depth = tree_size(tree)
        if elements > max_elements:
            return PageText(rule="too_many_elements", value=str(elements))
        if depth > max_depth:
            return PageText(rule="too_deep", value=str(depth))
        text = trafilatura.extract(tree, fast=True, include_comments=False, include_tables=tables)
    except EXTRACTOR_ERRORS as error:
        return PageText(rule="extractor_error", value=f"{type(error).__name__}: {error}"[:200])
    if not text or not text.strip():
        return PageText(rule="empty_text", value=f"page of {len(body)} bytes")
    return PageText(text=text.encode("utf-8", "replace").decode())


def parse_html(text: str) -> Any:
    """The tree of a page, or None when it is not one; a page without <html> and <head> is one too."""
    tree = load_html(text)
    if tree is None and _BLOCK.search(text):
        tree = load_html(f"<html><body>{text}</body></html>")
    return tree


def tree_size(tree: Any) -> tuple[int, int]:
    """Number of elements, and the depth of the deepest; without recursion."""
    elements = depth = deepest = 0
    for event, _ in lxml.etree.iterwalk(tree, events=("start", "end")):
        if event == "start":
            elements += 1
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return elements, deepest
