"""The main text of a page by trafilatura, from a smaller tree.

Elements that trafilatura always discards are cut right after the parse, before it copies and searches the tree: the
same text on 96% of the benchmark's real pages, at 1.3 times the speed. Tables come out as lines of cells with tabs
between them, not as Markdown.
"""

import functools
import unicodedata
from typing import Any

import lxml.etree
import lxml.html
from trafilatura import bare_extraction
from trafilatura.settings import MANUALLY_CLEANED, Document, Extractor
from trafilatura.xml import xmltotxt

# Kept: forms may hold the whole page, figures a table, formulas their source, heads and scripts JSON-LD.
_CUT = sorted({*MANUALLY_CLEANED, "meta"} - {"form", "figure", "math", "head", "script"})
_CONTROLS = bytes(sorted(set(range(32)) - {9, 10, 13}))
_BLOCKS = ("p", "list", "head", "quote", "code", "table")


def main_text(text: str, *, fast: bool, precision: bool, tables: bool) -> str:
    """Return the main text, empty if there is none; `fast` runs no further extractors, `precision` drops more."""
    document = bare_extraction(parse(text), options=_options(fast, precision, tables))
    if not isinstance(document, Document):
        return ""
    lay_out_tables(document.body)
    return unicodedata.normalize("NFC", xmltotxt(document.body, include_formatting=False))


@functools.cache
def _options(fast: bool, precision: bool, tables: bool) -> Extractor:
    return Extractor(output_format="txt", fast=fast, precision=precision, comments=False, tables=tables)


@functools.cache
def _parser() -> lxml.html.HTMLParser:
    """Return a parser with one class for all elements: by default lxml calls Python to choose one for each element."""
    parser = lxml.html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    parser.set_element_class_lookup(lxml.etree.ElementDefaultClassLookup(element=lxml.html.HtmlElement))
    return parser


def parse(text: str) -> Any:
    """Return the tree of a page without the elements that trafilatura never keeps."""
    data = text.encode("utf-8", "replace").translate(None, _CONTROLS)
    # U+FFFE and U+FFFF are allowed in HTML, but lxml refuses them when trafilatura moves text.
    tree = lxml.etree.fromstring(data.replace(b"\xef\xbf\xbe", b"").replace(b"\xef\xbf\xbf", b""), parser=_parser())
    for script in tree.iter("script"):
        if script.get("type") != "application/ld+json":
            script.tag = "style"  # removed with the others below: not while iterating over them
    lxml.etree.strip_elements(tree, *_CUT, with_tail=False)
    # trafilatura expands them into up to 100 empty cells each, which `lay_out_tables` would drop again.
    lxml.etree.strip_attributes(tree, "colspan", "rowspan")
    return tree


def lay_out_tables(body: Any) -> None:
    """Turn each row into a line of its cells' texts with tabs between; a row with blocks, into a line per block."""
    for row in list(body.iter("row")):
        if any(child.tag in _BLOCKS for cell in row for child in cell):
            for cell in row:
                cell.tag = "p"
            row.tag = "div"
            continue
        cells = (" ".join(" ".join(cell.itertext()).split()) for cell in row)
        line, tail = "\t".join(filter(None, cells)), row.tail
        row.clear()
        row.tag, row.text, row.tail = "p", line, tail
    for table in list(body.iter("table")):
        table.tag = "div"
