"""The blocks of a page (a line each: paragraph, heading, item of a list, row of a table), and which are main text.

resiliparse writes all that can be seen as lines of minimal HTML, in one pass of C. Each feature of a block has one of
a few bins: its length, links and kind, whether resiliparse's two other readings have it, the same of its neighbours.
Each bin has a weight, a whole number of hundredths, and their sum is the logarithm of the odds that the block is main
text. So the model is a logistic regression, its table can be read, and no result depends on how a machine rounds.

`benchmarks/block_weights.py` learns the weights. The features follow Kohlschütter et al. (Boilerplate Detection using
Shallow Text Features, WSDM 2010) and Peters and Lecocq (Content Extraction Using Diverse Feature Sets, WWW 2013).
"""

import html
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import add
from typing import NamedTuple

from resiliparse.extract.html2text import extract_plain_text  # pyright: ignore[reportMissingModuleSource]
from resiliparse.parse.html import HTMLTree

from dataprep.extract.block_weights import WEIGHTS

KINDS = ("text", "heading", "paragraph", "item", "row", "preformatted")
KEPT = 0.4
"""Lowest probability of a block that is kept; at 0.35 to 0.5, one collection gains what another loses (.01)."""
_KEPT_PARTS = int(KEPT * 1000)
_SPAN = 8
"""Blocks on each side that make up the surroundings."""
_NEIGHBOURS = (-3, -2, -1, 1, 2, 3)
_MOST_BOILERPLATE_WORDS = 25
_LOOKED_AT = 80
"""Characters at a block's start in which digits and capitals are counted."""
_MOST_SEARCHED = 1 << 28
"""Characters of another reading that are searched for blocks: a page of 45,000 long ones outside it took a minute."""

_UNCLOSED = ("a:empty", "li:empty", "pre:empty")
"""Elements that resiliparse 2.0 opens and never closes: what follows would be taken for theirs."""

_PREFIXES = (
    ("<h", "heading"),
    ("<p>", "paragraph"),
    ("<li>", "item"),
    ("<pre", "preformatted"),
)
_LINK = re.compile(r"(<a [^>]*>|</a>)")
_TAG = re.compile(r"<[^>]*>")
_BOILERPLATE = (
    *("©", "copyright", "all rights reserved", "cookie", "privacy", "terms of", "subscribe", "newsletter", "sign up"),
    *("log in", "login", "share", "tweet", "facebook", "comment", "related", "read more", "advert", "previous", "next"),
)
_ENDS = tuple('.!?:;"”’»…。！？')

_WORDS = (1, 2, 3, 5, 8, 12, 20, 30, 50, 80)
_FEW_WORDS = (4, 10, 25, 50)
_WORD_CHARS = (3, 4, 5, 6, 7, 9)
_LINK_PERCENT = (1, 20, 50, 90)
_SHARES = (10, 30, 50, 70, 90)
_DIGITS = (1, 10, 30)
_CAPITALS = (1, 3, 8, 20, 60)
_PAGE_CHARS = (1000, 3000, 10_000, 30_000)
_MEAN_CHARS = (20, 40, 80, 160, 320)
_PLACES = (1, 3, 6, 12, 25, 50)
_DISTANCES = (1, 2, 3, 6, 11, 1000)

BINS = {
    "words": 11,
    "word_chars": 7,
    "links": 5,
    "ends": 2,
    "commas": 3,
    "digits": 4,
    "capitals": 6,
    "kind_words": 6 * 5,
    "repeated": 2,
    "boilerplate": 2,
    "place": 10,
    "page_share": 2 * 6,
    "marked_share": 3 * 6,
    "words_page_marked": 5 * 2 * 3,
    "page_links": 5,
    "page_chars": 5,
    "span_links": 5,
    "span_page": 6,
    "span_marked": 6,
    "span_chars": 6,
    **{f"neighbour{offset:+}": 5 * 2 * 2 + 1 for offset in _NEIGHBOURS},
    **{f"kind{offset:+}": 7 for offset in (-1, 1)},
    "from_start": 7,
    "from_end": 7,
    "to_long": 7,
    "between_long": 4,
}
"""The features by name, with the number of their bins."""
_FIRST = tuple(accumulate(BINS.values(), initial=0))[:-1]


