"""Words and sentences, close to those of spaCy's blank English pipeline, in bounded memory.

datatrove's filters count the tokens of spaCy, so thresholds tuned with them count marks as well as words:

    He said: "It isn't 3.5 km," (Mr. Bell's well-known U.S. view).
    He said : " It is n't 3.5 km , " ( Mr. Bell 's well - known U.S. view ) .

Text is split at white space. From both ends of a chunk, marks are split off one by one (an ellipsis as one mark), as
are a possessive 's, a unit after a number, and a full stop unless it belongs to an abbreviation. The rest is kept whole
if it is an address, divided if it is a contraction, and otherwise split at hyphens, slashes, commas and full stops
between letters. The rules follow spaCy 3.8 (explosion/spaCy, spacy/lang/punctuation.py and en/), without its emoticons
and its longer list of exceptions; benchmarks/rules.py measures the agreement. Languages written without spaces give
long words.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain

import regex

BLOCK_CHARACTERS = 1 << 16
"""Fewest characters of a block of text, which extends to the next white space; without any, it ends at twice this."""
_SPACE = re.compile(r"\s")
_CACHED_CHUNKS = 1 << 16
_LONGEST_CACHED = 40
_LONGEST_ADDRESS = 2000
_LONGEST_CONTRACTION = 12
_OPENING = frozenset(
    "§%=—–…,:;!?¿؟¡()[]{}<>_#*&。？！，、；：～·।،۔؛٪'\"”“`‘´’‚„»«「」『』（）〔〕【】《》〈〉⟦⟧$£€¥฿₽₴₩₪₫₹₺₿"
)
_CLOSING = _OPENING - frozenset("§%=$£€¥฿₽₴₩₪₫₹₺₿")
_CURRENCY = frozenset("$£€¥฿₽₴₩₪₫₹₺₿")
_POSSESSIVE = ("'s", "'S", "’s", "’S")
_BEFORE_FULL_STOP = frozenset("%²-+") | _CLOSING
_UNIT = regex.compile(
    r"(?<=\d)(?:[kdcm]?m[²³]?|[knµ]?m/?[hs]?|ha|nm|yd|in|ft|[kmµ]?g|t|lb|oz|kmh|mph|[hkM]?Pa|mbar|[mkgtMKGT][bB]|[TGMK%])$"
)
_INSIDE = regex.compile(
    r"\.\.+|…|\p{So}"
    r"|(?<=\d)[+\-*^](?=[\d-])"
    r"|(?<=[\p{Ll}\p{Lo}\p{M}'\"”“’‘])\.(?=[\p{Lu}\p{Lo}'\"”“’‘])"
    r"|(?<=[\p{L}\p{M}]),(?=\p{L})"
    r"|(?<=[\p{L}\p{M}\d])(?:---?|——|[-–—~:<>=/])(?=\p{L})"
)
_ADDRESS = regex.compile(
    r"(?:[\w+.-]{2,}://)?(?:[^\s@]+@)?"
    r"(?:(?:[^\W_][\w-]*\.)+[\p{Ll}\p{Lo}]{2,}|\d{1,3}(?:\.\d{1,3}){3})(?::\d{2,5})?(?:[/?#]\S*)?"
)
_CONTRACTION = regex.compile(
    r"(?i:(?P<a>ai|are|ca|could|dare|did|do|does|had|has|have|is|may|might|must|need|ought|sha|should|was|were|wo"
    r"|would)(?P<b>n['’]?t)(?P<c>['’]ve)?"
    r"|(?P<a>i|you|he|she|it|we|they|who|what|when|where|why|how|there|that|this|these|those)"
    r"(?P<b>['’](?:ll|d|ve|re|m|s))(?P<c>['’]ve)?"
    r"|(?P<a>could|might|must|should|would|not)(?P<b>['’]ve)"
    r"|(?P<a>can)(?P<b>not)|(?P<a>gon)(?P<b>na)|(?P<a>got)(?P<b>ta)|(?P<a>y['’])(?P<b>all)"
    r"|(?P<a>[1-9]|1[0-2])(?P<b>[ap]\.?m\.?))"
)
_WHOLE = frozenset(
    """
    a.m. p.m. Adm. Bros. co. Co. Corp. D.C. Dr. e.g. E.g. E.G. Gen. Gov. i.e. I.e. I.E. Inc. Jr. Ltd. Md. Messrs.
    Mo. Mont. Mr. Mrs. Ms. Ph.D. Prof. Rep. Rev. Sen. St. vs. v.s. Mt. Ak. Ala. Apr. Ariz. Ark. Aug. Calif. Colo.
    Conn. Dec. Del. Feb. Fla. Ga. Ia. Id. Ill. Ind. Jan. Jul. Jun. Kan. Kans. Ky. La. Mar. Mass. Mich. Minn. Miss.
    Neb. Nebr. Nev. Nov. Oct. Okla. Ore. Pa. Sep. Sept. Tenn. Va. Wash. Wis. and/or w/o ma'am o'clock 'em 'cause
    """.split()  # noqa: SIM905 - a list literal would be a line for each
)
_LONGEST_WHOLE = max(map(len, _WHOLE))
_OPENING_MARK = regex.compile(rf"\.\.+|\+(?!\d)|[{regex.escape(''.join(sorted(_OPENING)))}]|\p{{So}}")
_SENTENCE_ENDS = frozenset("!.?。．！？؟۔।॥։")


def blocks(text: str) -> Iterator[str]:
    """Yield consecutive blocks of `text` that end at white space, or at a fixed length if there is none."""
    start = 0
    while len(text) - start > 2 * BLOCK_CHARACTERS:
        space = _SPACE.search(text, start + BLOCK_CHARACTERS, start + 2 * BLOCK_CHARACTERS)
        end = space.end() if space else start + 2 * BLOCK_CHARACTERS
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def split_words(text: str) -> list[str]:
    """Return all words and marks of `text`, in order."""
    return list(chain.from_iterable(map(_chunks.__getitem__, text.split())))


def count_sentences(words: Iterable[str]) -> int:
    """Count the sentences of a line: the first word after the mark that ends a sentence begins the next.

    As in spaCy's sentencizer, a line with any words has at least one sentence, and an ellipsis ends none.
    """
    sentences, ended, word = 1, False, ""
    for word in words:
        if word in _SENTENCE_ENDS:
            ended = True
        elif ended and not is_mark(word):
            sentences, ended = sentences + 1, False
    return sentences if word else 0


def is_mark(word: str) -> bool:
    """Return whether a word has neither a letter nor a digit, so that it begins no sentence."""
    return not word.isalnum() and not any(map(str.isalnum, word))


class _Chunks(dict[str, tuple[str, ...]]):
    """A cache of split chunks; when it is full, the older half is dropped, so memory is bounded (some 30 MB)."""

    def __init__(self) -> None:
        super().__init__()
        self._older: dict[str, tuple[str, ...]] = {}

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        words = self._older.get(chunk) or tuple(_split(chunk))
        if len(chunk) <= _LONGEST_CACHED:
            if len(self) == _CACHED_CHUNKS:
                self._older = dict(self)
                self.clear()
            self[chunk] = words
        return words


_chunks = _Chunks()


def _split(chunk: str) -> list[str]:
    """Split a chunk without white space into words, in time linear in its length."""
    if chunk.isalpha():
        return _split_core(chunk)
    if chunk.isdecimal():
        return [chunk]
    if _is_word_and_mark(chunk):
        return [*_split_core(chunk[:-1]), chunk[-1]]
    start = _opening_length(chunk)
    end = len(chunk)
    after: list[str] = []
    while start < end and not _is_whole(chunk, start, end) and (cut := _closing_start(chunk, start, end)) < end:
        after.append(chunk[cut:end])
        end = cut
    return [*_OPENING_MARK.findall(chunk, 0, start), *_split_core(chunk[start:end]), *after[::-1]]


def _is_word_and_mark(chunk: str) -> bool:
    """Return whether this is a plain word with one mark after it, by far the most frequent case.

    A full stop after a capital or a single letter may belong to an abbreviation.
    """
    if not chunk[:-1].isalpha() or chunk[-1] not in _CLOSING or _is_whole(chunk, 0, len(chunk)):
        return False
    return chunk[-1] != "." or (len(chunk) > 2 and chunk[-2].islower())


def _opening_length(chunk: str) -> int:
    """Return the length of the marks that `chunk` begins with, up to an abbreviation such as 'em."""
    position = 0
    while (mark := _OPENING_MARK.match(chunk, position)) and not _is_whole(chunk, position, len(chunk)):
        position = mark.end()
    return position


