"""Which library makes the text, and when the other one is asked."""

import pytest
from resiliparse.parse.html import HTMLTree

from dataprep.pages import trafilatura_text
from dataprep.pages.extractors import FALLBACK_RATIO, main_text
from tests.dataprep.pages.page_options import OPTIONS, extracted
from tests.dataprep.sites import TEXT

MARKED = f"<html><body><article><p>{TEXT}</p></article></body></html>"
UNMARKED = f"<html><body><div class=wide><p>{TEXT}</p><p>{TEXT.upper()}</p></div></body></html>"


@pytest.mark.parametrize(
    ("extractor", "page", "library"),
    [
        ("routed", MARKED, "resiliparse"),
        ("routed", UNMARKED, "trafilatura"),
        ("trafilatura", MARKED, "trafilatura"),
        ("precision", MARKED, "trafilatura"),
        ("resiliparse", MARKED, "resiliparse"),
        ("resiliparse", UNMARKED, "resiliparse"),
    ],
)
def test_the_extractor_and_the_page_decide_which_library_it_is(extractor: str, page: str, library: str) -> None:
    found = extracted(page, extractor=extractor)
    assert found.extractor == library
    assert "The miller opens the gate" in found.text


@pytest.mark.parametrize(
    ("chars", "fallback_chars", "library"),
    [
        (0, 1000, "resiliparse"),
        (len(TEXT) // FALLBACK_RATIO - 1, 1000, "resiliparse"),
        (len(TEXT) // FALLBACK_RATIO + 1, 1000, "trafilatura"),
        (20, 0, "trafilatura"),
        (20, 20, "trafilatura"),
        (20, 21, "resiliparse"),
    ],
)
def test_a_short_text_gives_way_to_one_that_is_five_times_as_long(
    monkeypatch: pytest.MonkeyPatch, chars: int, fallback_chars: int, library: str
) -> None:
    monkeypatch.setattr(trafilatura_text, "main_text", lambda *_, **__: "x" * chars)
    found = extracted(MARKED, extractor="trafilatura", fallback_chars=fallback_chars)
    assert found.extractor == library


def test_trafilatura_is_asked_where_resiliparse_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trafilatura_text, "main_text", lambda *_, **__: "its text")
    assert extracted("<html><body><p>.", extractor="resiliparse", fallback_chars=5).text == "its text"


def test_a_text_that_nobody_finds_is_empty() -> None:
    source = "<html><body><script>x</script></body></html>"
    assert main_text(source, HTMLTree.parse(source), OPTIONS)[0] == ""
