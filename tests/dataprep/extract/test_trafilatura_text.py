"""trafilatura on a smaller tree gives the same text, but for the layout of tables."""

import lxml.etree
import trafilatura

from benchmarks import page_sets
from dataprep.extract.trafilatura_text import lay_out_tables, main_text, parse
from dataprep.text.charset import decode_html
from tests.dataprep.sites import TEXT
from tests.samples import Data


def page(table: str) -> str:
    return f"<html><body><article><p>{TEXT}</p><table>{table}</table><p>{TEXT}</p></article></body></html>"


def test_a_row_is_a_line_of_cells_without_bars() -> None:
    rows = "<tr><th>Name</th><th>Age</th></tr><tr><td>Ann</td><td>12</td></tr><tr><td colspan=2>no one else</td></tr>"
    text = main_text(page(rows), fast=True, precision=False, tables=True)
    assert "\nName\tAge\nAnn\t12\nno one else\n" in text
    assert "|" not in text


def test_cells_that_hold_paragraphs_keep_them_apart() -> None:
    cells = f"<tr><td><p>{TEXT}</p><p>The other paragraph of this cell.</p></td><td>a side note</td></tr>"
    text = main_text(page(cells), fast=True, precision=False, tables=True)
    assert f"\n{TEXT.strip()}\nThe other paragraph of this cell.\na side note\n" in text


def test_a_bar_that_the_author_wrote_stays() -> None:
    text = main_text(page("<tr><td>a | b</td><td>c</td></tr>"), fast=True, precision=False, tables=True)
    assert "a | b\tc" in text


def test_a_span_of_quadrillions_makes_no_cells() -> None:
    body = "<tr><td colspan=9000000000000000 rowspan=9000000000000000>one cell</td></tr>" * 50
    assert main_text(page(body), fast=True, precision=False, tables=True).count("one cell") == 50


def test_the_layout_leaves_text_between_tables_alone() -> None:
    body = lxml.etree.fromstring("<body><table><row><cell>a</cell></row></table>tail<p>b</p></body>")
    lay_out_tables(body)
    assert lxml.etree.tostring(body) == b"<body><div><p>a</p></div>tail<p>b</p></body>"


def test_what_lxml_refuses_is_cut_and_what_carries_text_stays() -> None:
    tree = parse(f"<body><p>\0a\x01b\ufffe\uffff {TEXT}</p><svg>x</svg><nav>y</nav><form><p>kept</p></form></body>")
    assert "ab The miller" in "".join(tree.itertext())
    assert [tag for tag in ("svg", "nav", "form") if tree.find(f".//{tag}") is not None] == ["form"]


def test_whole_pages_have_the_text_of_trafilatura_itself(data: Data) -> None:
    """Few differ: where it takes second tries by the length of parts that are cut here."""
    different = 0
    pages = page_sets.load(data.folder / "html", "scrapinghub")[:40]
    for each in pages:
        source = decode_html(each.body, None)
        theirs = trafilatura.extract(source, fast=True, include_comments=False, include_tables=False)
        different += main_text(source, fast=True, precision=False, tables=False) != (theirs or "")
    assert different <= 2
