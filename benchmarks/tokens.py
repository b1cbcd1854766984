"""Tokenizing: whole processes from documents to published token shards, beside others' ways, in interleaved rounds.

    python -m benchmarks.tokens CORPUS.jsonl GPT2_FOLDER --venv VENV [--fast SITE_PACKAGES] [--rounds 3]

VENV is an environment with datasets, tiktoken, tokenizers and tqdm (benchmarks/tokens_rivals.py runs there). Ours runs
on 1 and 2 workers with this interpreter, and again with SITE_PACKAGES (a folder with gigatoken and what it needs) on
its path. All token streams must be the same bytes.
"""

import argparse
import hashlib
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.processes import Usage, measure

RIVALS = ("nanogpt", "tiktoken", "huggingface", "megatron")


def main() -> None:
    """Measure every way in every round, and print a table."""
    options = arguments()
    usages: dict[str, list[Usage]] = {}
    digests: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        for number in range(options.rounds):
            for name, command in commands(options).items():
                output = Path(folder, f"{name}-{number}")
                usages.setdefault(name, []).append(measure([*command, output]))
                digests[name] = digest(output)
    if len(set(digests.values())) > 1:
        sys.exit(f"the token streams differ: {digests}")
    print_table(options, usages)


def arguments() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--fast", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of ways, such as nanogpt ours-2")
    parser.add_argument("--scratch", type=Path, help="where outputs go, and go again")
    return parser.parse_args()


def commands(options: argparse.Namespace) -> dict[str, list[str | Path]]:
    """Name -> command, without its output."""
    rivals = Path(__file__).with_name("tokens_rivals.py")
    inputs: list[str | Path] = [options.corpus, options.tokenizer]
    found: dict[str, list[str | Path]] = {
        name: [options.venv / "bin" / "python", rivals, name, *inputs] for name in RIVALS
    }
    path = os.pathsep.join(filter(None, [str(options.fast or ""), os.environ.get("PYTHONPATH", "")]))
    for workers in (1, 2):
        ours: list[str | Path] = [sys.executable, "-m", "dataprep.tokenize", "--workers", str(workers), *inputs]
        found[f"ours-{workers}"] = ours
        if options.fast:
            found[f"ours-fast-{workers}"] = ["env", f"PYTHONPATH={path}", *ours]
    return {name: command for name, command in found.items() if not options.only or name in options.only}


def digest(output: Path) -> str:
    """Of the token stream that a way wrote."""
    if (output / "train.bin").exists():
        return hashlib.sha256((output / "train.bin").read_bytes()).hexdigest()
    from pipelines.tokens import open_tokens

    whole = hashlib.sha256()
    for shard in open_tokens(output):
        whole.update(shard.tokens)
    return whole.hexdigest()


def print_table(options: argparse.Namespace, usages: dict[str, list[Usage]]) -> None:
    """Medians; the ratio is to nanoGPT's way in the same round."""
    megabytes = text_bytes(options.corpus) / 1e6
    print(f"{megabytes:.1f} MB of text, medians of {options.rounds} round(s), load {os.getloadavg()[0]:.1f}")
    print(
        "| way | seconds | CPU seconds | MB/s | x nanoGPT | x nanoGPT by CPU | peak MiB |\n| --- " + "| --- " * 6 + "|"
    )
    base = usages.get("nanogpt")
    for name, runs in usages.items():
        seconds, cpu, peak = (
            statistics.median(getattr(run, key) for run in runs) for key in ("seconds", "cpu", "peak_mib")
        )
        ratios = ["", ""]
        if base:
            pairs = list(zip(base, runs, strict=True))
            ratios = [
                f"{statistics.median(getattr(other, key) / getattr(run, key) for other, run in pairs):.2f}"
                for key in ("seconds", "cpu")
            ]
        print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {megabytes / seconds:.1f} | {' | '.join(ratios)} | {peak:.0f} |")


def text_bytes(corpus: Path) -> int:
    """UTF-8 bytes of all texts."""
    import json

    with corpus.open(encoding="utf-8") as lines:
        return sum(len(json.loads(line)["text"].encode()) for line in lines)


if __name__ == "__main__":
    main()