class Block(NamedTuple):
    """A line of a page."""

    kind: int
    """Place in KINDS."""
    text: str
    link_chars: int


def read_blocks(tree: HTMLTree, *, tables: bool) -> list[Block]:
    """Return all blocks of a page that can be seen, in its order; without `tables`, none of theirs."""
    lines = extract_plain_text(
        tree,
        preserve_formatting="minimal_html",
        main_content=False,
        alt_texts=False,
        links=True,
        skip_elements=[*_UNCLOSED, *([] if tables else ["table"])],
    )
    return list(_blocks(lines))


def _blocks(lines: str) -> Iterator[Block]:
    lists, in_link, in_code = 0, False, False
    for raw in lines.split("\n"):
        line = raw.strip()
        kind, link_chars = "preformatted" if in_code else "", 0
        if not in_code and line.startswith("<"):
            kind = next((kind for prefix, kind in _PREFIXES if line.startswith(prefix)), "")
            lists += line.startswith(("<ul", "<ol")) - line.startswith(("</ul", "</ol"))
        if "<" in line:
            in_code = (in_code or kind == "preformatted") and "</pre>" not in line
            if in_link or "<a " in line:
                for part in _LINK.split(line):
                    if part.startswith("<a ") or part == "</a>":
                        in_link = part != "</a>"
                    elif in_link:
                        link_chars += len(_plain(part).strip())
        elif in_link:
            link_chars = len(line)
        text = _plain(raw.rstrip() if kind == "preformatted" else line)  # the indentation of code stays
        if not text.isspace() and text:
            kind = kind or ("row" if "\t" in text else "item" if lists > 0 else "text")
            yield Block(KINDS.index(kind), text.rstrip() if kind == "preformatted" else text.strip(), link_chars)


def _plain(text: str) -> str:
    """Return minimal HTML without its tags."""
    return html.unescape(_TAG.sub("", text) if "<" in text else text)


def _percent(part: int, whole: int) -> int:
    return 100 * part // whole if whole else 0


def _says_boilerplate(text: str) -> bool:
    return any(word in text for word in _BOILERPLATE)  # a regular expression takes ten times as long


