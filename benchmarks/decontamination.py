"""Decontamination beside Megatron's way in plain Python: whole processes, in interleaved rounds.

    python -m benchmarks.decontamination CORPUS.jsonl GLUE_FOLDER [--rounds 3]
    python -m benchmarks.decontamination CORPUS.jsonl GLUE_FOLDER --planted 2000

The second form measures near matches instead: each of 2,000 items of 8 words or more is planted in a document of its
own, unchanged or with one or two words changed, left out or added, and looked for with 0, 1 and 2 edits; what the
documents as they are lose to it are its false drops, or real copies that were edited.

GLUE_FOLDER is the output of glue_download; validation and test are looked for. Ours is the stage as a user runs it, one
worker, JSONL in and out, once with `--action drop` and once with `--action cut`. The rival does what Megatron-LM's
tools/openwebtext/filter_ngrams.py does, written anew from its rules (one process, no report): a dictionary of
13-grams and of whole items of 8 to 12 words, one pass over the corpus that counts them, a second one that cuts.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.processes import Usage, measure

RIVAL = """
import json, re, sys
from pathlib import Path
import pyarrow.parquet as pq
word = re.compile(r"\\w+")
def keys_of(words):
    if len(words) >= 13:
        return [" ".join(words[i:i + 13]) for i in range(len(words) - 12)]
    return [" ".join(words)] if len(words) >= 8 else []
counts, lengths = {}, set()
for file in sorted(Path(sys.argv[2]).glob("*/*.parquet")):
    if file.stem.startswith(("validation", "test")):
        for row in pq.read_table(file).to_pylist():
            for value in row.values():
                if isinstance(value, str):
                    for key in keys_of(word.findall(value.lower())):
                        counts[key] = 0
                        lengths.add(key.count(" ") + 1)
lengths = sorted(lengths, reverse=True)
def hits(text):
    found = [(m.group(), m.start(), m.end()) for m in word.finditer(text.lower())]
    words = [each[0] for each in found]
    for i in range(len(words)):
        for length in lengths:
            if i + length <= len(words) and (key := " ".join(words[i:i + length])) in counts:
                yield key, found[i][1], found[i + length - 1][2]
with open(sys.argv[1]) as file:
    for line in file:
        for key in {key for key, _, _ in hits(json.loads(line)["text"])}:
            counts[key] += 1
def pieces(text):
    kept, rest = [], [text]
    while rest:
        text = rest.pop(0)
        hit = next((hit for hit in hits(text) if counts[hit[0]] < 10), None)
        if hit is None:
            kept.append(text)
            continue
        left, right = hit[1] - 200, hit[2] + 200
        while left > 0 and text[left] not in ".!?":
            left -= 1
        while right < len(text) and text[right] not in ".!?":
            right += 1
        kept += [text[:left + 1]] if left > 200 else []
        rest += [text[right + 1:]] if len(text) - right > 200 else []
    return kept
with open(sys.argv[1]) as file, open(sys.argv[3], "w") as out:
    for line in file:
        row = json.loads(line)
        found = pieces(row["text"])
        for text in found if len(found) <= 10 else ():
            out.write(json.dumps({**row, "text": text}) + "\\n")
"""


def command(tool: str, corpus: Path, glue: Path, work: Path) -> list[str | Path]:
    """What a tool runs; its documents go to `kept.jsonl` in `work`."""
    kept = work / "kept.jsonl"
    if tool == "plain Python":
        return [sys.executable, "-c", RIVAL, corpus, glue, kept]
    ours = [sys.executable, "-m", "dataprep.decontaminate", corpus, kept, work / "found", "--glue", glue]
    return [*ours, "--action", tool.split()[-1], "--workers", "1", "--log-level", "error"]


def planted(texts: list[str], items: list[str], edits: int) -> list[str]:
    """Documents with an item each, in which so many words differ: another word of the documents, none, or one more."""
    rng = random.Random(edits)
    others = " ".join(texts[:200]).split()
    documents: list[str] = []
    for text, item in zip(texts, items, strict=False):
        words, around = item.split(), text.split()
        for at in sorted(rng.sample(range(len(words)), edits), reverse=True):
            kind = rng.choice(("changed", "left out", "added"))
            words[at : at + (kind != "added")] = [] if kind == "left out" else [rng.choice(others)]
        place = rng.randrange(len(around) + 1)
        documents.append(" ".join([*around[:place], *words, *around[place:]]))
    return documents


def dropped(texts: list[str], glue: Path, edits: int) -> set[int]:
    """Which of these documents the stage drops; common runs of words count too, since each item is planted once."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = (json.dumps({"text": text, "url": str(number)}) + "\n" for number, text in enumerate(texts))
        (folder / "documents.jsonl").write_text("".join(rows))
        call = [*command("Millrace drop", folder / "documents.jsonl", glue, folder), "--edits", str(edits)]
        subprocess.run(call, check=True)
        with (folder / "kept.jsonl").open() as kept:
            return set(range(len(texts))) - {int(json.loads(line)["url"]) for line in kept}


