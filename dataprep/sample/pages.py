"""The sample's pages with text: the articles in the designs of their hosts, and what is made of them.

The designs (`designs/*.html`) surround a text as pages on the web do. journal: a web log with semantic elements, a
cookie notice, a side bar, comments. newspaper: many wrappers, sections, teasers, an advertisement. homepage: written
by hand, in upper case, as in the nineties. Two have no text: app_shell, which a script fills in, and gallery,
pictures without a word.
"""

import html
import random
import re
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataprep.sample.make_pairs import contaminating_sentences
from dataprep.sample.site_folder import KEPT, SiteFolder
from dataprep.sample.texts import (
    CONTAMINATED,
    HELD_OUT_FOR_DEV,
    HELD_OUT_FOR_TEST,
    MOJIBAKE,
    Article,
    read_articles,
    split_sentences,
    word_ngrams,
)
from pipelines.identity import document_id

SEED = 20260101
DESIGNS = Path(__file__).parent / "designs"
_SUMMARY_CHARACTERS = 120
TEASER_WORDS = 60
"""Most words of a teaser, well below the floor of 128 tokens."""


@dataclass(frozen=True, slots=True)
class Host:
    """One of the sample's sites."""

    title: str
    design: str
    path: str
    """Path of an article, with {slug} in it."""
    robots: str = ""


HOSTS = {
    "garden.test": Host(
        "The Garden Wall", "journal", "/2021/04/{slug}/", "User-agent: *\nDisallow: /private/\nAllow: /private/open\n"
    ),
    "harbour.test": Host(
        "The Harbour Light", "newspaper", "/articles/{slug}.html", "User-agent: *\nDisallow: /drafts/\n"
    ),
    "kitchen.test": Host("Kitchen Table", "journal", "/posts/{slug}"),
    "library.test": Host("Reading Room", "homepage", "/read?page={slug}", "User-agent: *\nDisallow:\n"),
    "observatory.test": Host("Observatory Hill", "newspaper", "/stories/{slug}"),
    "workshop.test": Host(
        "From the Workshop", "homepage", "/{slug}.htm", "User-agent: millrace\nDisallow: /members/\n"
    ),
}

# Articles that are not simply served: an error first, a redirect, https, an old encoding.
FLAKY = ("four-towers-on-one-rock", "stars-that-change")
MOVED = ("from-rags-to-trees", "why-rivers-wander")
HTTPS = ("the-slow-fire-in-the-compost-heap", "when-noon-went-by-train")
HEADER_CHARSET, META_CHARSET = "salt-pans-by-the-sea", "three-ways-to-turn-a-wheel"
# Articles that exist in several forms.
EXACT_COPIES = {"how-snow-becomes-ice": 1, "the-summer-pasture": 2}
NEAR_COPIES = ("reading-the-brown-lines", "the-pump-in-broad-street", "why-wool-is-warm")
TEASERS = ("floating-on-tin", "the-gap-at-siccar-point", "listening-to-the-night-sky-on-medium-wave")


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page, to be filled into a design."""

    site: str
    title: str
    paragraphs: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    """(URL, text) of each."""
    language: str = "en"
    charset: str = "utf-8"
    """The charset that the page declares; the caller encodes the bytes."""


def render(design: str, page: Page) -> str:
    """Return the HTML of a page in one of the designs."""
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


def choose_hosts(articles: dict[str, Article]) -> dict[str, str]:
    """Assign the served articles to the hosts in turn."""
    served = [slug for slug in articles if slug not in HELD_OUT_FOR_DEV + HELD_OUT_FOR_TEST]
    return {slug: sorted(HOSTS)[number % len(HOSTS)] for number, slug in enumerate(served)}


def article_url(slug: str, host: str) -> str:
    """Return the URL of an article on a host."""
    return f"http://{host}{HOSTS[host].path.format(slug=slug)}"


def article_page(article: Article, host: str, **look: str) -> str:
    """Return the HTML of an article in the host's design, with a few links."""
    rng = random.Random(f"{SEED} {host} {article.slug}")
    links = [(f"/tag/{word}", word.capitalize()) for word in rng.sample(["history", "craft", "nature", "food"], 3)]
    return render(HOSTS[host].design, Page(HOSTS[host].title, article.title, article.paragraphs, links, **look))


def neighbour(host: str, steps: int) -> str:
    """Return the host `steps` further in order of name."""
    hosts = sorted(HOSTS)
    return hosts[(hosts.index(host) + steps) % len(hosts)]


def add_article_pages(site: SiteFolder) -> None:
    """Add all pages with text."""
    articles = read_articles()
    homes = choose_hosts(articles)
    for slug, host in homes.items():
        if slug not in MOJIBAKE + CONTAMINATED:
            add_article(site, articles[slug], host)
    for slug, number in EXACT_COPIES.items():
        add_exact_copies(site, articles[slug], [neighbour(homes[slug], step) for step in range(number + 1)])
    for slug in NEAR_COPIES:
        add_near_copy(site, articles[slug], neighbour(homes[slug], 2))
    for slug, sentence in zip(CONTAMINATED, contaminating_sentences()[:2], strict=True):
        add_contaminated(site, articles[slug], homes[slug], sentence)
    for slug in MOJIBAKE:
        add_mojibake(site, articles[slug], homes[slug])
    for slug in TEASERS:
        add_teaser(site, articles[slug])
    for article in read_articles("articles_foreign").values():
        url = article_url(article.slug, "library.test")
        site.add_page(url, article.slug, article_page(article, "library.test", language=article.slug[:2]))
        site.expect(url, "clean", "language", kind="foreign")


