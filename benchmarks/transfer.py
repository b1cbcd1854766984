"""Does pretraining help? GPT-2 small, pretrained for a few minutes, on GLUE tasks beside random weights.

    python -m benchmarks.transfer prepare WORK --text FILE... --glue FOLDER --tokenizer FOLDER   # where the text is
    python -m benchmarks.transfer pretrain WORK --steps 4000                                     # on a GPU
    python -m benchmarks.transfer finetune WORK [--tasks mrpc rte] [--seeds 5] [--starts pretrained random]
    python -m benchmarks.transfer table WORK

Every step is a stage command as a user types it. `prepare` takes the text through extract, clean, deduplicate,
decontaminate (against the tasks' validation and test rows) and split, and leaves tokens and tokenized tasks in
WORK/input, which is all that the other steps need. `table` has, per task and start, the mean headline of the seeds, its
95 % interval by Student's t, and the difference of the two starts with Welch's interval.
"""

import argparse
import json
import math
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TASKS = ("mrpc", "rte", "cola", "stsb", "wnli")
STARTS = ("pretrained", "random")
SEED = 1234


def command(module: str, *arguments: object) -> None:
    """One stage; an error ends the benchmark."""
    words = [sys.executable, "-m", module, *map(str, arguments)]
    print("$", " ".join(words[1:]), flush=True)
    subprocess.run(words, check=True)


def prepare(work: Path, texts: Sequence[Path], glue: Path, tokenizer: Path, min_tokens: int) -> None:
    """Text files and archives -> WORK/input: tokenizer, tokens/train, tokens/val, glue/TASK, contamination."""
    raw, end = work / "raw", ("--overwrite",)
    for number, text in enumerate(texts):
        command("dataprep.extract", text, raw / f"{number:02d}.jsonl", *end)
    command("dataprep.clean", raw, work / "clean", "--min-tokens", min_tokens, *end)
    command("dataprep.deduplicate", work / "clean", work / "unique", *end)
    command("dataprep.glue_download", *TASKS, work / "tasks", "--source", glue, *end)
    contamination = work / "input/contamination"
    command("dataprep.decontaminate", work / "unique", work / "kept", contamination, "--glue", work / "tasks", *end)
    command("dataprep.split", work / "kept", work / "train", work / "val", "--val-share", 0.02, *end)
    made = work / "input/tokenizer"
    command("dataprep.tokenizer", work / "train", made, "--kind", "files", "--files", tokenizer, *end)
    for split in ("train", "val"):
        command("dataprep.tokenize", work / split, made, work / "input/tokens" / split, *end)
    for task in TASKS:
        command("dataprep.glue_tokenize", task, work / "tasks", made, work / "input/glue" / task, *end)


def pretrain(work: Path, steps: int, flags: Sequence[str]) -> None:
    """GPT-2 small on the tokens, in bf16; and a folder of random weights of the same size."""
    tokens, lasting = work / "input/tokens", ("--steps", steps, "--warmup-steps", steps // 20)
    recipe = ("--sequence-length", 1024, "--global-batch-size", 64, "--lr", 6e-4, "--precision", "bf16")
    fast = ("--compile", "--micro-batch-size", 64, "--validate-every", max(1, steps // 8), "--model.dropout", 0.1)
    out = work / "pretrain"
    command("trainer.pretrain", tokens / "train", tokens / "val", out, *recipe, *lasting, *fast, *flags, "--overwrite")
    command("trainer.export", out, work / "input/tokenizer", work / "pretrained", "--overwrite")
    write_random(work / "pretrained", work / "random")


def write_random(like: Path, folder: Path) -> None:
    """The same model as in the folder `like`, with the weights that training would have begun with."""
    import torch

    from pipelines import store
    from pipelines.manifest import MANIFEST
    from trainer.model import LanguageModel, initial_weight
    from trainer.weights import huggingface

    shape = huggingface.read_architecture(like)
    with torch.device("meta"):
        sizes = {name: weight.shape for name, weight in LanguageModel(shape).named_parameters()}
    weights = {name: initial_weight(name, shape, size, SEED) for name, size in sizes.items()}
    store.remove(folder)
    shutil.copytree(like, folder, ignore=shutil.ignore_patterns(MANIFEST))  # its weights are others
    huggingface.save_folder(folder, shape, weights, {})


def finetune(work: Path, tasks: Sequence[str], starts: Sequence[str], seeds: int, flags: Sequence[object]) -> None:
    """Each task from each start, with so many seeds and, but for `flags`, the default recipe."""
    for task in tasks:
        for start in starts:
            out = work / "finetune" / start / task
            sources = (work / start, work / "input/glue" / task, out)
            command(
                *("trainer.finetune", task, *sources, "--contamination", work / "input/contamination"),
                *("--seed", SEED, "--seeds", seeds, *flags, "--overwrite"),
            )


def table(work: Path) -> str:
    """What was found, as Markdown."""
    rows = ["| task | score | pretrained | random weights | difference |", "| --- | --- | --- | --- | --- |"]
    for task in TASKS:
        found = {start: headlines(work / "finetune" / start / task) for start in STARTS}
        if all(found.values()):
            score = headline_of(work / "finetune" / STARTS[0] / task)
            cells = [with_interval(found[start]) for start in STARTS]
            rows.append(f"| {task} | {score} | {' | '.join(cells)} | {difference(*found.values())} |")
    return "\n".join(rows)


def headlines(folder: Path) -> list[float]:
    """The headline score of every seed; none where the task was not fine-tuned."""
    file = folder / "seeds.json"
    return list(json.loads(file.read_text())["headlines"].values()) if file.exists() else []


def headline_of(folder: Path) -> str:
    """What the headline is the mean of."""
    best = json.loads((folder / "seeds.json").read_text())["best"]
    scores: dict[str, Any] = json.loads((folder / best / "scores.json").read_text())
    return " and ".join(next(iter(scores.values()))["headline_of"])


def with_interval(values: Sequence[float]) -> str:
    """Mean and its 95 % interval."""
    from scipy import stats

    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.fmean(values):.4f} ± {half:.4f}"


def difference(a: Sequence[float], b: Sequence[float]) -> str:
    """Mean of a less mean of b, with its 95 % interval (Welch)."""
    from scipy import stats

    low, high = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    return f"{statistics.fmean(a) - statistics.fmean(b):+.4f} ({low:+.4f} to {high:+.4f})"


def main() -> None:
    """The command; what it does not know goes on to the trainer's command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.transfer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=("prepare", "pretrain", "finetune", "table"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--text", type=Path, nargs="+", default=[])
    parser.add_argument("--glue", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--min-tokens", type=int, default=128)
    parser.add_argument("--steps", type=int, help="of pretraining (2,000), or of fine-tuning in place of its epochs")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--starts", nargs="+", default=STARTS)
    parser.add_argument("--seeds", type=int, default=5)
    given, flags = parser.parse_known_args()
    if given.step == "prepare":
        if not (given.text and given.glue and given.tokenizer):
            parser.error("prepare needs --text, --glue and --tokenizer")
        prepare(given.work, given.text, given.glue, given.tokenizer, given.min_tokens)
    elif given.step == "pretrain":
        pretrain(given.work, given.steps or 2000, flags)
    elif given.step == "finetune":
        lasting = ["--steps", given.steps, "--epochs", 0] if given.steps else []
        finetune(given.work, given.tasks, given.starts, given.seeds, [*lasting, *flags])
    else:
        print(table(given.work))


if __name__ == "__main__":
    main()
