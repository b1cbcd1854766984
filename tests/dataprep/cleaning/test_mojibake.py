import itertools
import re
from collections.abc import Iterator

import pytest
from ftfy import badness
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cleaning import mojibake

EVERY_CHARACTER = frozenset(map(chr, range(0x10000)))
Parts = list[tuple[object, object]]


def characters(operator: object, value: object) -> frozenset[str]:
    """What one position of a parsed expression can match, in the Basic Multilingual Plane."""
    match str(operator):
        case "LITERAL":
            return frozenset(chr(value))
        case "ANY":
            return EVERY_CHARACTER - {"\n"}
        case "IN":
            inside = frozenset[str]().union(*(class_item(*item) for item in value if str(item[0]) != "NEGATE"))
            return EVERY_CHARACTER - inside if str(value[0][0]) == "NEGATE" else inside
    raise AssertionError(f"ftfy's expression has a new kind of part: {operator}")


def class_item(operator: object, value: object) -> frozenset[str]:
    match str(operator):
        case "LITERAL":
            return frozenset(chr(value))
        case "RANGE":
            return frozenset(map(chr, range(value[0], value[1] + 1)))
        case "CATEGORY":
            shorthand = {"CATEGORY_SPACE": r"\s", "CATEGORY_WORD": r"\w"}[str(value)]
            return frozenset(re.findall(shorthand, "".join(sorted(EVERY_CHARACTER))))
    raise AssertionError(f"ftfy's expression has a new kind of class: {operator}")


def alternatives(parts: Parts) -> Iterator[list[frozenset[str]]]:
    """Each way through a parsed expression, as the characters of each position (`^` matches more than it may)."""
    ways: list[list[frozenset[str]]] = [[]]
    for operator, value in parts:
        match str(operator):
            case "BRANCH":
                tails = [way for branch in value[1] for way in alternatives(list(branch))]
            case "MAX_REPEAT":
                least, most, body = value
                assert most < 3
                tails = [way * times for way in alternatives(list(body)) for times in range(least, most + 1)]
            case "AT":
                tails = [[]]
            case _:
                tails = [[characters(operator, value)]]
        ways = [way + tail for way in ways for tail in tails]
    yield from ways


def representatives(sets: list[frozenset[str]]) -> dict[str, tuple[bool, ...]]:
    """One character for each combination of the sets that some character is in."""
    found: dict[tuple[bool, ...], str] = {}
    for character in sorted(EVERY_CHARACTER):
        found.setdefault(tuple(character in one for one in sets), character)
    return {character: kinds for kinds, character in found.items()}


def test_whatever_an_alternative_of_ftfys_test_for_mojibake_matches_is_a_suspect():
    """A proof: each alternative, with one character of every kind that the two expressions tell apart."""
    ours = list(
        alternatives(list(re._parser.parse(mojibake._SUSPECT.pattern.replace("(?<=", "(?:").replace("(?=", "(?:"))))
    )
    theirs = list(alternatives(list(re._parser.parse(badness.BADNESS_RE.pattern, re.VERBOSE))))
    assert len(theirs) >= 38
    kinds = representatives(list({one for way in ours + theirs for one in way}))
    for way in theirs:
        choices = [[character for character in kinds if character in position] for position in way]
        for match in map("".join, itertools.product(*choices)):
            assert mojibake._SUSPECT.search(match), (ascii(match), badness.BADNESS_RE.search(match))


def test_curly_quotes_stand_wherever_ftfys_test_for_mojibake_takes_straight_ones():
    """So text that is not bad does not become bad when its quotes are made straight."""
    for way in alternatives(list(re._parser.parse(badness.BADNESS_RE.pattern, re.VERBOSE))):
        for position in way:
            assert not position & {"'", '"'} or position >= set("\u02bc‘’‚‛“”„‟")


NAMED = "".join(sorted(mojibake._characters(*badness.MOJIBAKE_CATEGORIES.values())))


@given(st.text(st.one_of(st.sampled_from(NAMED), st.sampled_from("aZ .,?!'\n_1"), st.characters()), max_size=12))
def test_the_test_for_mojibake_is_ftfys(text: str):
    assert mojibake.is_mojibake(text) == badness.is_bad(text)


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ("\x93Well\x94 \x96 it\x92s 5\x80\x85", "“Well” – it’s 5€…"),
        ("only ASCII", None),
        ("caf\xe9 \x85", None),  # other encodings may claim it
        ("\x85 \x81", None),  # Windows-1252 has no character for 81
        ("\x85 中", None),
    ],
)
def test_only_ascii_with_the_c1_controls_of_windows_1252_is_read_directly(text: str, repaired: str | None):
    assert mojibake.read_as_windows_1252(text) == repaired
