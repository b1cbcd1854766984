"""Where in a text the reason of its rejection is: what a rule counts, runs of words that both texts share, differences.

Nothing here decides anything; it only points. A rule about a whole text (its language, its length) has no place in it.
"""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

Span = tuple[int, int]
"""First character, and the one after the last."""
Pieces = list[tuple[str, str]]
"""A text cut into (kind, text): "" for plain text, "mark" for what is marked, "gap" for a note of what is left out,
and in a comparison "only" for what the other text lacks."""

CHARACTERS = 600
"""Characters of an excerpt."""
BEFORE = 120
"""Characters shown before the first mark."""
LONG_WORD = 30
"""Characters of which a word has fewer: so many an excerpt loses at most at each end, which is not within a word."""
_MOST_MARKS = 200
_COMPARED_WORDS = 2_000
"""Words of each text that are compared: comparing takes up to the square of their number."""
_AROUND_WORDS = 12
"""Words shown on either side of a difference."""
_MOST_DIFFERENCES = 12
_WORD = re.compile(r"\S+\s*")
_LINE = re.compile(r"[^\n]+")


def _pattern(pattern: str, flags: int = 0) -> Callable[[str], Iterable[Span]]:
    compiled = re.compile(pattern, flags)
    return lambda text: (match.span() for match in compiled.finditer(text))


def _repeated(pattern: re.Pattern[str]) -> Callable[[str], Iterable[Span]]:
    """Return what finds each match that has been there before."""

    def find(text: str) -> Iterator[Span]:
        seen = set[str]()
        for match in pattern.finditer(text):
            key = match[0].strip()
            if key in seen:
                yield match.span()
            seen.add(key)

    return find


def _repeated_words(length: int) -> Callable[[str], Iterable[Span]]:
    """Return what finds all runs of `length` words that stand in the text twice or more; the commonest for 2 to 4."""

    def find(text: str) -> Iterator[Span]:
        words = [(match[0].strip(), *match.span()) for match in _WORD.finditer(text)]
        runs = [tuple(word for word, *_ in words[i : i + length]) for i in range(len(words) - length + 1)]
        counts = Counter(runs)
        common = max(counts.values(), default=0)
        for i, run in enumerate(runs):
            if counts[run] > 1 and (length >= 5 or counts[run] == common):
                yield words[i][1], words[i + length - 1][2]

    return find


_FINDERS: dict[str, Callable[[str], Iterable[Span]]] = {
    "c4_max_curly_brackets": _pattern(r"\{"),
    "c4_max_lorem_ipsum": _pattern("lorem ipsum", re.IGNORECASE),
    "seeds_remove_256_javascript": _pattern("javascript", re.IGNORECASE),
    "fineweb_min_punctuated_lines": _pattern(r"^[^\n]*[^\s.!?\"'”’…:;][ \t]*$", re.MULTILINE),
    "fineweb_max_short_lines": _pattern(r"^[^\n]{1,30}$", re.MULTILINE),
    "fineweb_max_duplicate_line_characters": _repeated(_LINE),
    "fineweb_max_line_feeds_per_word": _pattern(r"\n+"),
    "gopher_max_bullet_lines": _pattern(r"^[ \t]*[•‣▶◀◦■□▪▫–*-][^\n]*$", re.MULTILINE),
    "gopher_max_ellipsis_lines": _pattern(r"(?:\.\.\.|…)[ \t]*$", re.MULTILINE),
    "gopher_max_ellipsis_ratio": _pattern(r"\.\.\.|…"),
    "gopher_max_hash_ratio": _pattern("#"),
    "gopher_min_alphabetic_words": _pattern(r"(?<!\S)[^\sA-Za-z]+(?!\S)"),
    "gopher_max_mean_word_length": _pattern(r"\S{13,}"),
    "gopher_max_duplicate_lines": _repeated(_LINE),
    "gopher_max_duplicate_line_characters": _repeated(_LINE),
    "gopher_max_duplicate_paragraphs": _repeated(re.compile(r"(?:[^\n]+\n?)+")),
    "gopher_max_duplicate_paragraph_characters": _repeated(re.compile(r"(?:[^\n]+\n?)+")),
    **{f"gopher_max_top_{n}_gram": _repeated_words(n) for n in (2, 3, 4)},
    **{f"gopher_max_duplicate_{n}_grams": _repeated_words(n) for n in range(5, 11)},
}


