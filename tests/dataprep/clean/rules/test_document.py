"""A document's text: what rules share is computed once, in blocks of bounded size, and earlier states are kept."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.clean.language.language import Language
from dataprep.clean.rules.document import HEAD_CHARACTERS, DocumentText
from dataprep.clean.rules.words import split_words

LINES = st.text(alphabet="ab \n\r\v\x1c\x85\u2028", max_size=60)


def test_earlier_states_are_the_text_itself_unless_given() -> None:
    plain = DocumentText("text")
    assert (plain.original, plain.uncut) == ("text", plain)
    edited = DocumentText("left", "as it came", uncut="left and right")
    assert (edited.text, edited.original, edited.uncut.text, edited.uncut.original) == (
        "left",
        "as it came",
        "left and right",
        "as it came",
    )


def test_what_rules_share_is_found_once() -> None:
    asked: list[str] = []

    def length(document: DocumentText) -> int:
        asked.append(document.text)
        return len(document.text)

    document = DocumentText("mill")
    assert [document.once(length), document.once(length)] == [4, 4]
    assert asked == ["mill"]


def test_the_language_is_asked_for_once_and_only_when_wanted() -> None:
    asked: list[int] = []

    def language() -> Language:
        asked.append(1)
        return Language("de", 0.9, "test")

    document = DocumentText("Die Mühle", language=language)
    assert asked == []
    assert [document.language, document.language] == [Language("de", 0.9, "test")] * 2
    assert asked == [1]
    assert DocumentText("Die Mühle").language is None


@given(LINES)
def test_blocks_of_lines_hold_all_lines(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dataprep.clean.rules.document._LINES_BLOCK", 5)
        document = DocumentText(text)
        blocks = [line for block in document.line_blocks() for line in block]
        full = [line for block in document.full_line_blocks() for line in block]
    assert blocks == text.splitlines()
    assert full == [line for line in text.split("\n") if line.strip()]


def test_words_of_a_text_longer_than_its_head_are_all_counted() -> None:
    text = "the mill by the river, " * (HEAD_CHARACTERS // 20)
    document = DocumentText(text)
    assert len(document.head) == HEAD_CHARACTERS
    blocks = list(document.word_blocks())
    assert len(blocks) > 1
    assert [word for block in blocks for word in block] == split_words(text)


def test_a_document_leaves_memory_with_its_last_name() -> None:
    gc.disable()
    try:
        document = DocumentText("mill")
        assert document.uncut.head_words == ["mill"]
        left = weakref.ref(document)
        del document
        assert left() is None
    finally:
        gc.enable()
