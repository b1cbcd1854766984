"""The caps let through what is at the cap, and nothing above it."""

import time

from resiliparse.parse.html import HTMLTree

from dataprep.pages.page_limits import MAX_ATTRIBUTES, source_breach, tree_breach


def tree(body: str) -> HTMLTree:
    return HTMLTree.parse(f"<html><body>{body}</body></html>")


def test_elements_are_counted_below_the_body() -> None:
    assert tree_breach(tree("<p>a</p>" * 10), 10, 200) is None
    assert tree_breach(tree("<p>a</p>" * 11), 10, 200) == ("too_many_elements", "11")


def test_depth_is_that_of_the_deepest_element_be_it_the_first_child_or_not() -> None:
    """<html> is level 1, the paragraphs are level 7."""
    deepest = "<div>" * 4 + "<p>first</p><p>second</p>" + "</div>" * 4
    padding = "<p>a</p>" * 20
    assert tree_breach(tree(padding + deepest), 1000, 7) is None
    assert tree_breach(tree(padding + deepest), 1000, 6) == ("too_deep", "more than 6")


def test_a_source_of_nothing_but_tags_is_refused_unparsed() -> None:
    assert source_breach("<p>a</p>" * 15, 10) is None
    assert source_breach("<p>a</p>" * 16, 10) == ("too_many_elements", "32 tags")
    assert source_breach("a < b <= c << 1; " * 1000, 10) is None


def test_attributes_of_one_tag_are_counted_with_their_quoted_values() -> None:
    def tag(attributes: int) -> str:
        return "<p " + " ".join(f'a{i}="b < c = d {"x" * 30}"' for i in range(attributes)) + ">text</p>"

    assert source_breach(tag(MAX_ATTRIBUTES), 50_000) is None
    assert source_breach(tag(MAX_ATTRIBUTES + 1), 50_000) == ("too_many_attributes", str(MAX_ATTRIBUTES + 1))


def test_the_cap_on_attributes_is_itself_fast_on_any_source() -> None:
    started = time.process_time()
    for source in ("<a" * 5_000_000, ("<a" * 9_990 + ">") * 7, "<a '" * 30_000, "<a " + "b" * 10_000_000):
        source_breach(source, 50_000)
    assert time.process_time() - started < 10
