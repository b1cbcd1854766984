"""What langdetect reads of a text: its first 10,000 characters, without URLs and e-mail addresses.

Equal to langdetect 1.0.9 (`langdetect/detector.py`: `append`, `cleaning_text`), but of a long text only so
much is looked at as those characters need. The library also collapses runs of spaces; that is left out
here, for a second space neither counts as a character of a script nor ends up in an n-gram.
"""

import re

import numpy as np
import numpy.typing as npt
from langdetect.detector import Detector
from langdetect.utils.ngram import NGram

MAX_CHARS = 10_000
"""langdetect's own limit, counted after URLs and addresses have become one space each."""
CodePoints = npt.NDArray[np.unsignedinteger]

# No match of the library's three patterns holds any other character, so a text can be cut before one.
_MATCHED = "-_.?&~;+=/#:@0-9A-Za-z" + NGram.TO_NORMALIZE_VI_CHARS + NGram.DMARK_CLASS
_BOUNDARY = re.compile(f"[^{_MATCHED}]")
_COMBINING = re.compile(f"[{NGram.DMARK_CLASS}]")
# The library's MAIL_RE in two halves: tried at each @ and not at each letter, it cannot become quadratic.
_MAIL_NAME = re.compile(r"[-_.0-9A-Za-z]{1,64}\Z")
_MAIL_HOST = re.compile(r"@[-_0-9A-Za-z]{1,255}[-_.0-9A-Za-z]{1,255}")
_MAX_MAIL_NAME = 64


def readable_characters(text: str) -> CodePoints:
    """The code points that langdetect makes n-grams of."""
    start = first_characters(text)
    if start.isascii():
        return np.frombuffer(start.encode("ascii"), np.uint8)
    return _without_stray_latin(np.frombuffer(start.encode("utf-32-le", "surrogatepass"), "<u4"))


def first_characters(text: str) -> str:
    """The first 10,000 characters of the text as it reads after the library's substitutions."""
    chars = MAX_CHARS
    while True:
        boundary = _BOUNDARY.search(text, chars) if chars < len(text) else None
        part = text[: boundary.start()] if boundary else text
        replaced = _replace(part)
        if not boundary or len(replaced) >= MAX_CHARS:
            return replaced[:MAX_CHARS]
        chars *= 2


def _replace(text: str) -> str:
    if "://" in text:
        text = Detector.URL_RE.sub(" ", text)
    if "@" in text:
        text = _replace_mail(text)
    if not text.isascii() and _COMBINING.search(text):
        text = NGram.normalize_vi(text)
    return text


def _replace_mail(text: str) -> str:
    """`Detector.MAIL_RE.sub(" ", text)`: the leftmost name of at most 64 characters before each @."""
    pieces: list[str] = []
    done = 0
    for host in _MAIL_HOST.finditer(text):
        name = _MAIL_NAME.search(text[max(done, host.start() - _MAX_MAIL_NAME) : host.start()])
        if name:
            pieces.append(text[done : host.start() - len(name.group())])
            done = host.end()
    return " ".join([*pieces, text[done:]])


def _without_stray_latin(characters: CodePoints) -> CodePoints:
    """Without everything from A to z where other scripts outweigh it two to one.

    The library means to leave Latin Extended Additional out of the other scripts, but compares a number
    with a name, so every character from U+0300 on counts.
    """
    latin = (characters >= ord("A")) & (characters <= ord("z"))
    if 2 * np.count_nonzero(latin) < np.count_nonzero(characters >= 0x300):
        return characters[~latin]
    return characters