class _In:
    """Which blocks another reading of the page has."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = {line.strip(" -\t") for line in text.split("\n")} if text else set[str]()
        self._left = _MOST_SEARCHED

    def __call__(self, block: str) -> bool:
        """Return whether the text has the block as a line, or a long one anywhere: there, links may be cut out."""
        block = block.strip()
        return block in self._lines or (len(block) > 60 and self._left > 0 and self._search(block))

    def _search(self, block: str) -> bool:
        place = self._text.find(block)
        self._left -= len(self._text) if place < 0 else place
        return place >= 0


def bins(blocks: Sequence[Block], page_text: str, marked_text: str) -> Iterator[list[int]]:
    """Yield the bins of each block, one for each feature, as places in the table of all bins.

    `page_text` and `marked_text` are resiliparse's other readings; the second may be empty.
    """
    count = len(blocks)
    chars = [len(block.text) for block in blocks]
    words = [len(block.text.split()) for block in blocks]
    links = [min(100, _percent(block.link_chars, size)) for block, size in zip(blocks, chars, strict=True)]
    in_page, in_marked = _In(page_text), _In(marked_text)
    page = [in_page(block.text) for block in blocks]
    marked = [in_marked(block.text) for block in blocks]
    times = Counter(block.text for block in blocks)
    starts = list(accumulate(chars, initial=0))
    total = starts[-1]
    sums = [
        list(accumulate((value * size for value, size in zip(values, chars, strict=True)), initial=0))
        for values in (links, page, marked)
    ]
    page_share = bisect_right(_SHARES, _percent(len(page_text), total))
    marked_share = bisect_right(_SHARES, _percent(len(marked_text), total))
    page_links = bisect_right(_LINK_PERCENT, sums[0][-1] // max(1, total))
    page_chars = bisect_right(_PAGE_CHARS, total)
    few = [bisect_right(_FEW_WORDS, number) for number in words]
    edge = [20] * 3
    states = [*edge, *(4 * few[i] + 2 * (links[i] >= 50) + page[i] for i in range(count)), *edge]
    kinds = [6, *(block.kind for block in blocks), 6]
    long = [i for i in range(count) if words[i] >= 30 and links[i] < 20 and page[i]]
    first_long, last_long = (long[0], long[-1]) if long else (count, -1)
    for i, (kind, text, _) in enumerate(blocks):
        size, number = chars[i], words[i]
        mark = (1 + marked[i]) if marked_text else 0
        low, high = max(0, i - _SPAN), min(count, i + _SPAN + 1)
        span = max(1, starts[high] - starts[low])
        span_links, span_page, span_marked = ((each[high] - each[low]) for each in sums)
        after = bisect_right(long, i)
        nearest = min((abs(long[k] - i) for k in (after - 1, after) if 0 <= k < len(long)), default=1000)
        commas = text.count(",")
        start = text[:_LOOKED_AT]
        own = (
            bisect_right(_WORDS, number),
            bisect_right(_WORD_CHARS, size // max(1, number)),
            bisect_right(_LINK_PERCENT, links[i]),
            text.endswith(_ENDS),
            (commas > 0) + (20 * commas > number),
            bisect_right(_DIGITS, _percent(sum(map(str.isdigit, start)), len(start))),
            bisect_right(_CAPITALS, _percent(sum(map(str.isupper, start)), len(start))),
            5 * kind + few[i],
            times[text] > 1,
            number < _MOST_BOILERPLATE_WORDS and _says_boilerplate(text.lower()),
            min(9, 10 * starts[i] // max(1, total)),
            2 * page_share + page[i],
            3 * marked_share + mark,
            6 * few[i] + 3 * page[i] + mark,
            page_links,
            page_chars,
            bisect_right(_LINK_PERCENT, span_links // span),
            bisect_right(_SHARES, 100 * span_page // span),
            bisect_right(_SHARES, 100 * span_marked // span),
            bisect_right(_MEAN_CHARS, span // (high - low)),
            *states[i : i + 3],
            *states[i + 4 : i + 7],
            kinds[i],
            kinds[i + 2],
            bisect_right(_PLACES, i),
            bisect_right(_PLACES, count - 1 - i),
            bisect_right(_DISTANCES, nearest),
            2 * (first_long < i) + (last_long > i),
        )
        yield list(map(add, _FIRST, own))


def probabilities(blocks: Sequence[Block], page_text: str, marked_text: str) -> list[int]:
    """Return the probability of each block that it is main text, in thousandths."""
    weights = [weight for name in BINS for weight in WEIGHTS[name]]
    scores = (sum(map(weights.__getitem__, places)) for places in bins(blocks, page_text, marked_text))
    return [round(1000 / (1 + math.exp(-max(-2000, min(2000, score)) / 100))) for score in scores]


def main_blocks(blocks: Sequence[Block], page_text: str, marked_text: str) -> tuple[str, float]:
    """Return the text of the blocks that are kept, and the F1 of its characters that the probabilities let expect."""
    chances = probabilities(blocks, page_text, marked_text)
    kept = [(block, chance) for block, chance in zip(blocks, chances, strict=True) if chance >= _KEPT_PARTS]
    right = sum(len(block.text) * chance for block, chance in kept)
    wanted = sum(len(block.text) * chance for block, chance in zip(blocks, chances, strict=True))
    found = 1000 * sum(len(block.text) for block, _ in kept)
    text = "\n".join("- " * (KINDS[block.kind] == "item") + block.text for block, _ in kept)
    return text, 2 * right / (found + wanted) if kept else 0.0
