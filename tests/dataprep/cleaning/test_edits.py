"""The edits come in their order, each only when asked for, and each says when it changed a text."""

import pytest

from dataprep.cleaning.config import CleanConfig, FtfySwitches
from dataprep.cleaning.edits import Edits, count_edits, count_lines, edit_columns, edit_fields
from dataprep.cleaning.thresholds import C4Lines, C4Rules
from pipelines.manifest import Counts

BOOK = "Header\n*** START OF THE PROJECT GUTENBERG EBOOK ***\nOnce a mill\nturned.\n*** END OF THE PROJECT GUTENBERG"

BOTH = ("gutenberg", "general_cleaning")


@pytest.mark.parametrize(
    ("config", "text", "expected", "changes"),
    [
        (CleanConfig(), "plain", "plain", ()),
        (CleanConfig(), "“schÃ¶n”", '"schön"', ("encoding", "quotes")),
        (CleanConfig(uncurl_quotes=False), "“schÃ¶n”", "“schön”", ("encoding",)),
        (CleanConfig(ftfy=FtfySwitches(fix_encoding=False)), "“schÃ¶n”", '"schÃ¶n"', ("quotes",)),
        (CleanConfig(repair=False), "“schÃ¶n”", "“schÃ¶n”", ()),
        (CleanConfig(general_cleaning=True), "a  b\nc", "a b c", ("general_cleaning",)),
        (CleanConfig(general_cleaning=True, compat=True), "a  b\nc", "a  b\nc", ()),
        (CleanConfig(general_cleaning=True, compat=True, repair=False), "a  b\nc", "a b c", ("general_cleaning",)),
        (CleanConfig(gutenberg=True, general_cleaning=True), BOOK, "Once a mill turned.", BOTH),
        (CleanConfig(stories=True), "it 's done .", "it's done.", ("stories",)),
        (CleanConfig(realnews=True), "a\nb", "a\n\nb", ("realnews",)),
    ],
)
def test_an_edit_is_made_when_asked_for_and_said(
    config: CleanConfig, text: str, expected: str, changes: tuple[str, ...]
) -> None:
    edited = Edits(config).apply(text)
    assert (edited.text, edited.changes) == (expected, changes)


def test_masking_comes_last_and_also_to_the_text_before_lines_were_cut() -> None:
    config = CleanConfig(mask=("email",), c4=C4Rules(lines=C4Lines(min_words=3)))
    edited = Edits(config).apply("Ask miller@mill.example about this mill.\nOr me@mill.example!")
    assert edited.text == "Ask |||EMAIL_ADDRESS||| about this mill."
    assert edited.uncut == "Ask |||EMAIL_ADDRESS||| about this mill.\nOr |||EMAIL_ADDRESS|||!"
    assert edited.changes == ("c4_lines", "masked")
    assert dict(edited.masked) == {"email": 1}


def test_lines_that_c4_takes_out_are_counted_for_each_reason() -> None:
    config = CleanConfig(c4=C4Rules(lines=C4Lines(min_words=3, javascript=True, citations=True)))
    counts = Counts()
    for text in ("Two words\nEnable javascript to see it.\nThe mill [1] turns [2].", "JavaScript, please, now.\nNo."):
        count_lines(Edits(config).apply(text), counts)
    assert counts.totals == {"c4_lines_few_words": 2, "c4_lines_javascript": 2, "c4_citations": 2}


def test_a_text_that_needs_too_much_repair_is_counted_and_is_not_called_repaired() -> None:
    counts = Counts()
    edited = Edits(CleanConfig()).apply("é &" + "amp;" * 5000)
    assert edited.changes == ("unrepaired",)
    count_edits(edit_columns(edited), counts)
    assert counts.totals == {"edit_unrepaired": 1, "repaired": 0}


def test_columns_and_counts_say_what_was_done() -> None:
    config = CleanConfig(mask=("email",))
    counts = Counts()
    for text in ("“Ask” a@mill.example or b@mill.example.", "plain", "me@mill.example"):
        columns = edit_columns(Edits(config).apply(text))
        assert {field.name for field in edit_fields(config)} == columns.keys()
        count_edits(columns, counts)
    assert counts.totals == {"edit_quotes": 1, "edit_masked": 2, "repaired": 1, "masked_email": 3}
    assert [field.name for field in edit_fields(CleanConfig())] == ["repairs"]
