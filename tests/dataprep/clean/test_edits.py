"""Edits are applied in their order if switched on, and recorded; masking replaces personal data and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.clean.config import C4Lines, C4Rules, CleanConfig
from dataprep.clean.edits import PLACEHOLDERS, Edits, count_edits, count_lines, edit_columns, edit_fields, mask
from dataprep.text.ftfy_switches import FtfySwitches
from dataprep.text.repair import Repair, Repaired
from pipelines.errors import UserError
from pipelines.manifest import Counts
from tests.work import at_most

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


KINDS = ("email", "ip", "phone")


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("email", "john.o'neil+news@mail.example.co.uk"),
        ("email", "a@b.io"),
        ("email", "A_B-c%d@sub-domain.example.museum"),
        ("email", "info@xn--mnchen-3ya.xn--p1ai"),
        ("email", "root@[93.184.216.34]"),
        ("ip", "93.184.216.34"),
        ("ip", "8.8.8.84"),
        ("ip", "2001:4860:4860::8888"),
        ("ip", "2606:2800:220:1:248:1893:25c8:1946"),
        ("phone", "(212) 555-0123"),
        ("phone", "212-555-0123"),
        ("phone", "212.555.0123"),
        ("phone", "212 555 0123"),
        ("phone", "1-800-768-8048"),
        ("phone", "+1 (510) 713-5115"),
        ("phone", "+49 69 7565 1311"),
        ("phone", "+61 (0) 7 3369 5760"),
        ("phone", "+491701234567"),
    ],
)
@pytest.mark.parametrize("sentence", ["{}", "Ask {}, or not.", "Is it ({})?", "“{}”", "to: {}.", "<{}>\n"])
def test_what_is_personal_is_masked_and_nothing_around_it(kind, found: str, sentence: str):
    masked, counts = mask(sentence.format(found), KINDS)
    assert masked == sentence.format(PLACEHOLDERS[kind])
    assert counts == {one: int(one == kind) for one in KINDS}


@pytest.mark.parametrize(
    "text",
    [
        # e-mail: handles, pictures, code, prices
        "@somebody wrote", "logo@2x.png", "a @ b.com", "user@localhost", "3 apples @ $1.50", "@property.setter",
        # addresses: private, reserved and documentation, versions, sections, dates, times, names of C++
        "192.168.1.20", "10.0.0.12", "127.0.0.1", "169.254.169.254", "192.0.2.33", "2001:db8::1", "fe80::1", "::1",
        "v1.22.3.4", "version 10.0.190.41", "Version: 11.22.33.44", "kernel 2.6.18.66", "see 1.2.3.4",
        "section 12.1.10.2", "999.12.13.14", "1.2.3.4.5.6", "256.1.1.10", "01.02.03.04", "12:30:45", "2019:10:12",
        "dead::beef", "std::abs", "00:1a:2b:3c:4d:5e", "libfoo-11.22.33.44.so", "11.22.33.44-beta",
        "2262::", "a" * 65 + "@",
        # numbers that are no phones
        "2019-10-12", "12.10.2019", "10/12/2019 12:30", "$1,234,567.89", "1 234 567 890", "12,345,678",
        "3.14159265358979", "978-0-306-40615-7", "ISBN 0-306-40615-2", "ISBN: 306 406 1525", "ISSN 2049-3630",
        "123-45-6789", "2125550123", "1429138289", "4111 1111 1111 1111", "order number 212-555-0123", "#212-555-0123",
        "ID 212-555-0123",
        "212-555-01234", "112-555-0123", "212-155-0123", "212-555-0123-99", "x212-555-0123", "a/212-555-0123",
        "1998-2003", "1 2 3 4 5 6 7 8 9 10", "score 212 - 555 - 0123", "+500", "2+34567890123", "UTC+02:00",
        "+1 000 000 000", "2001-2002 2003-2004", "10.1000/182.212.555", "52.3702, 4.8952",
    ],
)  # fmt: skip
def test_what_only_looks_alike_stays(text: str):
    assert mask(text, KINDS) == (text, {"email": 0, "ip": 0, "phone": 0})
    assert mask(f"We saw {text} there.", KINDS)[0] == f"We saw {text} there."


def test_only_the_kinds_asked_for_are_masked_and_counted():
    text = "a@b.io, c@d.org, 93.184.216.34 and 212-555-0123"
    assert mask(text, ()) == (text, {})
    assert mask(text, ("phone",)) == ("a@b.io, c@d.org, 93.184.216.34 and |||PHONE_NUMBER|||", {"phone": 1})
    assert mask(text, ("ip", "email")) == (
        "|||EMAIL_ADDRESS|||, |||EMAIL_ADDRESS|||, |||IP_ADDRESS||| and 212-555-0123",
        {"email": 2, "ip": 1},
    )


@given(
    st.lists(st.sampled_from(["a@b.io", "93.184.216.34", "2001:4860::8888", "212-555-0123", ".", " ", "1", "a", "@"]))
)
def test_masking_again_changes_nothing_once_the_neighbours_are_apart(pieces: list[str]):
    masked, counts = mask(" ".join(pieces), KINDS)
    assert mask(masked, KINDS) == (masked, dict.fromkeys(KINDS, 0))
    assert sum(counts.values()) == sum(masked.count(placeholder) for placeholder in PLACEHOLDERS.values())


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "a.",
        "a@",
        "@a.",
        "a-",
        "1",
        "1.",
        "1 ",
        "+2",
        "+2(",
        "2001:",
        "2001:0:",
        ":",
        "(212",
        "212-",
        "aA1._%+&'-@",
    ],
)
def test_hostile_texts_take_linear_time(part: str):
    text = "x@" + part * (100_000 // len(part))
    with at_most(4):
        mask(text, KINDS)


def test_ftfy_itself_repairs_the_first_texts_of_a_shard_and_a_share_of_the_others() -> None:
    edits, counts = Edits(CleanConfig(uncurl_quotes=False)), Counts()
    for number in range(5000):
        edits.check({"doc_id": number.to_bytes(16, "big"), "url": None, "text": "“schÃ¶n”"}, counts)
    assert 6 <= counts.totals["checked_by_ftfy"] <= 26
    assert counts.totals["different_from_ftfy"] == 0
    Edits(CleanConfig(repair=False)).check({"doc_id": None, "url": None, "text": "schÃ¶n"}, counts)
    assert counts.totals["different_from_ftfy"] == 0


def test_a_repair_that_is_not_ftfys_ends_the_run_with_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"doc_id": b"\x01" * 16, "url": "http://mill.test/", "text": "schÃ¶n"}
    monkeypatch.setattr(Repair, "apply", lambda self, text: Repaired("schoen", ("encoding",)))
    with pytest.raises(
        UserError, match=r"document 0101\w+ \(http://mill.test/\): the repaired text .* ftfy 6.3.1 gives"
    ):
        Edits(CleanConfig()).check(row, Counts())


def test_a_text_for_which_ftfy_would_take_minutes_is_not_given_to_it() -> None:
    counts = Counts()
    with at_most(20):
        Edits(CleanConfig()).check({"doc_id": None, "url": None, "text": "&" + "amp;é" * 15_000 + "\x85" * 9}, counts)
        Edits(CleanConfig()).check({"doc_id": None, "url": None, "text": "é&" + "amp;" * 20_000}, counts)
    assert counts.totals.get("checked_by_ftfy", 0) <= 1
