"""Repair of texts beside ftfy itself, document by document in one run, and where the rest of the time goes.

    python -m benchmarks.repair FILE.jsonl [FILE.jsonl ...] [--rounds 2] [--huge-mb 100]

FILE: documents with a `text`, such as web20k.jsonl and owt1000.jsonl. Each text is repaired by ours and by
`ftfy.fix_text` in turn, so a busy machine hits both alike, and the answers are compared; figures are documents per
CPU second of one core, the best of the rounds. Then: which kinds of documents take our time, a profile of ours,
and one line of --huge-mb megabytes of each kind (0: none).
"""

import argparse
import cProfile
import json
import pstats
import resource
import time
from collections import Counter
from pathlib import Path

import ftfy

from dataprep.cleaning.repair import Repair

HUGE_LINES = {
    "ASCII": "sound text, it has nothing to repair. ",
    "curly quotes": "sound text, “in quotes” — it’s naïve. ",
    "two scripts": "звук и text, “in quotes”. ",
    "mojibake in each sentence": "schÃ¶n it is, the rest is sound. ",
    "controls of Windows-1252": "it\x92s sound\x85 otherwise. ",
}


def race(texts: list[str], repair: Repair) -> tuple[float, float]:
    """CPU seconds of ours and of ftfy for all the texts."""
    ours = theirs = 0.0
    for text in texts:
        started = time.process_time()
        repaired = repair.apply(text)
        between = time.process_time()
        expected = ftfy.fix_text(text)
        ended = time.process_time()
        assert repaired.text == expected
        ours, theirs = ours + between - started, theirs + ended - between
    return ours, theirs


def kinds_of_documents(texts: list[str], repair: Repair) -> None:
    """A table: what changed in a document, how many such, and their share of our time."""
    documents, seconds = Counter[str](), Counter[str]()
    for text in texts:
        started = time.process_time()
        repaired = repair.apply(text)
        kind = ", ".join(repaired.changes) or ("nothing, ASCII" if text.isascii() else "nothing, beyond ASCII")
        seconds[kind] += time.process_time() - started
        documents[kind] += 1
    print("| changed | documents | share of our time |\n| --- | --- | --- |")
    for kind, spent in seconds.most_common(8):
        print(f"| {kind} | {documents[kind]:,} | {spent / seconds.total():.0%} |")


def huge_lines(megabytes: int, repair: Repair) -> None:
    print(f"\n| one line of {megabytes} MB | CPU seconds | MB/s | ftfy MB/s, first MB | peak MiB of the process |")
    print("| --- | --- | --- | --- | --- |")
    for name, sentence in HUGE_LINES.items():
        line = sentence * (megabytes * 1_000_000 // len(sentence))
        started = time.process_time()
        repair.apply(line)
        ours = time.process_time() - started
        started = time.process_time()
        ftfy.fix_text(line[:1_000_000])
        theirs = time.process_time() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"| {name} | {ours:.2f} | {megabytes / ours:,.0f} | {1 / theirs:.1f} | {peak:,} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--huge-mb", type=int, default=100)
    options = parser.parse_args()
    repair = Repair()
    repair.apply("warm up: é &")
    for file in options.files:
        with file.open() as lines:
            texts = [json.loads(line)["text"] for line in lines]
        ours, theirs = map(min, zip(*(race(texts, repair) for _ in range(options.rounds)), strict=True))
        characters = sum(map(len, texts)) / 1e6
        print(f"\n## {file.name}: {len(texts):,} documents, {characters:.1f} M characters\n")
        print("| | documents per CPU second | M characters per CPU second |\n| --- | --- | --- |")
        for name, seconds in (("ours", ours), ("ftfy.fix_text", theirs)):
            print(f"| {name} | {len(texts) / seconds:,.0f} | {characters / seconds:.1f} |")
        print(f"\n{theirs / ours:.1f} times ftfy, all texts equal.\n")
        kinds_of_documents(texts, repair)
        profile = cProfile.Profile()
        profile.runcall(lambda texts=texts: [repair.apply(text) for text in texts])
        pstats.Stats(profile).sort_stats("tottime").print_stats(8)
    if options.huge_mb:
        huge_lines(options.huge_mb, repair)


if __name__ == "__main__":
    main()
