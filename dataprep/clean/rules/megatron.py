"""Megatron's rules on short documents, its edits of texts, and the removal of what Project Gutenberg adds to a book.

The rules judge the text as read, in characters: NVIDIA/Megatron-LM applies them before its edits, and returns at the
first that rejects a document.

The edits (text -> text) are pure and take linear time. `general_cleaning`, `stories`, `realnews` and the line breaks of
`gutenberg` do what the task general_cleaning of NVIDIA/Megatron-LM, tools/openwebtext/cleanup_fix_dataset.py, does
(removed there in 2025; unchanged in hpcaitech/ColossalAI-Examples). The last three are commented out in it, each with
the data set that it was used for. In that script, stories and the others replace general_cleaning; here each edit has
a switch of its own.
"""

import re

from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.rule import Rule, Threshold

ENGLISH = "en"
SOURCE = "NVIDIA/Megatron-LM: tools/openwebtext/cleanup_fix_dataset.py"
_SPACES_OR_WRAPPED_LINE = re.compile(r"  +|\b\n+ ?")
_BLANK_LINES = re.compile(r"\n\n+")
_DETACHED = (" '", " !", " .", " ?")

# The lines before and after a book, as used over the years: those in c-w/gutenberg, gutenberg/_domain_model/text.py,
# that identify themselves. The title in the first of them may continue on the next line.
_BOOK_STARTS = re.compile(
    r"^[ \t]*\*{3} ?START OF (?:THE|THIS) (?:COPYRIGHTED )?PROJECT GUTENBERG(?:[^*]{0,200}\*{3})?[^\n]*", re.M | re.I
)
_SMALL_PRINT_ENDS = re.compile(r"^\*\s?END\s?\*?\s?THE SMALL PRINT![^\n]*", re.M)
_BOOK_ENDS = re.compile(
    r"^[ \t]*(?:\*{3} ?)?(?:END OF (?:THE |THIS )?(?:COPYRIGHTED )?PROJECT GUTENBERG"
    r"|ENDE DIESES (?:PROJE[CK]T GUTENBERG|ETEXTES)|FIN DE PROJECT GUTENBERG)",
    re.M | re.I,
)
# Paragraphs of credits before the title.
_CREDITS = re.compile(
    r"\s*(?:(?:Produced|E-?text prepared) by|This e-?(?:text|book) was (?:prepared|produced) by"
    r"|Transcribed (?:from|by)|(?:An Anonymous Volunteer|HTML version by))\b",
    re.I,
)
_PARAGRAPH_END = re.compile(r"(?:\r?\n){2,}|\Z")


def _characters(document: DocumentText) -> int:
    return len(document.original)


def _characters_with_javascript(document: DocumentText) -> int | None:
    return len(document.original) if "javascript" in document.original.lower() else None


def _characters_not_english(document: DocumentText) -> int | None:
    language = document.language
    return None if language is None or language.code == ENGLISH else len(document.original)


def _long_enough(document: DocumentText, threshold: Threshold) -> bool:
    """Return whether a document passes whatever it contains, so that its language need not be detected."""
    return len(document.original) >= threshold


RULES = (
    Rule("seeds_remove_512", _characters, "at_least", "characters", SOURCE),
    Rule(
        "seeds_remove_256_javascript",
        _characters_with_javascript,
        "at_least",
        "characters, if the text contains javascript",
        SOURCE,
        _long_enough,
    ),
    Rule(
        "seeds_remove_512_non_english",
        _characters_not_english,
        "at_least",
        "characters, if not English",
        SOURCE,
        _long_enough,
    ),
)


def general_cleaning(text: str) -> str:
    """Replace each run of spaces, and each run of line breaks after a word with the space after it, by one space."""
    return _SPACES_OR_WRAPPED_LINE.sub(" ", text)


def stories(text: str) -> str:
    """Undo the tokenization of the stories data set: no space before `' ! . ?`, none around `-` and `@`."""
    for detached in _DETACHED:
        text = text.replace(detached, detached[1])
    return text.replace(" - ", "-").replace(" @ ", "@")


def realnews(text: str) -> str:
    """Double every line break, because each line of the RealNews data set is a paragraph."""
    return text.replace("\n", "\n\n")


def gutenberg(text: str) -> str:
    """Return the book without header, credits, footer and licence, and with at most one blank line in a row.

    A text without Project Gutenberg's lines loses only its surplus blank lines.
    """
    return _BLANK_LINES.sub("\n\n", _book(text))


def _book(text: str) -> str:
    start = _after_header(text)
    ends = _BOOK_ENDS.search(text, start)
    if not start and not ends:
        return text
    start = _after_credits(text, start)
    return text[start : max(start, ends.start())].strip("\r\n") if ends else text[start:].strip("\r\n")


def _after_header(text: str) -> int:
    """Return where the header ends: after its start line, or, before 2003, after the small print; 0 without either.

    Files of 2003 to 2006 have the small print after the book.
    """
    starts = _BOOK_STARTS.search(text)
    if starts:
        return starts.end()
    small_print, ends = _SMALL_PRINT_ENDS.search(text), _BOOK_ENDS.search(text)
    return small_print.end() if small_print and (not ends or small_print.end() < ends.start()) else 0


def _after_credits(text: str, start: int) -> int:
    """Return where the first paragraph begins, from `start` on, that is not a credit."""
    while credit := _CREDITS.match(text, start):
        paragraph_end = _PARAGRAPH_END.search(text, credit.end())
        assert paragraph_end is not None  # the end of the text is one
        start = paragraph_end.end()
    return start
