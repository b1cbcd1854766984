"""The table of rules: one rule per threshold, presets with the published numbers, a value for every text."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.clean.config import C4Lines, C4Rules, CleanConfig, FineWebRules, GopherRules, MegatronRules
from dataprep.clean.language.language import Language
from dataprep.clean.rules.c4 import remove_lines
from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.table import LANGUAGE, LANGUAGE_PROBABILITY, ORDER, TOO_FEW_TOKENS, all_rules, threshold_of
from pipelines import presets
from tests.samples import Data

FAMILIES = {"seeds": MegatronRules, "gopher": GopherRules, "c4": C4Rules, "fineweb": FineWebRules}
ALL_LINES = C4Lines(
    max_word_length=1000, citations=True, terminal_punctuation=True, min_words=3, javascript=True, policies=True
)
HOSTILE = {
    "empty": "",
    "blank": " \n\t\r\n ",
    "line feeds": "\n" * 1000,
    "no letters": "12345 67890 !!! ... ???",
    "nuls": "\0" * 100 + "mill\0river",
    "lone surrogates": "mill \ud800\udfff river \udc80",
    "emoji": "😀👩‍👩‍👧‍👦🏳️‍🌈" * 50,
    "right to left": "טחנת הקמח של הנהר. طاحونة النهر القديمة؟ " * 20,
    "mixed": "мельница mill 水車 ทดสอบ \u202emill\u202c \u0301\u0301 İıſß " * 20,
    "no spaces": "水車小屋は川の流れで回り続ける" * 500,
    "controls": "\x00\x01\x1b[31m\x7f\x85\u2028\u2029\ufeff\uffff",
    "one line": "mill " * 100_000,
    "marks": "'\"" * 20_000 + "." * 20_000 + "-" * 20_000 + "[" * 20_000,
}


def values(text: str) -> dict[str, object]:
    cut = remove_lines(text, ALL_LINES)
    document = DocumentText(
        cut.text, text, uncut=text, removed=cut.removed, language=lambda: Language("und", 0.0, "test")
    )
    return {rule.name: rule.measure(document) for rule in all_rules()}


def test_every_threshold_has_one_rule_and_every_rule_one_threshold() -> None:
    fields = [
        f"{family}_{field.name}"
        for family, cls in FAMILIES.items()
        for field in dataclasses.fields(cls)
        if field.name != "lines"
    ]
    names = [rule.name for rule in all_rules()]
    assert sorted(names) == sorted(fields)
    assert [name for name in ORDER if name not in (TOO_FEW_TOKENS, LANGUAGE, LANGUAGE_PROBABILITY)] == names
    assert ORDER[-2:] == (LANGUAGE, LANGUAGE_PROBABILITY)
    assert len(set(ORDER)) == len(ORDER)


def test_every_rule_says_its_unit_and_source() -> None:
    for rule in all_rules():
        assert rule.unit, rule.name
        assert "/" in rule.source, rule.name


def test_all_rules_are_off_by_default() -> None:
    for family, cls in FAMILIES.items():
        for field in dataclasses.fields(cls):
            value = getattr(cls(), field.name)
            assert value is None or value == C4Lines(), f"{family}.{field.name}"


@pytest.mark.parametrize("name", presets.names("clean"))
def test_presets_are_valid_and_switch_on_whole_families(name: str) -> None:
    config = presets.load(CleanConfig, "clean", name)
    on = {rule.name.partition("_")[0] for rule in all_rules() if threshold_of(config, rule.name) is not None}
    expected = {
        "openwebtext": set[str](),
        "megatron": set[str](),
        "megatron-fix": {"seeds"},
        "gopher": {"gopher"},
        "c4": {"c4"},
        "fineweb": {"gopher", "c4", "fineweb"},
    }
    assert on == expected[name]
    off = [rule.name for rule in all_rules() if threshold_of(config, rule.name) is None]
    assert [rule for rule in off if rule.partition("_")[0] in on] == (["c4_max_bad_words"] if "c4" in on else [])
    assert (config == CleanConfig()) == (name == "openwebtext")


def test_fineweb_has_the_numbers_of_gopher() -> None:
    fineweb, gopher = (presets.load(CleanConfig, "clean", name) for name in ("fineweb", "gopher"))
    assert fineweb.gopher == gopher.gopher


@pytest.mark.parametrize("name", HOSTILE)
def test_every_measure_has_a_value_for_hostile_texts(name: str) -> None:
    for rule, value in values(HOSTILE[name]).items():
        assert value is None or (isinstance(value, int | float) and 0 <= value < float("inf")), rule


@given(st.text(st.characters(exclude_categories=())))
def test_every_measure_has_a_value_for_any_text(text: str) -> None:
    assert len(values(text)) == len(all_rules())


def test_nothing_has_all_its_ratios_at_zero() -> None:
    silent = {"seeds_remove_256_javascript", "c4_max_bad_words"}
    assert {name: value for name, value in values("").items() if value} == {}
    assert {name for name, value in values("").items() if value is None} == silent


def test_cases_of_broken_text_are_measured(data: Data) -> None:
    cases = data.encoding_cases()
    assert len(cases) > 90
    assert all(len(values(case)) == len(all_rules()) for case in cases)


def test_values_do_not_depend_on_the_texts_before() -> None:
    texts = [*HOSTILE.values(), "The mill by the river.", "Dr. Bell's e-mail, 3.5 km away..."]
    forward = [values(text) for text in texts]
    backward = [values(text) for text in reversed(texts)]
    assert forward == backward[::-1]
