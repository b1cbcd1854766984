"""The sample's articles, their sentences, and the role of each article."""

import re
from dataclasses import dataclass
from pathlib import Path

SAMPLE = Path(__file__).parent
_SENTENCE_END = re.compile(r"(?<=[.!?])[”’)]* +(?=[“‘(]?[A-Z0-9])")
# A full stop after these does not end a sentence.
_ABBREVIATION = re.compile(r"\b(Mr|Mrs|Dr|St|No|c)\.$")

HELD_OUT_FOR_DEV = (
    "a-lens-made-of-rings",
    "falling-asleep-in-one-country",
    "how-a-boat-sails-upwind",
    "the-books-in-chains",
    "the-paces-of-the-horse",
)
"""Their sentences make the validation pairs; they are not on the site."""
HELD_OUT_FOR_TEST = ("darwin-among-the-worms", "over-and-under", "what-the-roaster-hears")
"""Their sentences make the test pairs; they are not on the site."""
CONTAMINATED = ("market-day", "the-smell-of-rain")
"""Served with a sentence of the validation pairs in their middle."""
MOJIBAKE = ("the-orchard-in-february", "the-window-at-le-gras")
"""Served as mojibake, and in no other form."""


@dataclass(frozen=True, slots=True)
class Article:
    """A written text: line 1 of its file is the title, then one paragraph per line."""

    slug: str
    title: str
    paragraphs: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the paragraphs as an extractor should return them."""
        return "\n".join(self.paragraphs)

    @property
    def sentences(self) -> list[str]:
        """Return the sentences of all paragraphs, in order."""
        return [sentence for paragraph in self.paragraphs for sentence in split_sentences(paragraph)]


def read_articles(folder: str = "articles") -> dict[str, Article]:
    """Read all articles of a folder beside this file, by slug, in order of slug."""
    articles: dict[str, Article] = {}
    for file in sorted((SAMPLE / folder).glob("*.txt")):
        title, *paragraphs = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
        articles[file.stem] = Article(file.stem, title, tuple(paragraphs))
    return articles


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph, each with its closing quotation mark."""
    sentences: list[str] = []
    start = 0
    for end in _SENTENCE_END.finditer(paragraph):
        sentence = paragraph[start : end.end()].strip()
        if not _ABBREVIATION.search(sentence):
            sentences.append(sentence)
            start = end.end()
    return [*sentences, paragraph[start:].strip()]


def word_ngrams(text: str, n: int) -> set[tuple[str, ...]]:
    """Return the n-grams of words of a text, in lower case and without punctuation."""
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}
