"""The main text of an HTML page. Pure: bytes in, text or a reason out.

Order: decoding, caps that the source shows, the parse, caps on the tree, the extractor. So what may take
long is never begun for a page that is out of bounds.
"""

import re

import lxml.etree
from resiliparse.parse.html import HTMLTree

from dataprep.pages.charset import decode_html
from dataprep.pages.contract import OUT_OF_MEMORY, Extracted, PageOptions
from dataprep.pages.extractors import main_text
from dataprep.pages.page_limits import source_breach, tree_breach

_MARKUP = re.compile(
    r"<(?:html|head|article|blockquote|body|br|div|h[1-6]|main|ol|p|pre|section|table|ul)[\s/>]", re.IGNORECASE
)
# What hostile pages have been seen to raise inside the extractors; anything else ends the child process.
EXTRACTOR_ERRORS = (
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    lxml.etree.LxmlError,
)


def page_text(body: bytes, charset: str | None, options: PageOptions) -> Extracted:
    """The main text of one page; `charset` is what its HTTP header says."""
    try:
        return _page_text(body, charset, options)
    except MemoryError:
        return Extracted(rule=OUT_OF_MEMORY, value=f"page of {len(body)} bytes")
    except EXTRACTOR_ERRORS as error:
        return Extracted(rule="extractor_error", value=f"{type(error).__name__}: {error}"[:200])


def _page_text(body: bytes, charset: str | None, options: PageOptions) -> Extracted:
    source = decode_html(body, charset)
    if not _MARKUP.search(source):
        return Extracted(rule="not_html", value="no tags that make a page")
    if breach := source_breach(source, options.max_elements):
        return Extracted(rule=breach[0], value=breach[1])
    tree = HTMLTree.parse(source)
    if breach := tree_breach(tree, options.max_elements, options.max_depth):
        return Extracted(rule=breach[0], value=breach[1])
    text, extractor = main_text(source, tree, options)
    if not text.strip():
        return Extracted(rule="empty_text", value=f"page of {len(body)} bytes")
    return Extracted(text.encode("utf-8", "replace").decode(), extractor)
