"""The looks of the sample's web sites: `designs/*.html`, with what surrounds a text on the real web.

journal: a web log with semantic elements, a cookie notice, a side bar, comments. newspaper: many
wrappers, sections, teasers, an advertisement. homepage: by hand, in upper case, as in the nineties.
app_shell: a page that a script fills in. gallery: pictures without a word.
"""

import html
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DESIGNS = Path(__file__).parent / "designs"
_SUMMARY_CHARACTERS = 120


@dataclass(frozen=True, slots=True)
class Page:
    """What a design needs to know of a page."""

    site: str
    title: str
    paragraphs: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    """(URL, text) of each."""
    language: str = "en"
    charset: str = "utf-8"
    """Named in the page; the bytes are the caller's to encode."""


def render(design: str, page: Page) -> str:
    """A page in one of the designs."""
    template = string.Template((DESIGNS / f"{design}.html").read_text("utf-8"))
    paragraphs = "\n".join(f"<p>{html.escape(paragraph)}</p>" for paragraph in page.paragraphs)
    title = html.escape(page.title)
    return template.substitute(
        site=html.escape(page.site),
        title=title,
        summary=html.escape("".join(page.paragraphs[:1])[:_SUMMARY_CHARACTERS]),
        article=f'<article class="entry">\n<h1 class="entry-title">{title}</h1>\n{paragraphs}\n</article>',
        links="\n".join(f'<li><a href="{html.escape(url)}">{html.escape(text)}</a></li>' for url, text in page.links),
        language=page.language,
        charset=page.charset,
    )
