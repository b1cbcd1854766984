"""Words and lines of a document counted by kind, for the ratios of several rules; memory is bounded on any text."""

import string
from collections import Counter
from dataclasses import dataclass

import regex

from dataprep.cleaning.document_text import DocumentText

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
"""Gopher's eight (Rae et al. 2021, A.1.1), compared as they are written."""

SENTENCE_ENDS = r"\p{Sentence_Terminal}៖៙៚"
"""Body of a regex class: Unicode's property of characters that end sentences, and Khmer signs that datatrove adds."""
# huggingface/datatrove 0.10: utils/text.py, PUNCTUATION_SET. Emoji, bullets and signs such as € ° → are words there.
# The property has grown since by 16 characters, of scripts such as Balinese and Coptic; words hold no white space.
_MARK = regex.compile(
    rf"[{SENTENCE_ENDS}{regex.escape(string.punctuation)}«´»–—’“”„…∶━►、。〈〉《》「」【】！％（），．１：；？～\x00-\x1f\x7f-\x9f]+"
)


@dataclass(slots=True)
class WordCounts:
    """What the words of a text are."""

    total: int = 0
    """Words and marks."""
    marks: int = 0
    """Of datatrove's punctuation alone."""
    characters: int = 0
    """Of the words that are no marks."""
    alphabetic: int = 0
    """With a letter."""
    stop_words: int = 0
    """Different ones of STOP_WORDS."""


def count_words(document: DocumentText) -> WordCounts:
    """Count all words; for `DocumentText.once`."""
    counts = WordCounts()
    stop_words: set[str] = set()
    for words in document.word_blocks():
        numbers = Counter(words)
        counts.total += len(words)
        stop_words |= STOP_WORDS & numbers.keys()
        counts.alphabetic += len(words)
        counts.characters += sum(map(len, words))
        for word in [word for word in numbers if not word.isalpha()]:
            if _MARK.fullmatch(word):
                counts.marks += numbers[word]
                counts.characters -= len(word) * numbers[word]
            if not any(map(str.isalpha, word)):
                counts.alphabetic -= numbers[word]
    counts.stop_words = len(stop_words)
    return counts


def ratio(part: float, whole: float) -> float:
    """`part / whole`; of nothing it is 0."""
    return part / whole if whole else 0.0
