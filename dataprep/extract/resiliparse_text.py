"""The main text of a page by resiliparse: of the whole page, or of the element that is marked as the article.

resiliparse alone keeps captions, bylines and teasers (F1 .94 on the article extraction benchmark, where trafilatura's
fast mode has .962, in a seventh of its time). Inside an element marked as the article (`itemprop=articleBody`,
<article>, class="post-content" and the like) there are few of them. If such an element holds nearly all the text that
resiliparse extracts from the page, its text is as good as trafilatura's.
"""

import functools
import re
import unicodedata

from resiliparse.extract.html2text import extract_plain_text  # pyright: ignore[reportMissingModuleSource]
from resiliparse.parse.html import HTMLTree
from resiliparse.parse.html.node import ElementNode  # pyright: ignore[reportMissingModuleSource]

MARKED_SHARE = 0.8
"""Lowest ratio of a marked element's text length to the page's; between 0.8 and 0.9, F1 differs by less than .001."""
MARKED_CHARS = 250
"""Fewest characters of a marked element's text; shorter ones are teasers and notices."""
_MOST_TRIED = 8
_CONTAINERS = ("article", "div", "main", "section")
_BODY = re.compile(
    r"(?:article|entry|post|story|art)[-_]*(?:body|content|text|entry)|(?:body|text)-(?:text|content)|single-post",
    re.IGNORECASE,
)
_MAIN = re.compile(
    r"^content$|^story$|^article$|(?:page|main)-?content|content[-_]*(?:main|body)|fulltext", re.IGNORECASE
)
# Matches slightly more than the two patterns, for the parser's own search: a search in Python takes twice as long.
_WORDS = ("ontent", "ody", "rticle", "ntry", "ost", "tory", "ulltext")
_LIKELY = ",".join(
    (
        *("article", "main[class]", "[itemprop=articleBody]"),
        *("[id*=ontent]", "[id*=rticle]", "[id*=ody]", "[id*=tory]"),
        *(f"{tag}[class*={word}]" for word in _WORDS for tag in ("div", "section")),
    )
)
_PAGE_JUNK = ("header", "footer")
_ARTICLE_JUNK = (
    *_PAGE_JUNK,
    *(f"[class*={word}]" for word in ("caption", "newsletter", "author", "meta", "comment", "share", "related")),
    "[class*=widget]:not([class*=elementor])",  # the page builder Elementor calls every part of a page a widget
)
_TABS = re.compile(r"\t+")
_BULLET = re.compile(r"^( *)• ", re.MULTILINE)


class PageReader:
    """Reads a page with resiliparse, the whole page at most once."""

    def __init__(self, tree: HTMLTree, *, tables: bool) -> None:
        self._tree = tree
        self._tables = tables

    @functools.cached_property
    def page_text(self) -> str:
        """Return the main text of the whole page."""
        return self._read(self._tree, _PAGE_JUNK)

    def marked_text(self) -> str:
        """Return the text of the first marked element with nearly all of the page's text; empty without one."""
        elements = marked_elements(self._tree)
        if not elements:
            return ""
        least = max(MARKED_CHARS, MARKED_SHARE * len(self.page_text))
        for element in [element for element in elements if len(element.text or "") >= least][:_MOST_TRIED]:
            text = self._read(HTMLTree.parse(element.html), _ARTICLE_JUNK)
            if len(text) >= least:
                return text
        return ""

    def _read(self, tree: HTMLTree, junk: tuple[str, ...]) -> str:
        skip = [*junk] if self._tables else [*junk, "table"]
        return tidy(
            extract_plain_text(
                tree, main_content=True, alt_texts=False, comments=False, post_meta=False, skip_elements=skip
            )
        )


def marked_elements(tree: HTMLTree) -> list[ElementNode]:
    """Return elements marked as an article's body, then articles, then main parts, each in the order of the page."""
    groups: tuple[list[ElementNode], list[ElementNode], list[ElementNode]] = ([], [], [])
    for element in tree.body.query_selector_all(_LIKELY).values() if tree.body else ():
        if element.tag not in _CONTAINERS:
            continue
        names = (element.class_name or "", element.id or "")
        if any(map(_BODY.search, names)) or element.getattr("itemprop") == "articleBody":
            groups[0].append(element)
        elif element.tag == "article":
            groups[1].append(element)
        elif any(map(_MAIN.search, names)):
            groups[2].append(element)
    return [element for group in groups for element in group]


def tidy(text: str) -> str:
    """Lay out a text as trafilatura does: a line per block, no empty lines, `- ` for bullets, a tab between cells."""
    lines = [line.strip("\t") for line in text.split("\n") if line and not line.isspace()]
    text = unicodedata.normalize("NFC", "\n".join(lines))
    if "\t" in text:
        text = _TABS.sub("\t", text)
    return _BULLET.sub(r"\1- ", text) if "•" in text else text
