"""A text with what several rules ask of it (words, lines), worked out once and only when asked."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from dataprep.cleaning.words import blocks, split_words

if TYPE_CHECKING:
    from dataprep.languages.language import Language

T = TypeVar("T")

HEAD_CHARACTERS = 1 << 20
"""Rules that compare all lines or words of a text with each other look at its first 1,048,576 characters only.

More is as good as never kept by Gopher's rules: 100,000 words, their limit, are about 600,000 characters.
"""
_LINES_BLOCK = 1 << 16
LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Where `str.splitlines` ends a line."""
_LINE_FEED = re.compile("\n")


class DocumentText:
    """The text of one document as the rules see it.

    `text` is the text after all edits, and what is kept when every rule passes. `original` is the text as it came,
    before any edit: the seeds' rules judge that. `uncut` is the text before whole lines were taken out of it
    (`c4.lines`), otherwise edited: Gopher's rules judge that, as datatrove's do in FineWeb's pipeline. Both are
    `text` itself unless given. `removed` says how often phrases stood in lines taken out of it for which C4 drops a
    document all the same. `language` finds the document's language; it is called once, when a rule asks.
    """

    def __init__(
        self,
        text: str,
        original: str | None = None,
        *,
        uncut: str | None = None,
        removed: Mapping[str, int] | None = None,
        language: "Callable[[], Language] | None" = None,
    ) -> None:
        self.text = text
        self.original = text if original is None else original
        self.removed = removed or {}
        # No reference to itself: a text of 100 MB would stay until the garbage collector finds the circle.
        if uncut is None or uncut == text:
            self._uncut = None
        else:
            self._uncut = DocumentText(uncut, self.original, language=language)
        self._find_language = language
        self._found: dict[Callable[[DocumentText], object], object] = {}

    def once(self, find: "Callable[[DocumentText], T]") -> T:
        """`find(self)`, found the first time it is asked for and remembered."""
        if find not in self._found:
            self._found[find] = find(self)
        return self._found[find]  # pyright: ignore[reportReturnType] - stored under its own function

    @property
    def uncut(self) -> "DocumentText":
        """The text before lines were taken out of it."""
        return self._uncut or self

    @property
    def language(self) -> "Language | None":
        """The document's language; None where nothing was given to find it."""
        return self.once(_language)

    @property
    def head(self) -> str:
        """The first part of the text, all of it for nearly every document."""
        return self.text[:HEAD_CHARACTERS]

    @property
    def head_words(self) -> list[str]:
        """Words and marks of the head."""
        return self.once(_head_words)

    @property
    def lower(self) -> str:
        """The text in lower case."""
        return self.once(_lower)

    def word_blocks(self) -> Iterator[list[str]]:
        """All words and marks, in lists of bounded size."""
        if len(self.text) <= HEAD_CHARACTERS:
            yield self.head_words
        else:
            yield from map(split_words, blocks(self.text))

    def line_blocks(self) -> Iterator[list[str]]:
        """All lines as `str.splitlines` has them, in lists of bounded size."""
        return (block.splitlines() for block in blocks_of_lines(self.text, LINE_END))

    def full_line_blocks(self) -> Iterator[list[str]]:
        """All lines between line feeds that are not blank, in lists of bounded size."""
        for block in blocks_of_lines(self.text, _LINE_FEED):
            yield [line for line in block.split("\n") if line and not line.isspace()]


def blocks_of_lines(text: str, line_end: re.Pattern[str]) -> Iterator[str]:
    """`text` in consecutive blocks of whole lines; a block is as long as its last line makes it."""
    start = 0
    while len(text) - start > _LINES_BLOCK and (end := line_end.search(text, start + _LINES_BLOCK)):
        yield text[start : end.end()]
        start = end.end()
    yield text[start:] if start else text


def _language(document: DocumentText) -> "Language | None":
    find = document._find_language  # pyright: ignore[reportPrivateUsage] - our own
    return find() if find else None


def _head_words(document: DocumentText) -> list[str]:
    return [word for block in blocks(document.head) for word in split_words(block)]


def _lower(document: DocumentText) -> str:
    return document.text.lower()
