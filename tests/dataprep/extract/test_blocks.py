"""The blocks of a page, what speaks for each being main text, and the learned table."""

import math

import pytest
from resiliparse.parse.html import HTMLTree

from dataprep.extract import blocks as page_blocks
from dataprep.extract.block_weights import WEIGHTS
from dataprep.extract.blocks import BINS, KINDS, Block, bins, main_blocks, probabilities, read_blocks
from tests.dataprep.extract.page_options import extracted
from tests.dataprep.sites import TEXT


def blocks_of(body: str, *, tables: bool = True) -> list[Block]:
    return read_blocks(HTMLTree.parse(f"<html><body>{body}</body></html>"), tables=tables)


def test_a_block_is_a_line_with_its_kind_and_the_characters_of_its_links() -> None:
    found = blocks_of(
        "<h2>The mill</h2><p>See <a href=a>the &lt;wheel&gt;</a> turn</p><ul><li>one<li><a href=b>two</a></ul>"
        "<table><tr><td>a</td><td>b</td></tr></table><pre>x\n\n  if a &lt; b:</pre>"
        "<div>loose<br><a href=c>first<br>second</a></div>"
    )
    assert [(KINDS[kind], text, links) for kind, text, links in found] == [
        ("heading", "The mill", 0),
        ("paragraph", "See the <wheel> turn", 11),
        ("item", "one", 0),
        ("item", "two", 3),
        ("row", "a\t\tb", 0),
        ("preformatted", "x", 0),
        ("preformatted", "  if a < b:", 0),
        ("text", "loose", 0),
        ("text", "first", 5),
        ("text", "second", 6),
    ]


@pytest.mark.parametrize("empty", ["<a name=top></a>", "<ul><li></li></ul>", "<pre></pre>", "<pre>\n</pre>"])
def test_an_empty_element_does_not_make_what_follows_its_own(empty: str) -> None:
    found = blocks_of(f"{empty}<div>The mill turns.</div><p>Day and night.</p>")
    assert found == [
        Block(KINDS.index("text"), "The mill turns.", 0),
        Block(KINDS.index("paragraph"), "Day and night.", 0),
    ]


def test_blocks_of_tables_are_a_choice() -> None:
    body = "<p>text</p><table><tr><td>a</td><td>b</td></tr></table>"
    assert [block.text for block in blocks_of(body, tables=False)] == ["text"]


def test_the_table_has_a_weight_for_each_bin() -> None:
    assert {name: len(weights) for name, weights in WEIGHTS.items()} == BINS


@pytest.mark.parametrize("body", ["<p>a</p>", f"<p>{TEXT}</p><p>12,3</p>" * 30, "<li>©</li>" * 9 + "<p>,</p>"])
def test_each_feature_of_a_block_has_one_of_its_bins(body: str) -> None:
    blocks = blocks_of(body)
    for places in bins(blocks, TEXT.strip(), ""):
        assert len(places) == len(BINS)
        first = 0
        for place, size in zip(places, BINS.values(), strict=True):
            assert first <= place < first + size
            first += size


def test_no_probability_is_so_near_the_next_that_rounding_could_depend_on_the_machine() -> None:
    for score in range(-2000, 2001):
        assert abs(1000 / (1 + math.exp(-score / 100)) % 1 - 0.5) > 1e-6


def test_long_blocks_outside_another_reading_are_searched_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_blocks, "_MOST_SEARCHED", 3 * len(TEXT))
    has = page_blocks._In(TEXT)
    long = TEXT.strip()[1:]
    assert has(long)
    assert not any(has(f"{number} {long}") for number in range(3))
    assert not has(long)
    assert has(TEXT.strip())


def test_probabilities_are_logistic_in_the_sum_of_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {name: (0,) * size for name, size in BINS.items()}
    monkeypatch.setattr(page_blocks, "WEIGHTS", table | {"ends": (-110, 110)})
    blocks = [Block(2, "It turns.", 0), Block(2, "menu", 0)]
    assert probabilities(blocks, "", "") == [750, 250]
    text, expected = main_blocks(blocks, "", "")
    assert text == "It turns."
    assert expected == 2 * 9 * 750 / (9 * 1000 + 9 * 750 + 4 * 250)


def test_a_page_without_blocks_has_no_text_and_nothing_is_expected_of_it() -> None:
    assert main_blocks([], "", "") == ("", 0.0)


def test_paragraphs_are_kept_and_menus_and_footers_are_not() -> None:
    menu = "<ul>" + "".join(f"<li><a href=/{i}>Department {i}</a></li>" for i in range(20)) + "</ul>"
    paragraphs = [f"<p>On day {i}, {TEXT}</p>" for i in range(5)]
    footer = "<div>Copyright 2012. All rights reserved.</div>"
    page = f"<html><body>{menu}<div>{''.join(paragraphs)}</div>{menu}{footer}</body></html>"
    found = extracted(page)
    assert found.extractor == "resiliparse"
    lines = found.text.split("\n")
    assert {f"On day {i}, {TEXT}".strip() for i in range(5)} <= set(lines)
    assert not {"- Department 3", "- Department 10", "Copyright 2012. All rights reserved."} & set(lines)


def test_kept_items_have_their_bullets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_blocks, "WEIGHTS", {name: (10,) * size for name, size in BINS.items()})
    assert main_blocks([Block(KINDS.index("item"), "one", 0), Block(0, "two", 0)], "", "")[0] == "- one\ntwo"
