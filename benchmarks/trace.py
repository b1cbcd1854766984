"""From a sentence to its sources: what the index costs to build, and how long a look-up takes, as whole processes.

    python -m benchmarks.trace CORPUS.jsonl GPT2_FOLDER [--sentences 100] [--rounds 3] [--folder FOLDER]

The corpus (documents with `text` and `url`) goes through split, ledger, tokenizer, tokenize and two steps of training,
as a project in FOLDER (a temporary one by default; it takes about 4 times the corpus's size). Then `suffix_array` runs
on one and on two workers, in turn: MB of text per CPU second, peak memory, and the same bytes. Last, spans of 8 to 30
words of random training documents are planted between words of another document, and each sentence is looked up by
`python -m pipelines trace`: whether span and document are found, seconds by the clock and of CPU.
"""

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.processes import Usage, measure
from pipelines.manifest import Manifest

TRAINING = (
    *("--steps", "2", "--warmup-steps", "1", "--global-batch-size", "64", "--sequence-length", "128", "--lr", "1e-3"),
    *("--model.n-layer", "1", "--model.n-head", "1", "--model.n-embd", "8", "--model.n-positions", "128"),
    *("--parallel.device", "cpu", "--validate-every", "0", "--checkpoint-every", "2"),
)
GRAPH = {
    "split": {"cmd": "python -m dataprep.split", "outs": ["split/train", "split/val"]},
    "ledger": {"cmd": "python -m dataprep.ledger", "outs": ["ledger"]},
    "tokenizer": {"cmd": "python -m dataprep.tokenizer", "outs": ["tokenizer"]},
    "tokenize": {"cmd": "python -m dataprep.tokenize", "outs": ["tokens/train", "tokens/val"]},
    "suffix_array": {"cmd": "python -m dataprep.suffix_array", "deps": ["tokens/train"], "outs": ["index"]},
    "pretrain": {"cmd": "python -m trainer.pretrain", "deps": ["tokens/train"], "outs": ["model"]},
}
WORDS = re.compile(r"\S+\s*")


def main() -> None:
    """Prepare a project, and measure both halves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3, help="of building; 0: with the index that is in FOLDER")
    parser.add_argument("--folder", type=Path, help="where the project goes, and stays")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path.cwd()), os.environ.get("PYTHONPATH", "")]))
    corpus, tokenizer = options.corpus.resolve(), options.tokenizer.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        prepare(corpus, tokenizer)
        if options.rounds:
            build(options.rounds)
        look_up(options.sentences)


def run(module: str, *words: str | Path) -> None:
    """Run a command of ours, unless what it publishes is there."""
    subprocess.run([sys.executable, "-m", module, *map(str, words), "--log-level", "warning"], check=True)


def prepare(corpus: Path, tokenizer: Path) -> None:
    """Make the project that is looked up in, but for its index."""
    if not Path("split").exists():
        run("dataprep.split", corpus, "split/train", "split/val", "--val-share", "0.01")
        run("dataprep.ledger", "ledger", "--train", "split/train", "--val", "split/val")
        run("dataprep.tokenizer", "split/train", "tokenizer", "--kind", "files", "--files", tokenizer)
        for side in ("train", "val"):
            run("dataprep.tokenize", f"split/{side}", "tokenizer", f"tokens/{side}")
        run("trainer.pretrain", "tokens/train", "tokens/val", "model", *TRAINING)
    Path("dvc.yaml").write_text(json.dumps({"stages": GRAPH}))
    Path("params.yaml").write_text("{}\n")


def build(rounds: int) -> None:
    """Measure the index's building, and print a table."""
    counts = Manifest.load(Path("tokens/train/manifest.json")).counts
    tokens, text = counts.totals["tokens"], counts.totals["text_bytes"] / 1e6
    usages: dict[int, list[Usage]] = {1: [], 2: []}
    digests: set[bytes] = set()
    for _ in range(rounds):
        for workers, runs in usages.items():
            words = ["tokens/train", "index", "--overwrite", "--workers", str(workers)]
            runs.append(measure([sys.executable, "-m", "dataprep.suffix_array", *words]))
            digests.add(Path("index/manifest.json").read_bytes())
    if len(digests) > 1:
        sys.exit("the index's bytes differ from run to run")
    on_disk = Manifest.load(Path("index/manifest.json")).bytes / 1e6
    print(f"{counts.rows_out:,} documents, {tokens:,} tokens, {text:.0f} MB of text; index {on_disk:.0f} MB")
    print("| workers | seconds | CPU seconds | MB of text / CPU s | MB of tokens / CPU s | peak MiB |")
    print("| --- " * 6 + "|")
    for workers, runs in usages.items():
        seconds, cpu, peak = (
            statistics.median(getattr(u, key) for u in runs) for key in ("seconds", "cpu", "peak_mib")
        )
        width = 2 if Manifest.load(Path("tokens/train/manifest.json")).bytes < 3 * tokens else 4
        rates = f"{text / cpu:.1f} | {width * tokens / 1e6 / cpu:.1f}"
        print(f"| {workers} | {seconds:.1f} | {cpu:.1f} | {rates} | {peak:.0f} |")


def look_up(number: int) -> None:
    """Look planted sentences up, and print how many were found and what that took."""
    drawn = random.Random(1)
    files = sorted(Path("split/train").glob("part-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file, columns=["doc_id", "text"]).to_pylist()]
    found, usages, counts = 0, list[Usage](), list[int]()
    while len(usages) < number:
        row, other = drawn.choice(rows), drawn.choice(rows)
        words, around = WORDS.findall(row["text"]), other["text"].split()
        if len(words) < 40 or len(around) < 10:
            continue
        start = drawn.randrange(len(words) - 30)
        span = "".join(words[start : start + drawn.randint(8, 30)]).strip()
        sentence = f"{' '.join(around[:5])} {span} {' '.join(around[-5:])}".replace("\0", "")
        command = [sys.executable, "-m", "pipelines", "trace", sentence]
        usages.append(measure(command))
        said = subprocess.run([*command, "--places", "1000"], capture_output=True, text=True, check=True).stdout
        found += row["doc_id"].hex() in said
        counts += [int(places.replace(",", "")) for places in re.findall(r"tokens, at ([\d,]+) place", said)]
    print(f"\n{found} of {number} planted spans found in their documents; spans have up to {max(counts):,} places")
    for what, key in (("seconds by the clock", "seconds"), ("CPU seconds", "cpu"), ("peak MiB", "peak_mib")):
        values = sorted(getattr(usage, key) for usage in usages)
        most = f"95 % below {values[int(0.95 * number)]:.2f}, most {values[-1]:.2f}"
        print(f"{what}: median {statistics.median(values):.2f}, {most}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
