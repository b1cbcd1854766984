"""Unicode normalization in linear time.

Python's `unicodedata.normalize` sorts each run of combining marks by insertion, which takes an hour for a line of
a million marks in the wrong order. Marks put in order before are canonically equivalent (UAX #15), so they give the
same result, and sorted marks cost it nothing.
"""

import itertools
import unicodedata
from typing import Literal, cast

import regex

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
# Halfwidth voicing marks are letters that become combining marks in the forms with K.
_MANY_MARKS = regex.compile(r"[\p{M}\uff9e\uff9f]{64,}")


def normalize(form: Form, text: str) -> str:
    """`unicodedata.normalize(form, text)`."""
    if not unicodedata.is_normalized(form, text) and _MANY_MARKS.search(text):
        decomposed = cast(Form, form.replace("C", "D"))
        text = _MANY_MARKS.sub(lambda marks: _in_order(marks.group(), decomposed), text)
    return unicodedata.normalize(form, text)


def _in_order(marks: str, decomposed: Form) -> str:
    """The marks taken apart one by one, in the order of their classes between those of class 0, which stay."""
    parts = "".join(unicodedata.normalize(decomposed, mark) for mark in marks)
    groups = itertools.groupby(parts, lambda mark: unicodedata.combining(mark) > 0)
    return "".join("".join(sorted(group, key=unicodedata.combining) if moves else group) for moves, group in groups)
