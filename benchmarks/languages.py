"""How often the modes of language identification decide as langdetect on the whole text, and what they cost.

    python -m benchmarks.languages FOLDER [--wanted en de ...] [--choose] [--profile]

FOLDER: see below; all sources are split into two halves. --choose prints, on the first half,
how often resiliparse is wrong and how much it decides for several thresholds of the prefilter; without it the
second half is judged with the thresholds as they are, for English and then for each language that is the
verdict for at least 20 texts (--wanted: for others, in both cases). Speed: each text goes through all ways before
the next one; documents per CPU second of one core, and the ratio to the library. --profile: where the time of
`exact` goes.

Real texts in many languages: whole documents, pieces of them, and mixtures.

FOLDER is one with `text/` and `encodings/`: GitHub's Open Source Guides in 26 languages, the thousand
documents of OpenWebText, IMDB reviews, BBC and AG news, Python's PEPs (half of them code), Project Gutenberg,
Dolma, and ftfy's cases. What is not there is left out.

Two halves by source: a guide is in one of them in all its languages, and so are all pieces of a document, both sides
of a case, and the documents of a mixture. Nothing in one half was seen in the other.
"""

import argparse
import csv
import hashlib
import json
import random
import re
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from langdetect.detector_factory import DetectorFactory
from langdetect.lang_detect_exception import LangDetectException

from dataprep.clean.language import langdetect, langdetect_profiles, shortcuts
from dataprep.clean.language.detector import make_detector
from dataprep.clean.language.engines import RESILIPARSE, LangdetectEngine, ResiliparseEngine
from dataprep.clean.language.language import Detector, Language

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


WEB_LIKE = ("OpenWebText", "IMDB", "BBC news")
LEAST_TEXTS = 20
PROBABILITIES = (0.65, 0.9, 0.99, 0.99999)
TIMED = 150
Collections = dict[str, list[str]]


@dataclass(slots=True)
class Known:
    """An engine whose verdicts are known already, so that the prefilter can be asked for many wanted languages."""

    verdicts: dict[str, Language]
    languages: list[str] = field(default_factory=LangdetectEngine(0).known_languages)

    def detect(self, text: str) -> Language:
        """The verdict given before."""
        return self.verdicts[text]

    def known_languages(self) -> list[str]:
        """Those of langdetect."""
        return self.languages


def verdicts(detector: Detector, texts: Iterable[str]) -> dict[str, Language]:
    return {text: detector.detect(text) for text in texts}


def frequent(exact: dict[str, Language]) -> list[str]:
    """The languages of at least 20 texts, the most frequent first."""
    counts = Counter(language.code for language in exact.values())
    return [code for code, count in counts.most_common() if count >= LEAST_TEXTS and code != "und"]


def choose(texts: list[str], exact: dict[str, Language], wanted: list[str]) -> None:
    """A table of the two kinds of sure verdicts by threshold, over all wanted languages."""
    print(f"{len(texts)} texts, {len(wanted)} languages wanted in turn, English among them\n")
    print("| lead | far | decided for en | wrong for en | wrong, all languages |\n| --- | --- | --- | --- | --- |")
    for lead, far in ((30, 1000), (40, 1000), (50, 1000), (60, 1000), (50, 80), (50, 100), (50, 130)):
        shortcuts.LEAD, shortcuts.FAR = lead, far
        wrong, decided = Counter[str](), 0
        for language in wanted:
            sure = shortcuts.Prefilter(Known(exact), (language,))
            for text in texts:
                found = sure.detect(text)
                decided += language == "en" and found.engine == RESILIPARSE
                wrong[language] += (found.code == language) != (exact[text].code == language)
        print(f"| {lead} | {far} | {decided / len(texts):.1%} | {wrong['en']} | {wrong.total()} |", flush=True)


