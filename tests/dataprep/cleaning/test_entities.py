"""Entities within entities: what replacing them again and again gives, found in one pass."""

from ftfy import fixes
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.cleaning.entities import unescape_fully

PIECES = """
    & ; # a m p amp; &amp; &amp;amp; AMP; &AMP; #38; #x26; &#38; &#x26; &num; &semi; &semi;amp &lt; lt; eacute; &#97;
    &#59; &#133; &foo; 38 x &NotEqualTilde; &CounterClockwiseContourIntegral; &#000000000000000000000038; 中 ;;
"""


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.sampled_from([*PIECES.split(), " "]), max_size=25).map("".join))
def test_one_pass_gives_what_repeated_passes_of_ftfy_give(text: str) -> None:
    before, after = None, text
    while after != before:
        before, after = after, fixes.unescape_html(after)
    assert unescape_fully(text) == after


def test_a_long_chain_takes_one_pass() -> None:
    assert unescape_fully("a &" + "amp;" * 200_000 + "lt; b") == "a < b"
    assert unescape_fully("&semi" + ";" * 200_000) == ";" * 200_000