def spans_of(rule: str, text: str) -> list[Span]:
    """Return what a rule of `clean` counts in a text, in order and without overlaps; nothing for other rules."""
    find = _FINDERS.get(rule)
    return merged(find(text)) if find else []


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, those that touch or overlap as one."""
    result: list[Span] = []
    for start, end in sorted(span for span in spans if span[0] < span[1]):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return result[:_MOST_MARKS]


def excerpt(text: str, spans: Sequence[Span] = ()) -> Pieces:
    """Return a part of a text from a little before its first mark, with all marks in it."""
    start = max(0, spans[0][0] - BEFORE) if spans else 0
    end = min(len(text), start + CHARACTERS)
    start = _between_words(text, max(0, min(start, end - CHARACTERS)), 1)
    end = _between_words(text, end, -1)
    pieces: Pieces = [("gap", f"{start:,} characters")] if start else []
    position = start
    for first, last in ((max(first, start), min(last, end)) for first, last in spans):
        if first >= last:
            continue
        pieces += [("", text[position:first])] if first > position else []
        pieces.append(("mark", text[first:last]))
        position = last
    pieces += [("", text[position:end])] if position < end else []
    return pieces + ([("gap", f"{len(text) - end:,} characters")] if end < len(text) else [])


def _between_words(text: str, place: int, way: int) -> int:
    """Return the next place, up to some LONG_WORD characters on or back, that is not within a word."""
    for near in range(place, place + way * LONG_WORD, way):
        if not 0 < near < len(text) or not (text[near - 1].isalnum() and text[near].isalnum()):
            return near
    return place


def in_url(url: str, value: str) -> Pieces:
    """Return a URL in which the domain, address or suffix is marked that a value begins with: `.7z (archives)`."""
    word = value.partition(" ")[0].lower()
    found = re.search(re.escape(word), url, re.IGNORECASE) if "." in word else None
    return excerpt(url, [found.span()] if found else [])


def side_by_side(left: str, right: str) -> tuple[Pieces, Pieces]:
    """Return two texts with their differences marked, word by word; long stretches that both share are left out."""
    a, b = ([word[0] for word in islice(_WORD.finditer(text), _COMPARED_WORDS)] for text in (left, right))
    stripped = [[word.strip() for word in words] for words in (a, b)]
    codes = difflib.SequenceMatcher(None, *stripped, autojunk=False).get_opcodes()
    pieces: tuple[Pieces, Pieces] = ([], [])
    differences = 0
    for number, (kind, a_start, a_end, b_start, b_end) in enumerate(codes):
        if kind == "equal":
            ends = (number > 0, number < len(codes) - 1)
            for side, words in ((0, a[a_start:a_end]), (1, b[b_start:b_end])):
                pieces[side].extend(_shared(words, *ends))
            continue
        differences += 1
        if differences > _MOST_DIFFERENCES:
            for side in pieces:
                side.append(("gap", "more differences"))
            break
        for side, words in ((0, a[a_start:a_end]), (1, b[b_start:b_end])):
            if words:
                pieces[side].extend(_limited("only", words))
    return pieces


def _shared(words: Sequence[str], after: bool, before: bool) -> Iterator[tuple[str, str]]:
    """Yield words that both texts have: those after a difference and before the next, and how many are between."""
    head = _AROUND_WORDS if after else 0
    tail = _AROUND_WORDS if before else 0
    if not head and not tail:
        head = 2 * _AROUND_WORDS
    between = len(words) - head - tail
    if between <= _AROUND_WORDS:
        yield "", "".join(words)
        return
    if head:
        yield "", "".join(words[:head])
    yield "gap", f"{between:,} words the same"
    if tail:
        yield "", "".join(words[-tail:])


def _limited(kind: str, words: Sequence[str]) -> Iterator[tuple[str, str]]:
    most = 5 * _AROUND_WORDS
    yield kind, "".join(words[:most])
    if len(words) > most:
        yield "gap", f"{len(words) - most:,} more words"
