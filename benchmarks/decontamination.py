"""Decontamination beside Megatron's way in plain Python: whole processes, in interleaved rounds.

    python -m benchmarks.decontamination CORPUS.jsonl GLUE_FOLDER [--rounds 3]

GLUE_FOLDER is the output of glue_download; validation and test are looked for. Ours is the stage as a user runs it, one
worker, JSONL in and out, once with `--action drop` and once with `--action cut`. The rival does what Megatron-LM's
tools/openwebtext/filter_ngrams.py does, written anew from its rules (one process, no report): a dictionary of
13-grams and of whole items of 8 to 12 words, one pass over the corpus that counts them, a second one that cuts.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

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
    options = parser.parse_args()
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