def recall(corpus: Path, glue: Path, number: int) -> None:
    """Print how many planted items are found, and how many documents are dropped without any."""
    with corpus.open() as file:
        texts = [json.loads(line)["text"] for line in file]
    files = [file for file in sorted(glue.glob("*/*.parquet")) if file.stem.startswith(("validation", "test"))]
    values = (value for file in files for row in pq.read_table(file).to_pylist() for value in row.values())
    items = sorted({value for value in values if isinstance(value, str) and len(re.findall(r"\w+", value)) >= 8})
    items = random.Random(0).sample(items, min(number, len(items), len(texts)))
    sizes = [len(re.findall(r"\w+", item)) for item in items]
    kinds = {"8 to 11": range(8, 12), "12 to 25": range(12, 26), "more": range(26, 10_000)}
    print(f"{len(items):,} items in as many documents; of {len(texts):,} documents without them are dropped:")
    lost = {edits: dropped(texts, glue, edits) for edits in range(3)}
    print(", ".join(f"{len(found)} with --edits {edits}" for edits, found in lost.items()))
    print("\n| words that differ | --edits |", " | ".join(f"{name} words" for name in kinds), "| all |")
    print("| --- " * (len(kinds) + 3) + "|")
    for changed in range(3):
        documents = planted(texts, items, changed)
        for edits in range(3):
            found = dropped(documents, glue, edits) - lost[edits]
            searched = set(range(len(documents))) - lost[edits]
            shares = [
                (sum(sizes[n] in kind for n in found), sum(sizes[n] in kind for n in searched))
                for kind in (*kinds.values(), range(10_000))
            ]
            print(f"| {changed} | {edits} |", " | ".join(f"{some / of:.1%}" for some, of in shares), "|")


def count_lines(file: Path) -> int:
    """Lines of a text file."""
    with file.open("rb") as opened:
        return sum(1 for _ in opened)


def main() -> None:
    """Run the rounds and print a table and the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("glue", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--planted", type=int, default=0, help="measure near matches, with so many planted items")
    options = parser.parse_args()
    if options.planted:
        recall(options.corpus, options.glue, options.planted)
        return
    tools = ("Millrace drop", "Millrace cut", "plain Python")
    usages: dict[str, list[Usage]] = {tool: [] for tool in tools}
    kept: dict[str, int] = {}
    for _ in range(options.rounds):
        for tool in tools:
            with tempfile.TemporaryDirectory() as folder:
                usages[tool].append(measure(command(tool, options.corpus, options.glue, Path(folder))))
                kept[tool] = count_lines(Path(folder) / "kept.jsonl")
    documents = count_lines(options.corpus)
    print(f"{documents:,} documents, median of {options.rounds} rounds\n")
    print("| tool | seconds | CPU seconds (range) | documents per CPU second | peak MiB | rows kept |")
    print("| --- | --- | --- | --- | --- | --- |")
    middle = {tool: statistics.median(usage.cpu for usage in rounds) for tool, rounds in usages.items()}
    for tool, rounds in usages.items():
        cpu = [usage.cpu for usage in rounds]
        seconds, peak = (
            statistics.median(each) for each in zip(*((u.seconds, u.peak_mib) for u in rounds), strict=True)
        )
        figures = (
            f"{seconds:.1f} | {middle[tool]:.1f} ({min(cpu):.1f}-{max(cpu):.1f}) | {documents / middle[tool]:,.0f}"
        )
        print(f"| {tool} | {figures} | {peak:,.0f} | {kept[tool]:,} |")
    print(f"\nratio of CPU seconds, plain Python / Millrace cut: {middle[tools[2]] / middle[tools[1]]:.1f}")


if __name__ == "__main__":
    main()
