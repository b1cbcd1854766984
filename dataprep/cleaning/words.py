"""Words and sentences, near to those of spaCy's blank English pipeline, in bounded memory.

datatrove's filters count the tokens of spaCy, so thresholds tuned on them mean marks as well as words:

    He said: "It isn't 3.5 km," (Mr. Bell's well-known U.S. view).
    He said : " It is n't 3.5 km , " ( Mr. Bell 's well - known U.S. view ) .

Text is cut at white space; marks come off both ends of a piece one by one (an ellipsis in one), and so do a
possessive 's, a unit after a number, and a full stop that ends no abbreviation; what is left is an address, a
contraction, or is cut at hyphens, slashes, commas and full stops between letters. Rules after spaCy 3.8
(explosion/spaCy, spacy/lang/punctuation.py and en/), without its emoticons and its longer list of exceptions;
agreement with it is measured by benchmarks/rules.py. Languages written without spaces come in long words.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain

import regex

BLOCK_CHARACTERS = 1 << 16
"""Texts are split in blocks of so many characters and more, up to white space; without any, at twice as many."""
_SPACE = re.compile(r"\s")
_KEPT_PIECES = 1 << 16
_LONGEST_KEPT = 40
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
    """`text` in consecutive blocks that end at white space, or where there is none for too long."""
    start = 0
    while len(text) - start > 2 * BLOCK_CHARACTERS:
        space = _SPACE.search(text, start + BLOCK_CHARACTERS, start + 2 * BLOCK_CHARACTERS)
        end = space.end() if space else start + 2 * BLOCK_CHARACTERS
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def split_words(text: str) -> list[str]:
    """All words and marks of `text`, in order."""
    return list(chain.from_iterable(map(_pieces.__getitem__, text.split())))


def count_sentences(words: Iterable[str]) -> int:
    """Sentences in the words of a line: a word after a sentence's last mark (and the marks that close it) begins one.

    As spaCy's sentencizer does it: a line with any words has one at least, and an ellipsis ends none.
    """
    sentences, ended, word = 1, False, ""
    for word in words:
        if word in _SENTENCE_ENDS:
            ended = True
        elif ended and not is_mark(word):
            sentences, ended = sentences + 1, False
    return sentences if word else 0


def is_mark(word: str) -> bool:
    """Whether a word holds neither a letter nor a digit, so that it begins no sentence."""
    return not word.isalnum() and not any(map(str.isalnum, word))


class _Pieces(dict[str, tuple[str, ...]]):
    """Pieces of text already split; the least used half is forgotten when full, so memory is bounded (some 30 MB)."""

    def __init__(self) -> None:
        super().__init__()
        self._older: dict[str, tuple[str, ...]] = {}

    def __missing__(self, piece: str) -> tuple[str, ...]:
        words = self._older.get(piece) or tuple(_split(piece))
        if len(piece) <= _LONGEST_KEPT:
            if len(self) == _KEPT_PIECES:
                self._older = dict(self)
                self.clear()
            self[piece] = words
        return words


_pieces = _Pieces()


def _split(piece: str) -> list[str]:
    """The words of a piece without white space, in time linear in its length."""
    if piece.isalpha():
        return _split_core(piece)
    if piece.isdecimal():
        return [piece]
    if _is_word_and_mark(piece):
        return [*_split_core(piece[:-1]), piece[-1]]
    start = _opening_length(piece)
    end = len(piece)
    after: list[str] = []
    while start < end and not _is_whole(piece, start, end) and (cut := _closing_start(piece, start, end)) < end:
        after.append(piece[cut:end])
        end = cut
    return [*_OPENING_MARK.findall(piece, 0, start), *_split_core(piece[start:end]), *after[::-1]]


def _is_word_and_mark(piece: str) -> bool:
    """By far the most frequent case; a full stop after a capital or one letter may belong to an abbreviation."""
    if not piece[:-1].isalpha() or piece[-1] not in _CLOSING or _is_whole(piece, 0, len(piece)):
        return False
    return piece[-1] != "." or (len(piece) > 2 and piece[-2].islower())


def _opening_length(piece: str) -> int:
    """Characters of the marks that `piece` begins with, up to an abbreviation such as 'em."""
    position = 0
    while (mark := _OPENING_MARK.match(piece, position)) and not _is_whole(piece, position, len(piece)):
        position = mark.end()
    return position


def _is_whole(piece: str, start: int, end: int) -> bool:
    return end - start <= _LONGEST_WHOLE and piece[start:end] in _WHOLE


def _closing_start(piece: str, start: int, end: int) -> int:
    """Where the last mark of piece[start:end] begins; `end` when it ends with none."""
    last = piece[end - 1]
    if last == ".":
        return _full_stop_start(piece, start, end)
    if last in _CLOSING or unicodedata.category(last) == "So":
        return end - 1
    if last in "sS" and piece[max(start, end - 2) : end] in _POSSESSIVE:
        return end - 2
    before_last = piece[end - 2] if end - start > 1 else ""
    if last in _CURRENCY or last == "+":
        return end - 1 if before_last.isdigit() else end
    unit = _UNIT.search(piece, max(start, end - 6), end)
    return unit.start() if unit else end


def _full_stop_start(piece: str, start: int, end: int) -> int:
    """An ellipsis goes as one mark; a full stop stays with a single capital, as in U.S., and alone."""
    dots = end - 1
    while dots > start and piece[dots - 1] == ".":
        dots -= 1
    if end - dots > 1:
        return dots
    before = piece[max(start, dots - 2) : dots]
    if not before or (len(before) == 1 and before.islower()):
        return end
    last = before[-1]
    # A combining mark ends words of Indic scripts.
    is_letter = last.isalpha() or unicodedata.category(last)[0] == "M"
    ends_word = last.isdigit() or last in _BEFORE_FULL_STOP or (is_letter and not last.isupper())
    return dots if ends_word or (len(before) == 2 and before.isalpha() and before.isupper()) else end


def _split_core(core: str) -> list[str]:
    """What is left between the marks: nothing, one word, a contraction, an address, or several words."""
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
