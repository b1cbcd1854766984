"""Which reading of a page the extractor `routed` takes, by how far the cheap ones agree.

resiliparse reads a page in several ways in a fraction of trafilatura's time, so their lengths are known before
trafilatura is asked: `whole`, everything that can be seen; `page`, the main text; `marked`, the main text of the
element that says it is the article; `part`, all text of that element or of the page's main part, if it is half of
`whole`; `blocks`, the lines that a small learned table takes for main text, with the F1 that it expects of itself.
The first rule that holds decides:

1. `marked` is nearly as long as `page`, and long or at least a quarter of `whole`: the marks are right. `marked`.
2. `page` is less than a tenth of `whole`: resiliparse's rules have cut the content away. `part`, if there is one.
3. `blocks`, if their expected F1 is at least 0.75; if something says that it is an article, 0.9: there, trafilatura is
   good, and headlines and captions are what is in doubt. Below that, the table is as often wrong as it says. A text
   that rule 6 calls far shorter gives way to trafilatura's slow mode if that has three times as much.
4. Nothing says that it is an article (products, services, listings, old pages), `page` is at least a fifth of `whole`
   and hardly any of it is links: `page`. On such pages trafilatura drops more content than resiliparse keeps of the
   rest.
5. trafilatura in its fast mode, unless a cheap reading disagrees with it: a short `marked` that it doubles is a banner
   or a teaser, another one is the article; without any mark, `page` or `part` that is several times as long has what
   trafilatura has lost.
6. If that text is half as long as `page`, or short and less than a twentieth of `whole`: trafilatura's slow mode with
   all its second attempts is asked too, and the longer text taken.

The thresholds and the table were chosen on half of the development part of the Web Content Extraction Benchmark, on
scrapinghub's article extraction benchmark, L3S-GN1 and CleanEval; `benchmarks/README.md` has the figures on these and
on others.
"""

from collections.abc import Callable

from dataprep.extract.resiliparse_text import PageReader

MARKED_OF_WHOLE = 0.25
"""Lowest share of all text that a short marked text has; below it, banners and teasers are common."""
BROKEN_SHARE = 0.1
"""A main text with a smaller share of all text has lost the content."""
SURE = 0.75
"""Lowest F1 that is expected of the kept blocks; with an earlier table, F1 of the collections tuned on differed by .007
between 0.75 and 0.85."""
SURE_OF_ARTICLE = 0.9
"""The same where something says that it is an article."""
PAGE_SHARE = 0.2
"""Lowest share of all text that the main text of an unmarked page has."""
LINK_SHARE = 0.03
"""Highest share of such a text in lines that are nothing but a link."""
LONGER_PAGE = 3
"""On an unmarked page, trafilatura's text has lost content if the main text is this many times as long; on any page,
so have the kept blocks, if they are far shorter than the cheap readings and trafilatura's slow mode finds so much."""
LONGER_PART = 2
"""The same for all text of the page's main part, and for trafilatura's text and a short marked one."""
SHORTER = 0.5
"""A text that is shorter than this share of the main text is compared with trafilatura's slow mode."""
FAR_SHORTER = 0.05
"""So is a short text with a smaller share of all text."""


def routed_text(
    reader: PageReader, fast: Callable[[], str], slow: Callable[[], str], long_chars: int
) -> tuple[str, str]:
    """Return the main text of a page and the library that extracted it.

    `fast` and `slow` ask trafilatura; a text of `long_chars` characters is long.
    """
    marked, page = reader.marked_text, reader.page_text
    if marked and (len(marked) >= long_chars or len(marked) >= MARKED_OF_WHOLE * reader.whole_chars):
        return marked, "resiliparse"
    whole = reader.whole_chars
    if len(page) < BROKEN_SHARE * whole and reader.part_text:
        return reader.part_text, "resiliparse"

    def far_shorter(text: str) -> bool:
        return len(text) < SHORTER * len(page) or len(text) < min(long_chars, FAR_SHORTER * whole)

    blocks, expected = reader.main_blocks()
    if expected >= (SURE_OF_ARTICLE if reader.marks_article else SURE):
        if far_shorter(blocks) and len(other := slow()) >= LONGER_PAGE * len(blocks):
            return other, "trafilatura"
        return blocks, "resiliparse"
    if page and not reader.marks_article and len(page) >= PAGE_SHARE * whole and reader.link_share() < LINK_SHARE:
        return page, "resiliparse"
    text = fast()
    if len(text) < LONGER_PART * len(marked):
        return marked, "resiliparse"
    if not reader.marks_article:
        for other, ratio in ((page, LONGER_PAGE), (reader.part_text, LONGER_PART)):
            if other and len(other) >= ratio * len(text):
                return other, "resiliparse"
    if far_shorter(text):
        text = max(text, slow(), key=len)
    return text, "trafilatura"
