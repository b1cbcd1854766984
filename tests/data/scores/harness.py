"""Asks lm-evaluation-harness what the model in this folder says to its rows, and records it in harness.json.

    python -m venv v && v/bin/pip install torch transformers 'lm-eval[hf]==0.4.13' && v/bin/python harness.py

The rows are our own sentences in the columns of the Hub's data sets; the model's weights are random.
"""

import json
from pathlib import Path
from typing import Any

import datasets
import lm_eval

HERE = Path(__file__).parent
TASKS = {
    "hellaswag": ("Rowan/hellaswag", None),
    "lambada_openai": ("EleutherAI/lambada_openai", "default"),
    "wikitext": ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1"),
    "piqa": ("baber/piqa", None),
    "arc_easy": ("allenai/ai2_arc", "ARC-Easy"),
    "arc_challenge": ("allenai/ai2_arc", "ARC-Challenge"),
    "winogrande": ("allenai/winogrande", "winogrande_xl"),
    "openbookqa": ("allenai/openbookqa", "main"),
    "boolq": ("aps/super_glue", "boolq"),
    "sciq": ("allenai/sciq", None),
    "copa": ("aps/super_glue", "copa"),
}
WITHOUT_TEST = ("hellaswag", "piqa", "winogrande", "boolq", "copa")


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def load(path: str, name: str | None = None, **_: Any) -> Any:
    """Stand in for `datasets.load_dataset`."""
    task = next(task for task, source in TASKS.items() if source == (path, name))
    splits = ("train", "validation") if task in WITHOUT_TEST else ("train", "validation", "test")
    return datasets.DatasetDict(dict.fromkeys(splits, datasets.Dataset.from_list(read(HERE / f"rows/{task}.jsonl"))))


def main() -> None:
    """Write harness.json."""
    datasets.load_dataset = load
    found = lm_eval.simple_evaluate(
        "hf",
        model_args=f"pretrained={HERE / 'model'},dtype=float32",
        tasks=[*TASKS],
        device="cpu",
        batch_size=4,
        log_samples=True,
        bootstrap_iters=0,
    )
    model = lm_eval.models.huggingface.HFLM(str(HERE / "model"), device="cpu", dtype="float32")
    recorded = {
        task: {
            "scores": {
                name.removesuffix(",none"): value
                for name, value in found["results"][task].items()
                if name.endswith(",none") and isinstance(value, float)
            },
            "log_likelihoods": [_numbers(sample["filtered_resps"]) for sample in found["samples"][task]],
        }
        for task in TASKS
    }
    recorded["blimp"] = blimp(model)
    (HERE / "harness.json").write_text(json.dumps(recorded, indent=1) + "\n")


def blimp(model: Any) -> dict[str, Any]:
    """Ask the pairs as its tasks do, which have a name for each paradigm: an empty context, a space, the sentence."""
    from lm_eval.api.instance import Instance

    rows = [row for file in sorted((HERE / "rows/blimp").iterdir()) for row in read(file)]
    texts = [("", f" {row[name]}") for row in rows for name in ("sentence_good", "sentence_bad")]
    said = model.loglikelihood([Instance("loglikelihood", {}, text, 0) for text in texts])
    pairs = [[said[n][0], said[n + 1][0]] for n in range(0, len(said), 2)]
    return {"scores": {"acc": sum(good > bad for good, bad in pairs) / len(pairs)}, "log_likelihoods": pairs}


def _numbers(responses: list[Any]) -> list[float]:
    """Return the log-likelihoods; with whether they are greedy, or, of a rolling text, without."""
    return [float(each[0]) if isinstance(each, (list, tuple)) else float(each) for each in responses]


if __name__ == "__main__":
    main()
