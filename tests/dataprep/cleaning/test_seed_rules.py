"""The seeds' rules: lengths of the text as it came, and no language asked for without need."""

import pytest

from dataprep.cleaning.document_text import DocumentText
from dataprep.cleaning.rules import Verdict, check
from dataprep.cleaning.seed_rules import RULES
from dataprep.languages.language import Language

SHORT, JAVASCRIPT, NOT_ENGLISH = RULES


def german() -> Language:
    return Language("de", 1.0, "test")


@pytest.mark.parametrize(("length", "reason"), [(511, "seeds_remove_512"), (512, "")])
def test_short_texts_go(length: int, reason: str) -> None:
    assert check(SHORT, DocumentText("x" * length), 512) == Verdict(reason, length)
    assert check(SHORT, DocumentText("edited", "x" * length), 512).reason == reason


def test_shorter_ones_go_that_say_javascript() -> None:
    text = "Please turn on JavaScript."
    assert check(JAVASCRIPT, DocumentText(text), 256) == Verdict("seeds_remove_256_javascript", len(text))
    assert check(JAVASCRIPT, DocumentText(text * 10), 256).reason == ""
    assert check(JAVASCRIPT, DocumentText("Please turn on the mill."), 256) == Verdict("", None)


def test_short_texts_in_other_languages_go() -> None:
    document = DocumentText("Die Mühle", language=german)
    assert check(NOT_ENGLISH, document, 512) == Verdict("seeds_remove_512_non_english", 9)
    english = DocumentText("The mill", language=lambda: Language("en", 1.0, "test"))
    assert check(NOT_ENGLISH, english, 512) == Verdict("", None)


def test_no_language_is_asked_for_when_the_text_is_long_enough() -> None:
    def asked() -> Language:
        raise AssertionError("the language of a long text was asked for")

    assert check(NOT_ENGLISH, DocumentText("x" * 512, language=asked), 512).reason == ""
