"""C4: which lines are removed and why, and what is counted in the remaining text."""

import re
from pathlib import Path

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from dataprep.clean.config import C4Lines, CleanConfig
from dataprep.clean.rules.c4 import RULES, Cut, bad_words_rule, remove_lines
from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.table import threshold_of
from pipelines import presets
from pipelines.errors import UserError
from tests.work import at_most

ALL = C4Lines(
    max_word_length=10, citations=True, terminal_punctuation=True, min_words=3, javascript=True, policies=True
)
BY_NAME = {rule.name.removeprefix("c4_"): rule for rule in RULES}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("The mill has a wheel.", ""),
        ('He said: "Go on!"', ""),
        ("The mill has a wheel", "no_terminal_punctuation"),
        ("The mill has a...", "no_terminal_punctuation"),
        ("Two words.", "few_words"),
        ("", "no_terminal_punctuation"),
        ("A loooooooooooooong word here.", "long_word"),
        ("Please enable JavaScript here.", "javascript"),
        ("We mind your privacy policy here.", "policy"),
    ],
)
def test_a_line_goes_for_the_first_reason(line: str, reason: str) -> None:
    cut = remove_lines(f"First line is kept.\n{line}\nLast line is kept.", ALL)
    text, counts = cut.text, cut.counts
    assert (line in text.split("\n")) == (not reason)
    assert counts == ({reason: 1} if reason else {})
    assert text.startswith("First line is kept.\n")
    assert text.endswith("\nLast line is kept.")


def test_citations_leave_their_lines_but_count_as_words() -> None:
    options = C4Lines(citations=True, min_words=3)
    assert remove_lines("Old mills [3] turn.[12][edit]\n  so [1] [citation needed]  ", options) == Cut(
        "Old mills  turn.\nso",
        {"citations": 5},
    )


def test_each_edit_is_off_unless_asked_for() -> None:
    text = "  Two words[1] \r\n\nno javascript, no privacy policy " + "x" * 2000
    assert remove_lines(text, C4Lines()) == Cut(text, {})
    assert remove_lines(text, C4Lines(javascript=True)) == Cut("Two words[1]", {"javascript": 1})


def test_a_document_may_lose_all_its_lines() -> None:
    assert remove_lines("one\ntwo", ALL) == Cut("", {"no_terminal_punctuation": 2})
    assert remove_lines("", ALL) == Cut("", {})


def test_long_lines_are_judged_like_short_ones() -> None:
    words = "mill " * 50_000
    assert remove_lines(words + ".", C4Lines(max_word_length=5)).counts == {}
    assert remove_lines(words + "millstone.", C4Lines(max_word_length=5)).counts == {"long_word": 1}
    assert BY_NAME["min_sentences"].measure(DocumentText("The mill turns. " * 20_000)) == 20_000


def test_documents_are_counted_after_their_lines_are_gone() -> None:
    document = DocumentText("Lorem IPSUM dolor { }\nlorem ipsum.", uncut="longer")
    assert BY_NAME["max_lorem_ipsum"].measure(document) == 2
    assert BY_NAME["max_curly_brackets"].measure(document) == 1
    assert BY_NAME["min_sentences"].measure(DocumentText("One. Two.\nthree\n\n")) == 3


def by_the_description(text: str, *, terminal_punctuation: bool) -> tuple[bool, str]:
    """C4QualityFilter of datatrove as its documentation and order of tests have it: whether it keeps; the text."""
    kept: list[str] = []
    for full in text.splitlines():
        words = full.split()
        if any(len(word) > 1000 for word in words):
            continue
        line = re.sub(r"\[(\d*|edit|citation needed)\]", "", full.strip())
        if terminal_punctuation and (line[-1:] not in {*".?!'", '"'} or line[-3:] == "..."):
            continue
        if len(words) < 3:
            continue
        if "lorem ipsum" in line.lower():
            return False, ""
        if "javascript" in line.lower():
            continue
        if "{" in line:
            return False, ""
        if any(phrase in line.lower() for phrase in POLICIES):
            continue
        kept.append(line)
    sentences = sum(len(re.findall(r"[.?!]+(?=\s|$)", line)) or 1 for line in kept)
    return sentences >= 5, "\n".join(kept).strip()