def add_article(site: SiteFolder, article: Article, host: str) -> None:
    """Add an article in its plain form; some fail at first, have moved, or are in an old encoding."""
    slug, url = article.slug, article_url(article.slug, host)
    how: dict[str, Any] = {"fail_first": 1} if slug in FLAKY else {}
    if slug == HEADER_CHARSET:
        how["headers"] = {"Content-Type": "text/html; charset=windows-1252"}
    old_encoding = {HEADER_CHARSET: "windows-1252", META_CHARSET: "iso-8859-1"}.get(slug)
    page = article_page(article, host, charset=old_encoding or "utf-8")
    site.add_page(url, slug, page, "windows-1252" if old_encoding else "utf-8", **how)
    if slug in MOVED:
        site.expect(site.serve(f"http://{host}/old/{slug}", status=301, location=url), KEPT, kind="moved")
    elif slug in HTTPS:
        site.expect(url.replace("http:", "https:"), KEPT, kind="https")
    elif slug not in EXACT_COPIES:
        site.expect(url, KEPT, kind="article")


def add_exact_copies(site: SiteFolder, article: Article, hosts: list[str]) -> None:
    """Add copies of a text on all hosts but the first; the lowest document id survives."""
    urls = [article_url(article.slug, host) for host in hosts]
    for host, url in zip(hosts[1:], urls[1:], strict=True):
        site.add_page(url, article.slug, article_page(article, host))
    survivor = min(urls, key=lambda url: document_id(url, f"{article.title}\n{article.text}"))
    for url in urls:
        stage, rule = (KEPT, "") if url == survivor else ("remove_duplicates", "exact_duplicate")
        site.expect(url, stage, rule, kind="exact copy")


def add_near_copy(site: SiteFolder, article: Article, host: str) -> None:
    """Add nearly the same text, but shorter, so that the article itself survives."""
    copy = near_copy(article)
    url = site.add_page(article_url(copy.slug, host), copy.slug, article_page(copy, host))
    site.expect(url, "remove_duplicates", "near_duplicate", kind="near copy")


def near_copy(article: Article) -> Article:
    """Return an article as another paper might reprint it: two words changed, one of the last sentences dropped."""
    paragraphs = list(article.paragraphs)
    for number, paragraph in enumerate((0, 3)):
        words = paragraphs[paragraph].split(" ")
        words[5 + number] = "perhaps"
        paragraphs[paragraph] = " ".join(words)
    last = split_sentences(paragraphs[-1])
    last.remove(min(last, key=len))
    paragraphs[-1] = " ".join(last)
    copy = Article(f"{article.slug}-reprint", article.title, tuple(paragraphs))
    original, reprint = word_ngrams(article.text, 5), word_ngrams(copy.text, 5)
    jaccard = len(original & reprint) / len(original | reprint)
    if jaccard < 0.85 or len(copy.text) >= len(article.text):
        raise ValueError(
            f"{article.slug}: its near copy has Jaccard {jaccard:.2f}, expected at least 0.85, and shorter"
        )
    return copy


def add_contaminated(site: SiteFolder, article: Article, host: str, sentence: str) -> None:
    """Add an article with a validation sentence of the pairs in its middle; no other page has one."""
    first, second, *rest = article.paragraphs
    article = Article(article.slug, article.title, (first, f"{second} {sentence}", *rest))
    url = site.add_page(article_url(article.slug, host), article.slug, article_page(article, host))
    site.expect(url, "decontaminate", "glue_overlap", kind="contaminated")


def add_mojibake(site: SiteFolder, article: Article, host: str) -> None:
    """Add an article as mojibake: UTF-8 that was read as windows-1252 and written as UTF-8 again."""
    broken = tuple(paragraph.encode().decode("windows-1252") for paragraph in article.paragraphs)
    url = article_url(article.slug, host)
    site.add_page(url, article.slug, article_page(Article(article.slug, article.title, broken), host))
    site.expect(url, KEPT, kind="mojibake")


def add_teaser(site: SiteFolder, article: Article) -> None:
    """Add the first sentences of an article, below the floor of tokens."""
    text = ""
    for sentence in article.sentences:
        if len(re.findall(r"\w+", text + sentence)) > TEASER_WORDS:
            break
        text = f"{text} {sentence}".strip()
    teaser = Article(f"teaser-{article.slug}", article.title, (text, "Read on in the printed edition."))
    url = site.add_page(
        f"http://kitchen.test/teasers/{article.slug}", teaser.slug, article_page(teaser, "kitchen.test")
    )
    site.expect(url, "clean", "too_few_tokens", kind="teaser")
