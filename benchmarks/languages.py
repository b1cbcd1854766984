"""How often the modes of language identification decide as langdetect on the whole text, and what they cost.

    python -m benchmarks.languages FOLDER [--wanted en de ...] [--choose] [--profile]

FOLDER: see `benchmarks.language_texts`, which splits all sources into two halves. --choose prints, on the first half,
how often resiliparse is wrong and how much it decides for several thresholds of the prefilter; without it the
second half is judged with the thresholds as they are, for English and then for each language that is the
verdict for at least 20 texts (--wanted: for others, in both cases). Speed: each text goes through all ways before
the next one; documents per CPU second of one core, and the ratio to the library. --profile: where the time of
`exact` goes.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from langdetect.detector_factory import DetectorFactory
from langdetect.lang_detect_exception import LangDetectException

from benchmarks.language_texts import collections
from dataprep.languages import langdetect_exact, langdetect_profiles, langdetect_text, prefilter, resiliparse_engine
from dataprep.languages.detection import Detector, Language, make_detector
from dataprep.languages.langdetect_engine import LangdetectDetector

WEB_LIKE = ("OpenWebText", "IMDB", "BBC news")
LEAST_TEXTS = 20
PROBABILITIES = (0.65, 0.9, 0.99, 0.99999)
TIMED = 150
Collections = dict[str, list[str]]


@dataclass(slots=True)
class Known:
    """An engine whose verdicts are known already, so that the prefilter can be asked for many wanted languages."""

    verdicts: dict[str, Language]
    languages: list[str] = field(default_factory=LangdetectDetector(0).known_languages)

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
        prefilter.LEAD, prefilter.FAR = lead, far
        wrong, decided = Counter[str](), 0
        for language in wanted:
            sure = prefilter.Prefilter(Known(exact), (language,))
            for text in texts:
                found = sure.detect(text)
                decided += language == "en" and found.engine == resiliparse_engine.NAME
                wrong[language] += (found.code == language) != (exact[text].code == language)
        print(f"| {lead} | {far} | {decided / len(texts):.1%} | {wrong['en']} | {wrong.total()} |", flush=True)


def agreement_by_collection(texts: Collections, exact: dict[str, Language], sampled: dict[str, Language]) -> None:
    """English wanted: how often each way keeps and drops the same texts as `exact`."""
    sure = prefilter.Prefilter(Known(exact), ("en",))
    alone = resiliparse_engine.ResiliparseDetector()
    print("| texts | number | mean chars | English | decided fast | prefilter | sampled | resiliparse alone |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    everything = [text for found in texts.values() for text in found]
    for name, found in {**texts, "all": everything}.items():
        ways = [
            [sure.detect(text) for text in found],
            [sampled[text] for text in found],
            list(map(alone.detect, found)),
        ]
        english = [exact[text].code == "en" for text in found]
        fast = sum(language.engine == resiliparse_engine.NAME for language in ways[0])
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
        sure = prefilter.Prefilter(Known(exact), (language,))
        found = verdicts(sure, texts)
        differ = [text for text in texts if (found[text].code == language) != (exact[text].code == language)]
        otherwise += [(language, text, found[text]) for text in differ]
        fast = sum(verdict.engine == resiliparse_engine.NAME for verdict in found.values())
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
    sure = prefilter.Prefilter(Known(exact), ("en",))
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
             for mode in ("exact", "sampled", "prefilter")}  # fmt: skip
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
    characters = [langdetect_text.readable_characters(text) for text in texts]
    ngrams = [profiles.known_ngrams(each) for each in characters]
    steps: dict[str, Callable[[int], object]] = {
        "its first 10,000 characters": lambda i: langdetect_text.readable_characters(texts[i]),
        "n-grams known to the profiles": lambda i: profiles.known_ngrams(characters[i]),
        "seven trials": lambda i: langdetect_exact.mean_of_trials(profiles.rows, ngrams[i], 0),
        "all": lambda i: langdetect_exact.most_probable(texts[i], 0),
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
    exact = verdicts(LangdetectDetector(0), everything)
    if arguments.choose:
        choose(everything, exact, arguments.wanted or frequent(exact))
        return
    sampled = verdicts(make_detector(engine="langdetect", mode="sampled"), everything)
    agreement_by_collection(texts, exact, sampled)
    agreement_by_language(everything, exact, arguments.wanted or frequent(exact))
    print("\n| English with at least | agreement | otherwise |\n| --- | --- | --- |")
    for least in PROBABILITIES:
        with_probability(everything, exact, least)
    others = {name: texts[name] for name in ("Open Source Guides", "mixtures") if name in texts}
    in_turn = [text for some in zip(*web.values(), strict=False) for text in some]
    speed({**web, "the three in turn": in_turn, **others})


if __name__ == "__main__":
    main()
