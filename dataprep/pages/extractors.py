"""Which extractor makes the text of a page: the choice, and the fallback when its text is suspiciously short.

`trafilatura` is its fast mode; `precision` asks further extractors and leaves out more; `resiliparse` takes a
quarter of the time and keeps more boilerplate. `routed` takes resiliparse's text of the marked article where
that agrees with the page (see `resiliparse_text`), and trafilatura's elsewhere, fast and leaving out more: what
such a text lacks at times the fallback brings back, cheaper than trafilatura's own second tries.

Fallback: a text of fewer than `fallback_chars` characters is compared with the other library's, which is taken
when it is at least FALLBACK_RATIO times as long. No clock and no earlier page has a say in it.
"""

from resiliparse.parse.html import HTMLTree

from dataprep.pages import trafilatura_text
from dataprep.pages.contract import PageOptions
from dataprep.pages.resiliparse_text import PageReader

FALLBACK_RATIO = 5
"""At 4 pages go wrong whose comments are longer than their article; at 8 too many stay empty-handed."""


def main_text(source: str, tree: HTMLTree, options: PageOptions) -> tuple[str, str]:
    """The main text of a page and the library that made it; an empty text when neither finds one.

    `tree` is resiliparse's of `source`.
    """
    reader = PageReader(tree, tables=options.tables)

    def text_by(library: str) -> str:
        if library == "resiliparse":
            return reader.page_text
        fast, precision = options.extractor != "precision", options.extractor in ("precision", "routed")
        return trafilatura_text.main_text(source, fast=fast, precision=precision, tables=options.tables)

    if options.extractor == "routed" and (text := reader.marked_text()):
        return text, "resiliparse"
    libraries = ("trafilatura", "resiliparse")
    first, second = reversed(libraries) if options.extractor == "resiliparse" else libraries
    text = text_by(first)
    if len(text) >= options.fallback_chars:
        return text, first
    other = text_by(second)
    return (other, second) if other and len(other) >= FALLBACK_RATIO * len(text) else (text, first)
