"""Makes the sample's sentence pairs in MRPC's format from the articles: paraphrases and near misses.

Half of each split are paraphrases by rule (synonyms, contractions, reordered clauses, a hedge added or removed), half
are not (changed facts, a grafted ending, a neighbouring sentence; these are also paraphrased, so that the amount of
change gives nothing away). Every choice is a hash of the sentence and the seed, so the same articles and seed give the
same bytes.

Run: python -m dataprep.sample.make_pairs [FOLDER]
"""

import functools
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dataprep.sample.texts import HELD_OUT_FOR_DEV, HELD_OUT_FOR_TEST, SAMPLE, Article, read_articles
from pipelines.terminal import print_error

SEED = 20260101
PAIRS = {"train": 2600, "dev": 300, "test": 200}
SHORTEST, LONGEST = 35, 125
"""Characters of a usable sentence."""
_HEADER = "#1 ID\t#2 ID\t#1 String\t#2 String"
_STRAIGHT = str.maketrans({"’": "'", "‘": "'", "–": "-", "—": "-", "\u00a0": " "})
_CONTRACTIONS = {
    "it is": "it's",
    "that is": "that's",
    "there is": "there's",
    "is not": "isn't",
    "are not": "aren't",
    "was not": "wasn't",
    "were not": "weren't",
    "do not": "don't",
    "does not": "doesn't",
    "did not": "didn't",
    "cannot": "can't",
    "could not": "couldn't",
    "would not": "wouldn't",
    "will not": "won't",
    "has not": "hasn't",
    "have not": "haven't",
}
_CONJUNCTIONS = "when|if|because|although|though|while|once|before|after|unless|until|as soon as"
_OPENINGS = ("In fact,", "As it happens,", "After all,", "In other words,", "Of course,")


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence of an article; `number` is its id in the files."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences; the label is 1 if they mean the same."""

    label: int
    first: Sentence
    second: Sentence

    @property
    def row(self) -> str:
        """Return the columns that all files share."""
        return f"{self.first.number}\t{self.second.number}\t{self.first.text}\t{self.second.text}"


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    folder = Path(arguments[0]) if arguments else SAMPLE / "glue" / "MRPC"
    there = [folder / f"{split}.tsv" for split in PAIRS if arguments and (folder / f"{split}.tsv").exists()]
    if there:
        print_error(f"{there[0]}: exists already; name another folder")
        return 1
    write_splits(folder)
    return 0


