"""Normalization: Python's own result, also for the many marks on which Python takes quadratic time."""

import time
import unicodedata

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.cleaning import normalization
from dataprep.cleaning.normalization import Form, normalize

MARKS = (
    "\u0301\u0323\u0327\u0344\u0345\u0338\u0f71\u0f72\u0f73\u0f74\u0f80"
    "\u3099\uff9e\uff9f\u0903\u09be\u09c7\u1dce\U0001d165"
)
TEXTS = st.text(st.one_of(st.sampled_from(MARKS), st.sampled_from("aeか\uff76é\u1e69\u1100\u1161 "), st.characters()))


@settings(max_examples=600, deadline=None)
@given(TEXTS, st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_any_text_becomes_what_python_makes_of_it(text: str, form: Form) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalization, "_MANY_MARKS", regex.compile(normalization._MANY_MARKS.pattern.replace("64", "1")))
        assert normalize(form, text) == unicodedata.normalize(form, text)


@pytest.mark.parametrize("marks", ["\u0301\u0323", "\u0f73", "\uff9e\u0323", "\u0344\u0323"])
@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_marks_in_the_wrong_order_take_linear_time(marks: str, form: Form) -> None:
    started = time.process_time()
    normalized = normalize(form, "a" + marks * 150_000)
    assert time.process_time() - started < 20  # Python's own way takes minutes
    assert unicodedata.is_normalized(form, normalized)
