"""Texts that the checkpoints of a pretraining write, for the report by hand: the same prompts after ever more steps.

They are kept in `provenance/RUN/pretrain.samples.jsonl`, so that a report during training adds those of new checkpoints
to those of earlier ones, which training deletes.
"""

import hashlib
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from pipelines import store
from pipelines.errors import UserError
from pipelines.outputs import provenance_path
from trainer.config import EvaluateConfig
from trainer.reporting.results import unfinished_pretraining
from trainer.reporting.times import Sample
from trainer.weights.records import checkpoints, read_record

logger = logging.getLogger(__name__)

COUNTERS = ("step", "position", "tokens", "optimizer_steps", "loss_scale", "outliers")
"""Keys of a record that change during a run."""


def samples_path(run_stats: Path) -> Path:
    """Return the file of a run's samples."""
    return provenance_path(run_stats / "pretrain.json").with_suffix(".samples.jsonl")


def read_samples(run_stats: Path) -> list[Sample]:
    """Return the samples by step, none if there are none yet; raise UserError for a file that has something else."""
    file = samples_path(run_stats)
    try:
        lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []
        return [Sample(str(i["run"]), int(i["step"]), str(i["prompt"]), str(i["text"])) for i in lines]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file}: expected a sample in each line; delete it, the report writes it anew") from None


def by_prompt(samples: list[Sample]) -> dict[str, list[Sample]]:
    """Return the samples of each prompt, in the order of the steps."""
    prompts = dict.fromkeys(sample.prompt for sample in samples)
    return {prompt: [sample for sample in samples if sample.prompt == prompt] for prompt in prompts}


def samples_of(run_stats: Path, runs: Path, config: EvaluateConfig) -> list[Sample]:
    """Return the samples of the run as it is trained now; those of an earlier training under its name are left out."""
    known = {_identity(read_record(folder), config) for folder in _checkpoints(runs).values()}
    return [sample for sample in read_samples(run_stats) if sample.run in known]


def _checkpoints(runs: Path) -> dict[int, Path]:
    """Return the checkpoints of a training, ended or not: step -> folder."""
    scratch = unfinished_pretraining(runs)
    return checkpoints(scratch / "checkpoints" if scratch else runs / "pretrain")


def add_samples(run_stats: Path, runs: Path, val: Path, tokenizer: Path, config: EvaluateConfig) -> None:
    """Let each checkpoint that has no samples yet write `config.texts` of them, as `evaluate` does.

    `val`: token shards, whose first documents are the prompts. A checkpoint that is damaged, or that training deletes
    meanwhile, is left out with a warning. Raises UserError if the tokens or the tokenizer cannot be used.
    """
    from trainer.data.stream import check_tokens_of_anyone
    from trainer.evaluate import write_texts
    from trainer.model import LanguageModel
    from trainer.weights.conversion import read_model
    from trainer.weights.huggingface import open_tokenizer, require_same_tokenizer

    found = _checkpoints(runs)
    if not found:
        return
    stream = check_tokens_of_anyone(val)
    require_same_tokenizer(tokenizer, stream.meta, val)
    opened, samples = open_tokenizer(tokenizer), read_samples(run_stats)
    for step, folder in found.items():
        try:
            record = read_record(folder)
            run = _identity(record, config)
            samples = [sample for sample in samples if sample.run == run]
            if any(sample.step == step for sample in samples):
                continue
            model = cast(LanguageModel, read_model(folder, record, LanguageModel).eval())
            texts = write_texts(model, opened, stream, config)
        except (UserError, OSError) as error:
            logger.warning("%s: no samples: %s", folder, error)
            continue
        samples += [Sample(run, step, text["prompt"], text["text"].removeprefix(text["prompt"])) for text in texts]
        samples.sort(key=lambda sample: sample.step)
        with store.create(samples_path(run_stats)) as file:
            file.write("".join(f"{json.dumps(asdict(sample))}\n" for sample in samples).encode())


def _identity(record: dict[str, Any], config: EvaluateConfig) -> str:
    """Return a digest of what was trained and how texts are written: samples of anything else are another run's."""
    same = {key: value for key, value in record.items() if key not in COUNTERS}
    return hashlib.sha256(store.json_bytes([same, asdict(config)])).hexdigest()[:16]