def agreement_by_collection(texts: Collections, exact: dict[str, Language]) -> None:
    """English wanted: how often each way keeps and drops the same texts as `exact`."""
    sure = shortcuts.Prefilter(Known(exact), ("en",))
    alone = ResiliparseEngine()
    print("| texts | number | mean chars | English | decided fast | prefilter | resiliparse alone |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    everything = [text for found in texts.values() for text in found]
    for name, found in {**texts, "all": everything}.items():
        ways = [[way.detect(text) for text in found] for way in (sure, alone)]
        english = [exact[text].code == "en" for text in found]
        fast = sum(language.engine == RESILIPARSE for language in ways[0])
        agreed = [sum((a.code == "en") == b for a, b in zip(way, english, strict=True)) for way in ways]
        chars = sum(map(len, found)) / len(found)
        cells = " | ".join(f"{number / len(found):.2%} ({len(found) - number})" for number in agreed)
        print(f"| {name} | {len(found)} | {chars:,.0f} | {sum(english)} | {fast / len(found):.1%} | {cells} |")


def agreement_by_language(texts: list[str], exact: dict[str, Language], wanted: list[str]) -> None:
    """Each language wanted in turn: the prefilter's agreement over all texts, and the texts it decides otherwise."""
    print(
        "\n| wanted | texts of it | decided fast | agreement | lost | let in |\n| --- | --- | --- | --- | --- | --- |"
    )
    otherwise: list[tuple[str, str, Language]] = []
    for language in wanted:
        sure = shortcuts.Prefilter(Known(exact), (language,))
        found = verdicts(sure, texts)
        differ = [text for text in texts if (found[text].code == language) != (exact[text].code == language)]
        otherwise += [(language, text, found[text]) for text in differ]
        fast = sum(verdict.engine == RESILIPARSE for verdict in found.values())
        lost = sum(exact[text].code == language for text in differ)
        count = sum(verdict.code == language for verdict in exact.values())
        share = 1 - len(differ) / len(texts)
        print(f"| {language} | {count} | {fast / len(texts):.1%} | {share:.3%} | {lost} | {len(differ) - lost} |")
    print(f"\nDecided otherwise: {len(otherwise)}")
    for language, text, found in otherwise[:40]:
        right = exact[text]
        print(f"- {language} wanted, {found.code} by {found.engine}, exact {right.code} {right.probability:.3f}: "
              f"{len(text)} characters, {' '.join(text.split())[:60]!r}")  # fmt: skip


def with_probability(texts: list[str], exact: dict[str, Language], least: float) -> None:
    """The same for English where a probability is asked for, too."""
    sure = shortcuts.Prefilter(Known(exact), ("en",))
    pairs = [(sure.detect(text), exact[text]) for text in texts]
    differ = sum(len({each.code == "en" and each.probability >= least for each in pair}) == 2 for pair in pairs)
    print(f"| {least} | {1 - differ / len(texts):.3%} | {differ} |")


def library(seed: int) -> Callable[[str], object]:
    """The library by its own factory and detector, profiles in order of name."""
    factory = DetectorFactory()
    factory.seed = seed
    factory.load_json_profile([file.read_text("utf-8") for file in langdetect_profiles.profile_files()])

    def detect(text: str) -> object:
        detector = factory.create()
        detector.append(text)
        try:
            return detector.get_probabilities()
        except LangDetectException:
            return None

    return detect


def speed(texts: Collections) -> None:
    """Documents per CPU second, interleaved."""
    modes = {mode: make_detector(engine="langdetect", mode=mode, languages=("en",)).detect
             for mode in ("exact", "prefilter")}  # fmt: skip
    alone = make_detector(engine="resiliparse", mode="exact").detect
    ways: dict[str, Callable[[str], object]] = {"langdetect alone": library(0), **modes, "resiliparse alone": alone}
    print("\n| texts | mean chars | " + " | ".join(ways) + " |\n| --- | --- |" + " --- |" * len(ways))
    for name, found in texts.items():
        seconds = dict.fromkeys(ways, 0.0)
        timed = found[:TIMED]
        for text in timed:
            for way, detect in ways.items():
                started = time.thread_time()
                detect(text)
                seconds[way] += time.thread_time() - started
        base = seconds["langdetect alone"]
        cells = " | ".join(f"{len(timed) / spent:,.0f} ({base / spent:.1f}x)" for spent in seconds.values())
        print(f"| {name} | {sum(map(len, timed)) / len(timed):,.0f} | {cells} |", flush=True)


def profile(texts: list[str]) -> None:
    """Microseconds of the steps of `exact`, best of five rounds over all texts."""
    started = time.perf_counter()
    profiles = langdetect_profiles.load_profiles()
    print(
        f"\nProfiles loaded in {time.perf_counter() - started:.2f} s\n\n| step | microseconds per text |\n| --- | --- |"
    )
    characters = [langdetect.readable_characters(text) for text in texts]
    ngrams = [profiles.known_ngrams(each) for each in characters]
    steps: dict[str, Callable[[int], object]] = {
        "its first 10,000 characters": lambda i: langdetect.readable_characters(texts[i]),
        "n-grams known to the profiles": lambda i: profiles.known_ngrams(characters[i]),
        "seven trials": lambda i: langdetect.mean_of_trials(profiles.rows, ngrams[i], 0),
        "all": lambda i: langdetect.most_probable(texts[i], 0),
    }
    for name, step in steps.items():
        print(f"| {name} | {min(timed_round(step, len(texts)) for _ in range(5)) / len(texts) * 1e6:.0f} |")


def timed_round(step: Callable[[int], object], count: int) -> float:
    started = time.thread_time()
    for number in range(count):
        step(number)
    return time.thread_time() - started


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wanted", nargs="+")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    texts = collections(arguments.folder, half=0 if arguments.choose else 1)
    everything = list(dict.fromkeys(text for found in texts.values() for text in found))
    web = {name: texts[name] for name in WEB_LIKE if name in texts}
    if arguments.profile:
        profile([text for found in web.values() for text in found[:50]])
        return
    exact = verdicts(LangdetectEngine(0), everything)
    if arguments.choose:
        choose(everything, exact, arguments.wanted or frequent(exact))
        return
    agreement_by_collection(texts, exact)
    agreement_by_language(everything, exact, arguments.wanted or frequent(exact))
    print("\n| English with at least | agreement | otherwise |\n| --- | --- | --- |")
    for least in PROBABILITIES:
        with_probability(everything, exact, least)
    others = {name: texts[name] for name in ("Open Source Guides", "mixtures") if name in texts}
    in_turn = [text for some in zip(*web.values(), strict=False) for text in some]
    speed({**web, "the three in turn": in_turn, **others})


if __name__ == "__main__":
    main()
