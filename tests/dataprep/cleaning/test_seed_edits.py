import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cleaning import seed_edits

BOOKS = Path(__file__).parents[3].parent / "shared/data/text/gutenberg"
TEXTS = st.text(st.sampled_from("a_é. \n\r\t'!?.-@5"), max_size=40)


@given(TEXTS)
def test_general_cleaning_is_the_seeds_expression(text: str):
    assert seed_edits.general_cleaning(text) == re.sub(r"  +|\b\n+ |\b\n+", " ", text)


@given(TEXTS)
def test_stories_are_the_seeds_expressions_in_their_order(text: str):
    expected = text
    for pattern, straight in ((" '", "'"), (" !", "!"), (r" \.", "."), (r" \?", "?"), (" - ", "-"), (" @ ", "@")):
        expected = re.sub(pattern, straight, expected)
    assert seed_edits.stories(text) == expected


@pytest.mark.parametrize(
    ("edit", "text", "edited"),
    [
        (
            seed_edits.general_cleaning,
            "two  spaces,\nand a\nwrapped line.\n\nNext",
            "two spaces,\nand a wrapped line.\n\nNext",
        ),
        (seed_edits.stories, "it 's late ! why ? a well - known 6 @ 7", "it's late! why? a well-known 6@7"),
        (seed_edits.realnews, "one\ntwo\n", "one\n\ntwo\n\n"),
        (seed_edits.gutenberg, "no book\n\n\n\nat all", "no book\n\nat all"),
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
    assert seed_edits.gutenberg(book(header, footer)) == "A TITLE\n\nOnce."
    windows = book(header, footer).replace("\n", "\r\n")
    assert seed_edits.gutenberg(windows).split() == ["A", "TITLE", "Once."]


def test_small_print_behind_the_book_does_not_begin_it():
    footer = "*** END OF THE PROJECT GUTENBERG EBOOK ***\n\n*END THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*\n"
    assert seed_edits.gutenberg(f"A TITLE\n\nOnce.\n\n{footer}") == "A TITLE\n\nOnce."


def read(file: Path) -> str:
    """These files are UTF-8 or, like all with -8 in their name, Latin-1."""
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        return file.read_bytes().decode("latin-1")


def test_no_header_and_no_licence_is_left_of_real_files():
    if not BOOKS.is_dir():
        pytest.skip("needs ../shared/data")
    files = sorted(BOOKS.glob("*.txt"))
    assert len(files) > 20
    for file in files:
        raw = read(file)
        text = seed_edits.gutenberg(raw)
        assert len(text) > 0.8 * len(raw), file.name
        assert len(raw) - len(text) > 10_000, file.name  # header and licence
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
@pytest.mark.parametrize("edit", [seed_edits.general_cleaning, seed_edits.stories, seed_edits.gutenberg])
def test_hostile_texts_take_linear_time(edit, part: str):
    text = "*** START OF THE PROJECT GUTENBERG EBOOK ***\n" + part * (2_000_000 // len(part))
    started = time.process_time()
    edit(text)
    assert time.process_time() - started < 2
