"""Pages that hang, explode or are simply odd: each is a reason, and the next page is worked on as before."""

import os
import signal
import time
from pathlib import Path

import pytest

from dataprep.pages import page_child
from dataprep.pages.html_text import page_text
from dataprep.pages.page_child import ChildOptions, PageChild
from dataprep.sample.texts import read_articles
from tests.dataprep.sites import HTML, TEXT

OPTIONS = ChildOptions(max_elements=50_000, max_depth=200, tables=True, seconds=30.0)
ARTICLE = HTML.format(TEXT).encode()
# libxml2 compares each attribute with all before it: 60 s for 200,000 of them, in C.
MANY_ATTRIBUTES = b"<html><body><p " + b" ".join(b'a%d="x"' % i for i in range(100_000)) + b">text</p></body></html>"


def text_of(body: bytes, charset: str | None = None, *, tables: bool = True) -> tuple[str, str, str]:
    found = page_text(body, charset, max_elements=50_000, max_depth=200, tables=tables)
    return found.text, found.rule, found.value


@pytest.fixture(scope="module")
def child() -> PageChild:
    return PageChild(OPTIONS)


def test_a_child_says_what_the_function_says(child: PageChild) -> None:
    article = next(iter(read_articles().values()))
    page = f"<html><body><article><h1>{article.title}</h1><p>{article.text}</p></article></body></html>"
    for body, charset in (
        (ARTICLE, None),
        (page.encode(), "utf-8"),
        (b"", None),
        (b"no page", "x"),
        (b"<" * 1000, None),
    ):
        found = child.extract(body, charset)
        assert (found.text, found.rule, found.value) == text_of(body, charset)


def test_the_order_of_pages_makes_no_difference(child: PageChild) -> None:
    pages = [HTML.format(article.text).encode() for article in list(read_articles().values())[:12]]
    forwards = [child.extract(page, None) for page in pages]
    backwards = [PageChild(OPTIONS).extract(page, None) for page in pages[:3][::-1]][::-1]
    assert [child.extract(page, None) for page in reversed(pages)] == forwards[::-1]
    assert backwards == forwards[:3]


def test_a_page_that_takes_too_long_is_ended_even_inside_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_child, "RETRY_FACTOR", 2)
    child = PageChild(ChildOptions(50_000, 200, True, 0.4))
    assert child.extract(ARTICLE, None).text
    started = time.monotonic()
    found = child.extract(MANY_ATTRIBUTES, None)
    assert (found.rule, found.value) == ("extract_timeout", "0.8 s of CPU time")
    assert time.monotonic() - started < 20
    assert child.extract(ARTICLE, None).text, "the next page has a new child"
    child.close()


def test_a_page_that_needed_more_time_once_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first child runs out of its 30 ms, the second one has 30 s."""
    monkeypatch.setattr(page_child, "RETRY_FACTOR", 1000)
    child = PageChild(ChildOptions(50_000, 200, True, 0.03))
    many = b"<html><body>" + b"<p>The miller opens the gate at dawn.</p>" * 8000 + b"</body></html>"
    assert child.extract(many, None).text
    child.close()


def test_a_child_that_was_killed_is_replaced(child: PageChild) -> None:
    assert child.extract(ARTICLE, None).text
    process = child._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    assert child.extract(ARTICLE, None).text
    assert child._process is not process


def test_a_child_ends_with_its_parent() -> None:
    child = PageChild(OPTIONS)
    child.extract(ARTICLE, None)
    process = child._process
    assert process is not None
    child._connection.close()
    assert process.wait(timeout=10) == 0


def test_a_greedy_child_is_replaced_after_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_child, "RECYCLE_KILOBYTES", 1)
    child = PageChild(OPTIONS)
    assert child.extract(ARTICLE, None).text
    assert child._process is None
    assert child.extract(ARTICLE, None).text
    child.close()


@pytest.mark.parametrize(
    ("body", "rule", "value"),
    [
        (b"", "not_html", "no tags that make a page"),
        (b"just words, no tags at all", "not_html", "no tags that make a page"),
        (b"\x00\x01\x02" * 500, "not_html", "no tags that make a page"),
        (b"<html><body></body></html>", "empty_text", "page of 26 bytes"),
        (b"<html><body><script>var a = 'text';</script></body></html>", "empty_text", "page of 58 bytes"),
        (b"<html><body>" + b"<div>" * 100_000 + b"deep", "too_deep", "256"),
        (b"<html><body>" + b"<p>a</p>" * 60_000, "too_many_elements", "60002"),
    ],
    ids=["nothing", "words", "binary", "empty", "script", "deep", "many"],
)
def test_a_page_without_a_text_has_its_reason(body: bytes, rule: str, value: str) -> None:
    assert text_of(body) == ("", rule, value)


def test_boilerplate_and_comments_are_left_out_and_tables_are_a_choice() -> None:
    page = (
        "<html><head><title>Title</title></head><body><nav><a href='/'>Home</a> <a href='/a'>About us</a></nav>"
        f"<article><h1>The mill</h1><p>{TEXT}</p><table><tr><td>one cell</td><td>another</td></tr></table></article>"
        "<section id='comments'><h3>Comments</h3><p>Great post, thank you so much for this!</p></section>"
        "<footer><p>All rights reserved.</p></footer></body></html>"
    ).encode()
    text, rule, _ = text_of(page)
    assert rule == ""
    assert text.startswith("The mill\nThe miller opens the gate")
    assert "one cell" in text
    for boilerplate in ("About us", "Great post", "rights reserved", "Title"):
        assert boilerplate not in text
    assert "one cell" not in text_of(page, tables=False)[0]


@pytest.mark.parametrize("tag", ["div", "p", "pre", "table"])
def test_a_page_without_html_and_head_is_a_page(tag: str) -> None:
    cell = f"<tr><td>{TEXT}</td></tr>" if tag == "table" else TEXT
    text, rule, _ = text_of(f"\n\n<{tag}>{cell}</{tag}>".encode())
    assert rule == ""
    assert "The miller opens the gate" in text


def test_an_xhtml_page_with_an_encoding_declaration_is_read() -> None:
    page = f'<?xml version="1.0" encoding="iso-8859-1"?>{HTML.format("Früh am Morgen. " + TEXT)}'.encode("latin-1")
    assert text_of(page)[0].startswith("Früh am Morgen.")


def test_the_limits_are_wide_enough_for_real_pages() -> None:
    """The largest page of three real collections has 3,000 elements, 98 levels."""
    folder = Path(__file__).parents[4] / "shared" / "data" / "html" / "scrapinghub" / "html"
    if not folder.exists():
        pytest.skip("needs the real pages in ../shared/data/html")
    import gzip

    from trafilatura.utils import load_html

    from dataprep.pages.html_text import tree_size

    for file in sorted(folder.glob("*.html.gz"))[:40]:
        tree = load_html(gzip.decompress(file.read_bytes()))
        elements, depth = tree_size(tree)
        assert elements < OPTIONS.max_elements / 5
        assert depth < OPTIONS.max_depth
