"""Megatron's rules judge the text as read, and detect languages only if needed; its edits are as in its script."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.clean.language.language import Language
from dataprep.clean.rules import megatron
from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.megatron import RULES
from tests.samples import Data
from tests.work import at_most

SHORT, JAVASCRIPT, NOT_ENGLISH = RULES


def german() -> Language:
    return Language("de", 1.0, "test")


@pytest.mark.parametrize(("length", "value"), [(511, 511), (512, None)])
def test_short_texts_are_rejected(length: int, value: int | None) -> None:
    assert SHORT.name == "seeds_remove_512"
    assert SHORT.failing_value(DocumentText("x" * length), 512) == value
    assert SHORT.failing_value(DocumentText("edited", "x" * length), 512) == value


def test_shorter_texts_are_rejected_that_contain_javascript() -> None:
    text = "Please turn on JavaScript."
    assert JAVASCRIPT.name == "seeds_remove_256_javascript"
    assert JAVASCRIPT.failing_value(DocumentText(text), 256) == len(text)
    assert JAVASCRIPT.failing_value(DocumentText(text * 10), 256) is None
    assert JAVASCRIPT.failing_value(DocumentText("Please turn on the mill."), 256) is None


def test_short_texts_in_other_languages_are_rejected() -> None:
    document = DocumentText("Die Mühle", language=german)
    assert NOT_ENGLISH.name == "seeds_remove_512_non_english"
    assert NOT_ENGLISH.failing_value(document, 512) == 9
    english = DocumentText("The mill", language=lambda: Language("en", 1.0, "test"))
    assert NOT_ENGLISH.failing_value(english, 512) is None


def test_no_language_is_detected_when_the_text_is_long_enough() -> None:
    def detect() -> Language:
        raise AssertionError("the language of a long text was detected")

    assert NOT_ENGLISH.failing_value(DocumentText("x" * 512, language=detect), 512) is None


TEXTS = st.text(st.sampled_from("a_é. \n\r\t'!?.-@5"), max_size=40)


@given(TEXTS)
def test_general_cleaning_is_megatrons_expression(text: str):
    assert megatron.general_cleaning(text) == re.sub(r"  +|\b\n+ |\b\n+", " ", text)


@given(TEXTS)
def test_stories_are_megatrons_expressions_in_their_order(text: str):
    expected = text
    for pattern, straight in ((" '", "'"), (" !", "!"), (r" \.", "."), (r" \?", "?"), (" - ", "-"), (" @ ", "@")):
        expected = re.sub(pattern, straight, expected)
    assert megatron.stories(text) == expected


@pytest.mark.parametrize(
    ("edit", "text", "edited"),
    [
        (
            megatron.general_cleaning,
            "two  spaces,\nand a\nwrapped line.\n\nNext",
            "two spaces,\nand a wrapped line.\n\nNext",
        ),
        (megatron.stories, "it 's late ! why ? a well - known 6 @ 7", "it's late! why? a well-known 6@7"),
        (megatron.realnews, "one\ntwo\n", "one\n\ntwo\n\n"),
        (megatron.gutenberg, "no book\n\n\n\nat all", "no book\n\nat all"),
    ],
)
def test_the_edits_of_the_data_sets(edit, text: str, edited: str):
    assert edit(text) == edited


def book(header: str, footer: str) -> str:
    return (
        f"The Project Gutenberg EBook of A Title\n\nNotes\n{header}\n\n\n\nA TITLE\n\n\n\nOnce.\n\n{footer}\nlicence\n"
    )


@pytest.mark.parametrize(
    ("header", "footer"),
    [
        (
            "*** START OF THIS PROJECT GUTENBERG EBOOK A TITLE ***",
            "*** END OF THIS PROJECT GUTENBERG EBOOK A TITLE ***",
        ),
        (
            "***START OF THE PROJECT GUTENBERG EBOOK A\nLONG TITLE***",
            "***END OF THE PROJECT GUTENBERG EBOOK A TITLE***",
        ),
        ("*** START OF THE PROJECT GUTENBERG EBOOK, A TITLE ***", "End of Project Gutenberg's A Title, by Nobody"),
        (
            "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*",
            "End of this Project Gutenberg Etext of A",
        ),
        ("*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*", "Ende dieses Projekt Gutenberg Etextes"),
        (
            "*** START OF THIS PROJECT GUTENBERG EBOOK A ***\n\nProduced by Some\nOne\n\nTranscribed from X",
            "End of the Project Gutenberg EBook",
        ),
    ],
)
def test_only_the_book_is_left_of_the_editions_of_all_years(header: str, footer: str):
    assert megatron.gutenberg(book(header, footer)) == "A TITLE\n\nOnce."
    windows = book(header, footer).replace("\n", "\r\n")
    assert megatron.gutenberg(windows).split() == ["A", "TITLE", "Once."]


def test_small_print_behind_the_book_does_not_begin_it():
    footer = "*** END OF THE PROJECT GUTENBERG EBOOK ***\n\n*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*\n"
    assert megatron.gutenberg(f"A TITLE\n\nOnce.\n\n{footer}") == "A TITLE\n\nOnce."


def read(file: Path) -> str:
    """These files are UTF-8 or, like all with -8 in their name, Latin-1."""
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return file.read_bytes().decode("latin-1")


def test_no_header_and_no_licence_is_left_of_whole_files(data: Data):
    files = sorted((data.folder / "text" / "gutenberg").glob("*.txt"))
    num_files, least = (20, 10_000) if data.real else (5, 2_000)
    assert len(files) > num_files
    for file in files:
        raw = read(file)
        text = megatron.gutenberg(raw)
        assert len(text) > (0.8 if data.real else 0.6) * len(raw), file.name
        assert data.real or text.startswith(("PATHS AND RIVERS", "QUATRE CONTES"))
        assert len(raw) - len(text) > least, file.name  # header and licence
        for leftover in (
            "START OF THE PROJECT",
            "*** END OF",
            "END THE SMALL PRINT",
            "Literary Archive",
            "Produced by",
        ):
            assert leftover not in text, (file.name, leftover)
        assert not re.search("(?i)gutenberg", text[-500:]) or "Ontboezemingen" in file.name


@pytest.mark.parametrize(
    "part",
    [
        "\n",
        " ",
        "a\n",
        " \n",
        "\r\n",
        "*",
        "*** START OF THE PROJECT GUTENBERG ",
        "\n*** START OF THE PROJECT GUTENBERG",
        "Produced by\n\n",
    ],
)
@pytest.mark.nightly
@pytest.mark.parametrize("edit", [megatron.general_cleaning, megatron.stories, megatron.gutenberg])
def test_hostile_texts_take_linear_time(edit, part: str):
    text = "*** START OF THE PROJECT GUTENBERG EBOOK ***\n" + part * (200_000 // len(part))
    with at_most(2):
        edit(text)
