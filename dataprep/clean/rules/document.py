"""A text with what several rules need of it (words, lines), computed once and only when needed."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from dataprep.clean.rules.words import blocks, split_words
from pipelines.documents import Row

if TYPE_CHECKING:
    from dataprep.clean.language.language import Language

T = TypeVar("T")

HEAD_CHARACTERS = 1 << 20
"""Rules that compare all lines or words of a text with each other read only its first 1,048,576 characters.

Gopher's rules reject nearly every longer text anyway: their limit of 100,000 words is about 600,000 characters.
"""
_LINES_BLOCK = 1 << 16
LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""The line ends that `str.splitlines` knows."""
_LINE_FEED = re.compile("\n")


class DocumentText:
    """The text of one document as the rules see it.

    `text` is the text after all edits, the one that is kept if every rule passes. `original` is the text as read,
    before any edit: Megatron's rules judge it. `uncut` is the text after all edits except the removal of lines
    (`c4.lines`): Gopher's rules judge it, as datatrove's do in FineWeb's pipeline. Both default to `text`. `removed`
    counts phrases in removed lines for which C4 drops a document all the same. `language` detects the document's
    language; it is called once, when a rule asks. `row` is the document as read, for rules of the user's own.
    """

    def __init__(
        self,
        text: str,
        original: str | None = None,
        *,
        uncut: str | None = None,
        removed: Mapping[str, int] | None = None,
        language: "Callable[[], Language] | None" = None,
        row: Row | None = None,
    ) -> None:
        self.text = text
        self.original = text if original is None else original
        self.removed = removed or {}
        self.row = row
        # No reference to itself: a text of 100 MB would stay until the garbage collector finds the cycle.
        if uncut is None or uncut == text:
            self._uncut = None
        else:
            self._uncut = DocumentText(uncut, self.original, language=language)
        self._detect_language = language
        self._results: dict[Callable[[DocumentText], object], object] = {}

    def once(self, function: "Callable[[DocumentText], T]") -> T:
        """Return `function(self)`, computed on the first call and remembered."""
        if function not in self._results:
            self._results[function] = function(self)
        return self._results[function]  # pyright: ignore[reportReturnType] - stored under its own function

    @property
    def uncut(self) -> "DocumentText":
        """The text before lines were removed from it."""
        return self._uncut or self

    @property
    def language(self) -> "Language | None":
        """The document's language; None without a detector."""
        return self.once(_language)

    @property
    def head(self) -> str:
        """The first HEAD_CHARACTERS of the text, which is all of nearly every document."""
        return self.text[:HEAD_CHARACTERS]

    @property
    def head_words(self) -> list[str]:
        """The words and marks of the head."""
        return self.once(_head_words)

    @property
    def lower(self) -> str:
        """The text in lower case."""
        return self.once(_lower)

    def word_blocks(self) -> Iterator[list[str]]:
        """Yield all words and marks, in lists of bounded size."""
        if len(self.text) <= HEAD_CHARACTERS:
            yield self.head_words
        else:
            yield from map(split_words, blocks(self.text))

    def line_blocks(self) -> Iterator[list[str]]:
        """Return all lines as `str.splitlines` splits them, in lists of bounded size."""
        return (block.splitlines() for block in blocks_of_lines(self.text, LINE_END))

    def full_line_blocks(self) -> Iterator[list[str]]:
        """Yield all lines between line feeds that are not blank, in lists of bounded size."""
        for block in blocks_of_lines(self.text, _LINE_FEED):
            yield [line for line in block.split("\n") if line and not line.isspace()]


def blocks_of_lines(text: str, line_end: re.Pattern[str]) -> Iterator[str]:
    """Yield consecutive blocks of whole lines of `text`, each of at least 65,536 characters except the last."""
    start = 0
    while len(text) - start > _LINES_BLOCK and (end := line_end.search(text, start + _LINES_BLOCK)):
        yield text[start : end.end()]
        start = end.end()
    yield text[start:] if start else text


def _language(document: DocumentText) -> "Language | None":
    detect = document._detect_language  # pyright: ignore[reportPrivateUsage] - same module
    return detect() if detect else None


def _head_words(document: DocumentText) -> list[str]:
    return [word for block in blocks(document.head) for word in split_words(block)]


def _lower(document: DocumentText) -> str:
    return document.text.lower()