def write_splits(folder: Path) -> None:
    """Write train.tsv, dev.tsv and test.tsv."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, pairs in make_splits().items():
        if split == "test":
            lines = [f"index\t{_HEADER}", *(f"{index}\t{pair.row}" for index, pair in enumerate(pairs))]
        else:
            lines = [f"Quality\t{_HEADER}", *(f"{pair.label}\t{pair.row}" for pair in pairs)]
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n", "utf-8", newline="\n")


def make_splits() -> dict[str, list[Pair]]:
    """Make the pairs of every split; dev and test come from articles that are not on the site."""
    articles = read_articles()
    slugs = {"dev": HELD_OUT_FOR_DEV, "test": HELD_OUT_FOR_TEST}
    served = [slug for slug in articles if slug not in HELD_OUT_FOR_DEV + HELD_OUT_FOR_TEST]
    return {
        split: make_pairs([articles[slug] for slug in slugs.get(split, served)], split, number)
        for split, number in PAIRS.items()
    }


def contaminating_sentences() -> list[str]:
    """Return the sentences of the dev pairs with at least 15 words, in order: the site serves two of them."""
    return [pair.first.text for pair in make_splits()["dev"] if len(re.findall(r"\w+", pair.first.text)) >= 15]


def make_pairs(articles: list[Article], split: str, number: int) -> list[Pair]:
    """Make `number` different pairs, half of them with each label, in a shuffled order."""
    groups = list(usable_sentences(articles, {"train": 1, "dev": 20_001, "test": 40_001}[split]))
    by_label: dict[int, list[Pair]] = {0: [], 1: []}
    seen: set[tuple[str, str]] = set()
    for round_number in range(40):
        for group in groups:
            for sentence in group:
                rng = random.Random(f"{SEED} {split} {round_number} {sentence.text}")
                label = rng.randrange(2)
                text = _paraphrase(sentence.text, rng) if label else _near_miss(sentence, group, rng)
                key = (sentence.text, text)
                if text != sentence.text and key not in seen and len(by_label[label]) < number // 2:
                    seen.add(key)
                    # Above all sentence numbers, so that no two texts share an id.
                    second = Sentence(100_000 + sentence.number * 40 + round_number, text)
                    by_label[label].append(Pair(label, sentence, second))
    pairs = by_label[0] + by_label[1]
    if len(pairs) < number:
        raise ValueError(f"{split}: only {len(pairs)} of {number} pairs; the articles are too few")
    random.Random(f"{SEED} {split}").shuffle(pairs)
    return pairs


def usable_sentences(articles: Iterable[Article], first_number: int) -> Iterator[list[Sentence]]:
    """Yield for each article its plain sentences of usable length, in straight quotes, numbered consecutively."""
    number = first_number
    for article in articles:
        group: list[Sentence] = []
        for curly in article.sentences:
            text = curly.translate(_STRAIGHT)
            if SHORTEST <= len(text) <= LONGEST and not re.search(r"[“”\"\t;:()]", text) and text[-1] == ".":
                group.append(Sentence(number, text))
                number += 1
        yield group


def _paraphrase(text: str, rng: random.Random) -> str:
    """Return the same fact in other words: synonyms, and up to two rules in a random order."""
    text = _replace(text, _table("synonyms.txt"), rng, most=4)
    rules = [_reorder, _contract, _hedge]
    rng.shuffle(rules)
    for rule in rules[: rng.randint(0, 2)]:
        text = rule(text, rng)
    return text


def _near_miss(sentence: Sentence, group: list[Sentence], rng: random.Random) -> str:
    """Return another fact in nearly the same words."""
    kind = rng.random()
    if kind < 0.7:
        changed = _replace(sentence.text, _table("antonyms.txt"), rng, most=2)
        if changed != sentence.text:
            return _paraphrase(changed, rng) if rng.random() < 0.6 else changed
    others = sorted((s for s in group if s != sentence), key=lambda s: (-_overlap(sentence, s), s.number))
    if not others:
        return sentence.text
    other = others[rng.randrange(min(4, len(others)))].text
    return _graft(sentence.text, other) if kind < 0.9 else _paraphrase(other, rng)


def _graft(text: str, other: str) -> str:
    """Return the first half of one sentence with the second half of another."""
    start, end = text.rstrip(".").split(), other.rstrip(".").split()
    return " ".join(start[: (len(start) + 1) // 2] + end[len(end) // 2 :]) + "."


def _overlap(a: Sentence, b: Sentence) -> int:
    return len(set(a.text.lower().split()) & set(b.text.lower().split()))


def _reorder(text: str, rng: random.Random) -> str:  # noqa: ARG001 - the rules share a signature
    """Turn `When A, b.` into `B when A.`, or back."""
    if match := re.fullmatch(rf"({_CONJUNCTIONS}) ([^,]+), (.+)\.", text, re.IGNORECASE):
        return _capital(f"{match[3]} {match[1].lower()} {match[2]}.")
    if match := re.fullmatch(rf"([^,]+),? ({_CONJUNCTIONS}) ([^,]+)\.", text):
        return _capital(f"{match[2]} {match[3]}, {_small(match[1])}.")
    if match := re.fullmatch(r"((?:In|At|By|On|For|From|Under|With) [^,]+), (.+)\.", text):
        return _capital(f"{match[2]} {_small(match[1])}.")
    return text


def _contract(text: str, rng: random.Random) -> str:
    """Turn `it is` into `it's`, or back."""
    for long, short in rng.sample(sorted(_CONTRACTIONS.items()), len(_CONTRACTIONS)):
        for old, new in ((long, short), (short, long)):
            changed = re.sub(rf"\b{old}\b", new, text)
            changed = re.sub(rf"^{old.capitalize()}\b", new.capitalize(), changed)
            if changed != text:
                return changed
    return text


def _hedge(text: str, rng: random.Random) -> str:
    """Put a hedge in front, or take one out."""
    for word in ("also ", "quite ", "indeed ", "simply ", "of course "):
        if word in text:
            return text.replace(word, "", 1)
    return f"{rng.choice(_OPENINGS)} {_small(text)}"


def _replace(text: str, table: dict[str, str], rng: random.Random, most: int) -> str:
    """Replace up to `most` words, and at least one if the table has any of them."""
    words = re.split(r"(\W+)", text)
    indices = [i for i, word in enumerate(words) if word in table or word.lower() in table]
    for i in rng.sample(indices, min(len(indices), rng.randint(1, most))):
        word = words[i]
        new = table.get(word) or table[word.lower()]
        words[i] = new.capitalize() if word[0].isupper() and new[0].islower() else new
        if i >= 2 and words[i - 2] in ("a", "an") and words[i - 1] == " ":
            words[i - 2] = "an" if new[0] in "aeiou" else "a"
    return "".join(words)


@functools.cache
def _table(name: str) -> dict[str, str]:
    """Read a table word -> word: `a = b` works both ways, `a > b` one way; the first line of a word counts."""
    table: dict[str, str] = {}
    for line in (SAMPLE / name).read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            left, sign, right = line.split(" ", 2)
            table.setdefault(left, right)
            if sign == "=":
                table.setdefault(right, left)
    return table


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _small(text: str) -> str:
    """Return a sentence without its initial capital, unless its first word never occurs in lower case."""
    first = re.match(r"\w+", text)
    return text[0].lower() + text[1:] if first and first[0].lower() in _small_words() else text


@functools.cache
def _small_words() -> frozenset[str]:
    words = (word for article in read_articles().values() for word in re.findall(r"\w+", article.text))
    return frozenset(word for word in words if word.islower())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
