"""Mode `sampled`: an engine reads three windows of a text, at its begin, middle and end, instead of all of it."""

import re
from dataclasses import dataclass

from dataprep.languages.language import Detector, Language

SAMPLED_CHARS = 1000
_WINDOWS = 3
_LONGEST_WORD = 40
"""Characters given up at a window's edge to begin or end with a whole word; scripts without spaces give up none."""
_SPACE = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class SampledDetector:
    """What `engine` says of the windows."""

    engine: Detector

    def detect(self, text: str) -> Language:
        """The language of the windows of `text`."""
        return self.engine.detect(windows(text))


def windows(text: str) -> str:
    """Three windows of equal size, 1,000 characters in all and whole words only; a shorter text whole."""
    if len(text) <= SAMPLED_CHARS:
        return text
    size = SAMPLED_CHARS // _WINDOWS
    last = len(text) - size
    starts = [last * number // (_WINDOWS - 1) for number in range(_WINDOWS)]
    return "\n".join(_whole_words(text, start, start + size) for start in starts)


def _whole_words(text: str, start: int, end: int) -> str:
    if start and (first := _SPACE.search(text, start, start + _LONGEST_WORD)):
        start = first.end()
    if end < len(text):
        spaces = [space.start() for space in _SPACE.finditer(text, end - _LONGEST_WORD, end)]
        end = spaces[-1] if spaces else end
    return text[start:end]
