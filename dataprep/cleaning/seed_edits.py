"""The seeds' edits of texts, and the removal of what Project Gutenberg wraps around a book.

text -> text, pure, in linear time. `general_cleaning`, `stories`, `realnews` and the line breaks of `gutenberg` do
what the task general_cleaning of NVIDIA/Megatron-LM, tools/openwebtext/cleanup_fix_dataset.py, does (removed there
in 2025; unchanged in hpcaitech/ColossalAI-Examples); the last three are commented out in it, each with the data
set it was used for. There stories and the others replace general_cleaning; here each is a switch of its own.
"""

import re

_SPACES_OR_WRAPPED_LINE = re.compile(r"  +|\b\n+ ?")
_BLANK_LINES = re.compile(r"\n\n+")
_DETACHED = (" '", " !", " .", " ?")

# The lines around a book, of all the years: those of c-w/gutenberg, gutenberg/_domain_model/text.py, that stand
# for themselves. The title in the first may go on in the next line.
_BOOK_STARTS = re.compile(
    r"^[ \t]*\*{3} ?START OF (?:THE|THIS) (?:COPYRIGHTED )?PROJECT GUTENBERG(?:[^*]{0,200}\*{3})?[^\n]*", re.M | re.I
)
_SMALL_PRINT_ENDS = re.compile(r"^\*\s?END\s?\*?\s?THE SMALL PRINT![^\n]*", re.M)
_BOOK_ENDS = re.compile(
    r"^[ \t]*(?:\*{3} ?)?(?:END OF (?:THE |THIS )?(?:COPYRIGHTED )?PROJECT GUTENBERG"
    r"|ENDE DIESES (?:PROJE[CK]T GUTENBERG|ETEXTES)|FIN DE PROJECT GUTENBERG)",
    re.M | re.I,
)
# Paragraphs of thanks that come before the title.
_CREDITS = re.compile(
    r"\s*(?:(?:Produced|E-?text prepared) by|This e-?(?:text|book) was (?:prepared|produced) by"
    r"|Transcribed (?:from|by)|(?:An Anonymous Volunteer|HTML version by))\b",
    re.I,
)
_PARAGRAPH_END = re.compile(r"(?:\r?\n){2,}|\Z")


def general_cleaning(text: str) -> str:
    """Each run of spaces, and each run of line breaks behind a word with the space after it, becomes a space."""
    return _SPACES_OR_WRAPPED_LINE.sub(" ", text)


def stories(text: str) -> str:
    """Undo the tokens of the stories data set: no space before `' ! . ?`, none around `-` and `@`."""
    for detached in _DETACHED:
        text = text.replace(detached, detached[1])
    return text.replace(" - ", "-").replace(" @ ", "@")


def realnews(text: str) -> str:
    """Each line of the RealNews data set is a paragraph: double every line break."""
    return text.replace("\n", "\n\n")


def gutenberg(text: str) -> str:
    """The book alone, without header, credits, footer and licence, and at most one blank line in a row.

    A text without Project Gutenberg's lines only loses the surplus blank lines.
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
    """Where the header ends: at its line of start, or, before 2003, at the end of the small print; 0 without one.

    Files of 2003 to 2006 have the small print behind the book.
    """
    starts = _BOOK_STARTS.search(text)
    if starts:
        return starts.end()
    small_print, ends = _SMALL_PRINT_ENDS.search(text), _BOOK_ENDS.search(text)
    return small_print.end() if small_print and (not ends or small_print.end() < ends.start()) else 0


def _after_credits(text: str, start: int) -> int:
    """Where the first paragraph from `start` on begins that does not thank."""
    while credit := _CREDITS.match(text, start):
        paragraph_end = _PARAGRAPH_END.search(text, credit.end())
        assert paragraph_end is not None  # the end of the text is one
        start = paragraph_end.end()
    return start