def _is_whole(chunk: str, start: int, end: int) -> bool:
    return end - start <= _LONGEST_WHOLE and chunk[start:end] in _WHOLE


def _closing_start(chunk: str, start: int, end: int) -> int:
    """Return where the last mark of chunk[start:end] begins; `end` if it does not end with a mark."""
    last = chunk[end - 1]
    if last == ".":
        return _full_stop_start(chunk, start, end)
    if last in _CLOSING or unicodedata.category(last) == "So":
        return end - 1
    if last in "sS" and chunk[max(start, end - 2) : end] in _POSSESSIVE:
        return end - 2
    before_last = chunk[end - 2] if end - start > 1 else ""
    if last in _CURRENCY or last == "+":
        return end - 1 if before_last.isdigit() else end
    unit = _UNIT.search(chunk, max(start, end - 6), end)
    return unit.start() if unit else end


def _full_stop_start(chunk: str, start: int, end: int) -> int:
    """Return where the final full stops begin as a mark of their own, or `end` if the full stop stays.

    An ellipsis is one mark; a full stop stays with a single capital, as in U.S., and where it is alone.
    """
    dots = end - 1
    while dots > start and chunk[dots - 1] == ".":
        dots -= 1
    if end - dots > 1:
        return dots
    before = chunk[max(start, dots - 2) : dots]
    if not before or (len(before) == 1 and before.islower()):
        return end
    last = before[-1]
    # A combining mark can end words of Indic scripts.
    is_letter = last.isalpha() or unicodedata.category(last)[0] == "M"
    ends_word = last.isdigit() or last in _BEFORE_FULL_STOP or (is_letter and not last.isupper())
    return dots if ends_word or (len(before) == 2 and before.isalpha() and before.isupper()) else end


def _split_core(core: str) -> list[str]:
    """Split what remains between the marks: nothing, one word, a contraction, an address, or several words."""
    if not core:
        return []
    if len(core) <= _LONGEST_CONTRACTION and (parts := _CONTRACTION.fullmatch(core)):
        return [part for part in parts.group("a", "b", "c") if part]
    if core.isalnum() or core in _WHOLE or (len(core) <= _LONGEST_ADDRESS and _ADDRESS.fullmatch(core)):
        return [core]
    words: list[str] = []
    position = 0
    for mark in _INSIDE.finditer(core):
        words += [word for word in (core[position : mark.start()], mark.group()) if word]
        position = mark.end()
    return [*words, core[position:]] if position < len(core) else words
