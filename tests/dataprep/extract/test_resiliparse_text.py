"""The article that a page marks, where its text agrees with the page's."""

import pytest
from resiliparse.parse.html import HTMLTree

from dataprep.extract.resiliparse_text import PageReader, marked_elements, tidy
from tests.dataprep.sites import TEXT

OTHER = "Potters in the valley dig their clay in autumn, and leave it to the frost of one whole winter. " * 10


def reader(body: str, *, tables: bool = True) -> PageReader:
    return PageReader(HTMLTree.parse(f"<html><body>{body}</body></html>"), tables=tables)


@pytest.mark.parametrize(
    "tag",
    [
        "<article>",
        "<div itemprop=articleBody>",
        "<div class='wide post-content'>",
        "<section class='article__body'>",
        "<div id=story-body>",
        "<main class='page-content'>",
        "<div id=content>",
        "<div class='elementor-widget elementor-widget-theme-post-content'>",
    ],
)
def test_an_element_that_says_it_is_the_article_is_read_without_what_is_around_it(tag: str) -> None:
    before = "<div class=crumbs><p>Reported by our man at the mill, and looked after by two others.</p></div>"
    page = reader(f"{before}{tag}<p>{TEXT}</p><p class='img-caption'>The gate by night.</p></{tag[1:].split()[0]}")
    assert page.marked_text == TEXT.strip()


@pytest.mark.parametrize(
    "body",
    [
        f"<div class=wide><p>{TEXT}</p></div>",
        f"<article><p>{TEXT}</p></article><div><p>{OTHER}</p></div>",
        "<article><p>Too short to tell.</p></article>",
        f"<div class='post-body'></div><p>{TEXT}</p>",
        f"<span class='post-body'>{TEXT}</span>",
        "",
    ],
    ids=["nothing marked", "half of the page", "short", "empty", "no container", "no page"],
)
def test_a_page_whose_marks_do_not_agree_with_it_gives_no_marked_text(body: str) -> None:
    assert reader(body).marked_text == ""


def test_bodies_go_before_articles_and_these_before_main_parts() -> None:
    page = "<main id=content><article><div class='ENTRY-CONTENT'></div></article></main><div class=discontent></div>"
    tree = HTMLTree.parse(f"<html><body>{page}</body></html>")
    found = marked_elements(tree)
    assert [element.tag for element in found][-2:] == ["article", "main"]


def test_the_layout_is_one_line_for_each_block() -> None:
    assert tidy("  one\n\n\n\t\ttwo\t\tthree\t\n • four\n \n5\u0301\n") == "  one\ntwo\tthree\n - four\n5\u0301"
    assert tidy("e\u0301") == "é"


def test_tables_are_a_choice() -> None:
    body = f"<article><p>{TEXT}</p><table><tr><td>Ann</td><td>12</td></tr></table></article>"
    assert reader(body).marked_text.endswith("Ann\t12")
    assert "Ann" not in reader(body, tables=False).marked_text