POLICIES = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
LINES = st.builds(
    "{} {}{}".format,
    st.sampled_from(["The old mill turns", "Two", "  It is [3] here ", "A wheel of oak", "x" * 1001 + " is long"]),
    st.lists(
        st.sampled_from(["{see more}", "Lorem Ipsum", "JavaScript", "we use cookies", "Privacy Policy", "and water"]),
        max_size=2,
    ).map(" ".join),
    st.sampled_from([".", ".", ".", ".", "...", "", "!", ".[12]"]),
)


PRESETS = {name: presets.load(CleanConfig, "clean", name) for name in ("c4", "fineweb")}


@given(st.lists(LINES, max_size=9).map("\n".join), st.sampled_from([*PRESETS]))
def test_documents_are_kept_or_dropped_as_datatrove_describes_it(text: str, preset: str) -> None:
    config = PRESETS[preset]
    cut = remove_lines(text, config.c4.lines)
    document = DocumentText(cut.text, uncut=text, removed=cut.removed)
    limits = [(rule, threshold_of(config, rule.name)) for rule in RULES]
    keeps = all(rule.failing_value(document, limit) is None for rule, limit in limits if limit is not None)
    expected = by_the_description(text, terminal_punctuation=preset == "c4")
    assert keeps == expected[0]
    assert not keeps or cut.text == expected[1]


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("This site uses cookies {see more}.", ["max_curly_brackets"]),
        ("Lorem ipsum with javascript here.", ["max_lorem_ipsum"]),
        ("Lorem ipsum on terms of use.", ["max_lorem_ipsum"]),
        ("Please use javascript {here}.", []),
        ("lorem ipsum {", []),
    ],
)
def test_what_drops_a_document_does_so_from_a_line_that_goes_for_less(line: str, rules: list[str]) -> None:
    cut = remove_lines(f"{line}\nThe mill has a wheel.", ALL)
    assert cut.text == "The mill has a wheel."
    document = DocumentText(cut.text, removed=cut.removed)
    assert [name for name in ("max_curly_brackets", "max_lorem_ipsum") if BY_NAME[name].measure(document)] == rules


def test_bad_words_stand_alone_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("\ufeffPoo\ntwo  words\n\na$$\n水\n", "utf-8")
    rule = bad_words_rule(tmp_path / "words.txt")
    assert rule.measure(DocumentText("POO, poodle, spoo poo! a$$ 水車 水")) == 4
    assert rule.measure(DocumentText("Two  words")) == 1
    assert rule.measure(DocumentText("")) == 0
    assert bad_words_rule(None).measure(DocumentText("poo")) is None


@given(st.lists(st.text(alphabet="ab $-é", max_size=12), max_size=8))
def test_bad_words_are_found_as_by_trying_each_place(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    file = tmp_path_factory.mktemp("bad") / "words.txt"
    file.write_text("ab\na b\n$a\nb$\n-", "utf-8")
    text = ", ".join(parts)
    expected = regex.findall(r"(?<!\w)(?:ab|a b|\$a|b\$|-)(?!\w)", text)
    assert bool(bad_words_rule(file).measure(DocumentText(text))) == bool(expected)


@given(st.text(alphabet="ab $-é_", max_size=30))
def test_bad_words_are_counted_as_one_search_for_all_of_them_does(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    file = tmp_path_factory.mktemp("bad") / "words.txt"
    file.write_text("ab\na\na b\nb a\n$a\nb$\n-\né-a", "utf-8")
    words = ["ab", "a", "a b", "b a", "$a", "b$", "-", "é-a"]
    expected = regex.findall(r"(?<!\w)\L<words>(?!\w)", text, words=words)
    assert bad_words_rule(file).measure(DocumentText(text)) == len(expected)


def test_many_bad_words_are_found_in_a_long_text_without_trying_each(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("\n".join(f"bad{number}\nworse{number} word" for number in range(200)))
    rule = bad_words_rule(tmp_path / "words.txt")
    text = "the river turned the wheel of this mill " * 11_500
    with at_most(8):
        assert rule.measure(DocumentText(text + "bad7 -bad8 bad9x")) == 2
        assert rule.measure(DocumentText(text + "bad7 worse8 word")) == 2
    assert rule.measure(DocumentText("x" * 3_000_000 + " bad7")) == 1


@pytest.mark.parametrize(("content", "message"), [(b"\n \n", "contains no words"), (b"\xff\xfe\x00", "not UTF-8")])
def test_a_list_that_is_none_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "words.txt").write_bytes(content)
    with pytest.raises(UserError, match=rf"words\.txt: {message}"):
        bad_words_rule(tmp_path / "words.txt")
