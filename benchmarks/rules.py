"""Gopher's, C4's and FineWeb's rules beside datatrove's: how often the verdicts agree, and how fast both are.

    pip install datatrove==0.10.1 spacy "xxhash<3.7" orjson    # into an environment of its own, with numpy and regex
    python -m benchmarks.rules FOLDER_WITH_THE_TEXTS [--documents 1000] [--sets openwebtext imdb] [--differences]

Texts as they are, without repair or language. Per rule: documents that each side rejects by this rule alone, and the
share of equal verdicts; then what our measures cost on the first set. Per preset: the same for all its rules, the
share of kept documents whose text is the same after the removal of lines, and documents per CPU second of one core,
with one document through both sides before the next, so that a busy machine hits both alike. datatrove splits each
text with spaCy once for all its filters.
"""

import argparse
import csv
import json
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dataprep.clean.config import CleanConfig
from dataprep.clean.rules.c4 import remove_lines
from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.rule import Rule, Threshold
from dataprep.clean.rules.table import all_rules, threshold_of
from pipelines import presets

PRESETS = ("gopher", "c4", "fineweb")


@dataclass
class Judge:
    """A side's verdicts and its CPU seconds."""

    judge: Callable[[str], tuple[bool, str]]
    """Text -> keeps it, the text kept."""
    verdicts: list[tuple[bool, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, text: str) -> None:
        """Judge one more text."""
        started = time.process_time()
        self.verdicts.append(self.judge(text))
        self.seconds += time.process_time() - started


def openwebtext(folder: Path) -> Iterator[str]:
    with (folder / "openwebtext-1000" / "openwebtext-1000.decoded.jsonl").open() as file:
        yield from (json.loads(line)["text"] for line in file)


def archive(name: str, ending: str) -> Callable[[Path], Iterator[str]]:
    def read(folder: Path) -> Iterator[str]:
        with tarfile.open(folder / name) as opened:
            members = sorted(
                (one for one in opened if one.isfile() and one.name.endswith(ending)), key=lambda m: m.name
            )
            for member in members:
                file = opened.extractfile(member)
                assert file, "only regular files were listed"
                yield file.read().decode("utf-8", "replace")

    return read


def ag_news(folder: Path) -> Iterator[str]:
    with (folder / "ag_news_test.csv").open(newline="") as file:
        yield from (f"{row[1]}\n{row[2]}" for row in csv.reader(file))


def dolma(folder: Path) -> Iterator[str]:
    for path in sorted((folder / "dolma").glob("*.jsonl")):
        yield from (json.loads(line)["text"] for line in path.read_text().splitlines())


SETS: dict[str, Callable[[Path], Iterator[str]]] = {
    "openwebtext": openwebtext,
    "imdb": archive("aclImdb-labelled.tar.gz", ".txt"),
    "bbc": archive("bbc-news.tar.gz", ".txt"),
    "guide": archive("opensource-guide-multilingual.tar.gz", ".md"),
    "peps": archive("python-peps.tar.gz", ".rst"),
    "news": ag_news,
    "dolma": dolma,
}


def spread(texts: list[str], number: int) -> list[str]:
    """`number` of `texts`, evenly from first to last."""
    return [texts[i * len(texts) // number] for i in range(number)] if len(texts) > number else texts


def active_rules(config: CleanConfig) -> list[tuple[Rule, Threshold]]:
    """The rules that a preset gives a threshold, in the order applied."""
    thresholds = ((rule, threshold_of(config, rule.name)) for rule in all_rules())
    return [(rule, threshold) for rule, threshold in thresholds if threshold is not None]


def our_preset(config: CleanConfig) -> Callable[[str], tuple[bool, str]]:
    rules = active_rules(config)

    def judge(text: str) -> tuple[bool, str]:
        cut = remove_lines(text, config.c4.lines)
        document = DocumentText(cut.text, text, uncut=text, removed=cut.removed)
        return all(rule.failing_value(document, threshold) is None for rule, threshold in rules), cut.text

    return judge


def our_rule(rule: Rule, threshold: Threshold, config: CleanConfig) -> Callable[[str], tuple[bool, str]]:
    def judge(text: str) -> tuple[bool, str]:
        cut = remove_lines(text, config.c4.lines)
        document = DocumentText(cut.text, text, uncut=text, removed=cut.removed)
        return rule.failing_value(document, threshold) is None, cut.text

    return judge


def datatrove(*filters) -> Callable[[str], tuple[bool, str]]:
    from datatrove.data import Document

    def judge(text: str) -> tuple[bool, str]:
        document = Document(text=text, id="")
        return all(one.filter(document) is True for one in filters), document.text

    return judge


def datatrove_preset(name: str) -> Callable[[str], tuple[bool, str]]:
    from datatrove.pipeline import filters

    return datatrove(
        *{
            "gopher": lambda: (filters.GopherRepetitionFilter(), filters.GopherQualityFilter()),
            "c4": lambda: (filters.C4QualityFilter(),),
            "fineweb": lambda: (
                filters.GopherRepetitionFilter(),
                filters.GopherQualityFilter(),
                filters.C4QualityFilter(filter_no_terminal_punct=False),
                filters.FineWebQualityFilter(),
            ),
        }[name]()
    )


def datatrove_rule(rule: str, threshold: Threshold) -> Callable[[str], tuple[bool, str]]:
    """Of datatrove, the filter with all but one rule off (0 is off there)."""
    from datatrove.pipeline import filters

    family, _, key = rule.partition("_")
    if family == "gopher" and key in QUALITY:
        off = dict.fromkeys(QUALITY.values())
        if key in ("max_hash_ratio", "max_ellipsis_ratio"):  # one setting for both: tell them apart by the reason
            wanted = "gopher_too_many_hashes" if key == "max_hash_ratio" else "gopher_too_many_ellipsis"
            one = filters.GopherQualityFilter(**{**off, QUALITY[key]: threshold})
            return lambda text: (_reason(one, text) != wanted, text)
        return datatrove(filters.GopherQualityFilter(**{**off, QUALITY[key]: threshold}))
    if family == "gopher":
        settings = {**dict.fromkeys(REPETITION.values()), "top_n_grams": (), "dup_n_grams": ()}
        if key in REPETITION:
            settings[REPETITION[key]] = threshold
        else:
            settings["top_n_grams" if "top" in key else "dup_n_grams"] = ((int(key.split("_")[2]), threshold),)
        return datatrove(filters.GopherRepetitionFilter(**settings))
    off = {"filter_lorem_ipsum": False, "filter_curly_bracket": False, "min_num_sentences": -1}
    if family == "c4":
        return datatrove(filters.C4QualityFilter(**{**off, C4[key]: threshold or True}))
    lines = filters.C4QualityFilter(filter_no_terminal_punct=False, **off)
    settings = {"line_punct_thr": 0, "short_line_thr": 9, "char_duplicates_ratio": 9, "new_line_ratio": 9e9}
    return datatrove(lines, filters.FineWebQualityFilter(**{**settings, FINEWEB[key]: threshold}))


def _reason(one, text: str) -> str:
    from datatrove.data import Document

    answer = one.filter(Document(text=text, id=""))
    return "" if answer is True else answer[1]


QUALITY = {
    "min_words": "min_doc_words",
    "max_words": "max_doc_words",
    "min_mean_word_length": "min_avg_word_length",
    "max_mean_word_length": "max_avg_word_length",
    "max_hash_ratio": "max_symbol_word_ratio",
    "max_ellipsis_ratio": "max_symbol_word_ratio",
    "max_bullet_lines": "max_bullet_lines_ratio",
    "max_ellipsis_lines": "max_ellipsis_lines_ratio",
    "min_alphabetic_words": "max_non_alpha_words_ratio",
    "min_stop_words": "min_stop_words",
}
REPETITION = {
    "max_duplicate_lines": "dup_line_frac",
    "max_duplicate_paragraphs": "dup_para_frac",
    "max_duplicate_line_characters": "dup_line_char_frac",
    "max_duplicate_paragraph_characters": "dup_para_char_frac",
}
C4 = {
    "max_lorem_ipsum": "filter_lorem_ipsum",
    "max_curly_brackets": "filter_curly_bracket",
    "min_sentences": "min_num_sentences",
}
FINEWEB = {
    "min_punctuated_lines": "line_punct_thr",
    "max_short_lines": "short_line_thr",
    "max_duplicate_line_characters": "char_duplicates_ratio",
    "max_line_feeds_per_word": "new_line_ratio",
}


@dataclass
class Sides:
    """Ours and theirs on the same texts."""

    ours: Judge
    theirs: Judge

    def add(self, text: str) -> None:
        """Let both judge one more text."""
        self.theirs.add(text)
        self.ours.add(text)

    def row(self) -> str:
        """Documents rejected by ours and by theirs, and the share of equal verdicts, as cells of a table."""
        rejected = [sum(not keeps for keeps, _ in side.verdicts) for side in (self.ours, self.theirs)]
        pairs = list(zip(self.ours.verdicts, self.theirs.verdicts, strict=True))
        equal = sum(ours[0] == theirs[0] for ours, theirs in pairs) / len(pairs)
        return f"{rejected[0]} | {rejected[1]} | {equal:.2%}"


def show_rules(texts: list[str], configs: dict[str, CleanConfig]) -> None:
    sides: dict[str, Sides] = {}
    for config in configs.values():
        for rule, threshold in active_rules(config):
            ours = Judge(our_rule(rule, threshold, config))
            sides.setdefault(rule.name, Sides(ours, Judge(datatrove_rule(rule.name, threshold))))
    for text in texts:  # datatrove remembers the words of the last few texts
        for pair in sides.values():
            pair.add(text)
    print("\n| rule | ours rejects | datatrove rejects | equal |\n| --- | --- | --- | --- |")
    for name, pair in sides.items():
        print(f"| {name} | {pair.row()} |")


def show_costs(texts: list[str]) -> None:
    """CPU time of each measure in the order applied; whoever asks first pays for words, lines and runs."""
    seconds: dict[str, float] = {}
    for text in texts:
        document = DocumentText(text)
        for rule in all_rules():
            started = time.process_time_ns()
            rule.measure(document)
            seconds[rule.name] = seconds.get(rule.name, 0.0) + time.process_time_ns() - started
    print("\n| rule | microseconds per document |\n| --- | --- |")
    for name, nanoseconds in seconds.items():
        print(f"| {name} | {nanoseconds / len(texts) / 1000:.1f} |")


def show_presets(sets: dict[str, list[str]], configs: dict[str, CleanConfig], *, differences: bool) -> None:
    print("\n| texts | preset | ours rejects | datatrove rejects | equal | same text | ours docs/CPU s | datatrove | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, texts in sets.items():
        for preset, config in configs.items():
            sides = Sides(Judge(our_preset(config)), Judge(datatrove_preset(preset)))
            for text in texts:
                sides.add(text)
            pairs = list(zip(texts, sides.ours.verdicts, sides.theirs.verdicts, strict=True))
            both = [a[1].strip() == b[1].strip() for _, a, b in pairs if a[0] and b[0]]
            same = f"{sum(both) / len(both):.2%}" if both else "-"
            speeds = len(texts) / sides.ours.seconds, len(texts) / sides.theirs.seconds
            print(f"| {name} | {preset} | {sides.row()} | {same} |", end=" ")
            print(f"{speeds[0]:,.0f} | {speeds[1]:,.0f} | {speeds[0] / speeds[1]:.1f}x |", flush=True)
            if differences:
                _show_differences(preset, config, [text for text, a, b in pairs if a[0] != b[0]])


def _show_differences(preset: str, config: CleanConfig, texts: list[str]) -> None:
    """Values beside thresholds of the documents judged differently."""
    rules = active_rules(config)
    for text in texts:
        cut = remove_lines(text, config.c4.lines)
        document = DocumentText(cut.text, text, uncut=text, removed=cut.removed)
        failed = [(r.name, r.measure(document), t) for r, t in rules if r.failing_value(document, t) is not None]
        theirs = [r.name for r, t in rules if not datatrove_rule(r.name, t)(text)[0]]
        print(f"  {preset}: ours {failed or 'keeps'}, datatrove {theirs or 'keeps'}: {text[:60]!r}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=1000, help="at most so many of each set")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--differences", action="store_true", help="list documents judged differently")
    parser.add_argument("--presets-only", action="store_true")
    arguments = parser.parse_args()
    configs = {name: presets.load(CleanConfig, "clean", name) for name in PRESETS}
    sets = {name: spread(list(SETS[name](arguments.folder)), arguments.documents) for name in arguments.sets}
    for name, texts in sets.items():
        print(f"{name}: {len(texts)} documents, {sum(map(len, texts)) / 1e6:.1f} million characters")
    if not arguments.presets_only:
        show_rules([text for texts in sets.values() for text in texts], configs)
        show_costs(sets[arguments.sets[0]])
    show_presets(sets, configs, differences=arguments.differences)


if __name__ == "__main__":
    main()
