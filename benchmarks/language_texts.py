"""Real texts in many languages for `benchmarks.languages`: whole documents, pieces of them, and mixtures.

FOLDER is one with `text/` and `encodings/`: GitHub's Open Source Guides in 26 languages, the thousand
documents of OpenWebText, IMDB reviews, BBC and AG news, Python's PEPs (half of them code), Project Gutenberg,
Dolma, and ftfy's cases. What is not there is left out.

Two halves by source: a guide is in one of them in all its languages, and so are all pieces of a document, both sides
of a case, and the documents of a mixture. Nothing in one half was seen in the other.
"""

import csv
import hashlib
import json
import random
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

PIECE_CHARS = (200, 500)
MIXTURES = 1000
REVIEWS = 2000


def collections(folder: Path, half: int) -> dict[str, list[str]]:
    """Texts of one half (0 or 1) by collection, in an order of their own."""
    text = folder / "text"
    guide = list(members(text / "opensource-guide-multilingual.tar.gz", ".md", half))
    web = list(jsonl(text / "openwebtext-1000" / "openwebtext-1000.decoded.jsonl", half))
    files = [file for file in sorted((text / "gutenberg").glob("*-0.txt")) if half_of(file.name) == half]
    books = [file.read_bytes().decode("utf-8", "replace") for file in files]
    found = {
        "Open Source Guides": guide,
        "Open Source Guides, pieces": [piece for document in guide for piece in pieces(document)],
        "mixtures": list(mixtures(guide + web[:50])),
        "OpenWebText": web,
        "OpenWebText, pieces": [piece for document in web[::4] for piece in pieces(document)][::3],
        "IMDB": every_nth(list(members(text / "aclImdb-labelled.tar.gz", ".txt", half)), REVIEWS),
        "BBC news": list(members(text / "bbc-news.tar.gz", ".txt", half)),
        "AG news": list(ag_news(text / "ag_news_test.csv", half)),
        "PEPs": list(members(text / "python-peps.tar.gz", ".rst", half)),
        "Gutenberg, pieces": [piece for book in books for piece in pieces(book)][::7],
        "Dolma": [document for file in sorted((text / "dolma").glob("*.jsonl")) for document in jsonl(file, half)],
        "ftfy's cases": list(ftfy_cases(folder / "encodings", half)),
    }
    return {name: texts for name, texts in found.items() if texts}


def half_of(source: str) -> int:
    """The half that a source is in, by a hash of its name, or of its text where it has none."""
    return hashlib.sha256(source.encode("utf-8", "replace")).digest()[0] % 2


def every_nth(texts: list[str], count: int) -> list[str]:
    return texts[:: max(1, len(texts) // count)]


def members(archive: Path, suffix: str, half: int) -> Iterator[str]:
    """The files of a tar archive whose name ends in `suffix`, in order of name; a name is one source in all folders."""
    if not archive.exists():
        return
    with tarfile.open(archive) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            wanted = member.name.endswith(suffix) and half_of(Path(member.name).name) == half
            if wanted and (file := tar.extractfile(member)):
                yield file.read().decode("utf-8", "replace")


def jsonl(file: Path, half: int) -> Iterator[str]:
    if file.exists():
        with file.open(encoding="utf-8") as lines:
            texts = (json.loads(line)["text"] for line in lines)
            yield from (text for text in texts if half_of(text) == half)


def ag_news(file: Path, half: int) -> Iterator[str]:
    if file.exists():
        with file.open(encoding="utf-8", newline="") as lines:
            texts = (f"{title}. {description}" for _, title, description in csv.reader(lines))
            yield from (text for text in texts if half_of(text) == half)


def ftfy_cases(folder: Path, half: int) -> Iterator[str]:
    """Both sides of ftfy's test cases, short lines in many encodings gone wrong."""
    for file in sorted(folder.glob("ftfy-*.json")):
        for case in json.loads(file.read_text("utf-8")):
            if half_of(case["original"]) == half:
                yield from (case[key] for key in ("original", "fixed") if case.get(key))


def pieces(document: str) -> Iterator[str]:
    """Paragraphs of a document put together until they have 200 characters, and cut at 500."""
    least, most = PIECE_CHARS
    held = ""
    for paragraph in re.split(r"\n\s*\n|\n(?=[#*-])", document):
        held = f"{held}\n{paragraph}".strip()
        if len(held) >= least:
            yield held[:most]
            held = ""


def mixtures(documents: list[str]) -> Iterator[str]:
    """Two documents' pieces one after the other, at any share of the first."""
    generator = random.Random(0)
    for _ in range(MIXTURES if documents else 0):
        count, share = generator.randint(2, 10), generator.random()
        sides = [list(pieces(document)) or [document] for document in generator.sample(documents, 2)]
        yield "\n".join(generator.choice(sides[generator.random() > share]) for _ in range(count))
