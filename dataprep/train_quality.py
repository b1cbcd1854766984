"""Command `train_quality`: a classifier of good and bad documents, trained on examples of both.

Two inputs of documents -> `model.arrow`, which `clean.quality` names, and `held_out.json`: how well it tells documents
that it was not trained on. It is a logistic regression on hashed words and pairs of words, as the filters of GPT-3
(Brown et al. 2020, arXiv:2005.14165, appendix A: hashed words) and DCLM (Li et al. 2024, arXiv:2406.11794, section 4.4:
a linear fastText model on words and pairs) are.

    python -m dataprep.train_quality good.jsonl bad.jsonl quality/
    python -m dataprep.clean raw.jsonl clean.jsonl --quality quality/model.arrow --min-quality 0.5
    python -m dataprep.show_quality quality/model.arrow raw.jsonl

The same documents give the same bytes, in any order, files and number of workers; a document that is there twice counts
once, and one that is both good and bad not at all. The classes weigh the same, whatever their sizes. Memory: 4 bytes
for each distinct word and pair of a document, some 4 kB a document.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import xxhash
from annotated_types import Gt, Interval, Lt

from dataprep.quality.features import Features, find_features, folded
from dataprep.quality.logistic import area_under_curve, fit
from dataprep.quality.model import MODEL_FILE, QualityModel
from pipelines import store
from pipelines.command import Documents, Limit, Output, Part, StageSpec
from pipelines.config import Count, NonNegative, Positive
from pipelines.documents import read_batches
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main
from pipelines.terminal import counted, they_are

logger = logging.getLogger(__name__)

VERSION = 1
SHAPED_BY = ("numpy", "pyarrow", "xxhash")
HELD_OUT_FILE = "held_out.json"
CLASSES = ("good", "bad")
FEWEST = 10
"""Documents of a class without which nothing is trained."""
_FEW = 500
"""Documents of a class below which the measures are called uncertain."""
_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_NO_WORDS, _REPEATED, _BOTH = "no_words", "repeated", "in_both_classes"
_KEY_BYTES = 16

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainQualityConfig:
    """How to train."""

    bits: Annotated[int, Interval(ge=10, le=24)] = 18
    """Words and pairs fall into 2 ** bits buckets; the model file has two bytes for each."""
    l2: Positive = 1e-4
    """Weight of the squared weights in the loss: the larger, the less single words count."""
    held_out: Annotated[float, Gt(0), Lt(1)] = 0.1
    """Share of each class that is set aside to measure the classifier, and not trained on."""
    seed: NonNegative = 1234
    """Seed of the hashes that decide which documents are set aside."""
    tolerance: Positive = 1e-5
    """Training ends when no component of the gradient is larger."""
    max_steps: Count = 1000
    """Training ends at the latest after so many steps."""


def train_quality(
    config: TrainQualityConfig, run: StageRun, good: Documents, bad: Documents, output: Output
) -> dict[str, Any]:
    """Hash each shard's documents, then train; the stats are the measures on the documents set aside."""
    hashed = Counts()
    for name, documents in zip(CLASSES, (good, bad), strict=True):
        hashed.add(run.map(hash_part, documents.parts, config.bits, config.seed, into=name))
    files = [
        run.scratch / name / f"{part.name}.arrow"
        for name, documents in zip(CLASSES, (good, bad), strict=True)
        for part in documents.parts
    ]
    counts = run.step(train, "model", files, len(good.parts), config, into=output)
    measured = json.loads((output.folder / HELD_OUT_FILE).read_bytes())
    _warn(measured, counts, config)
    run.summary = (
        f"of {measured['good'] + measured['bad']:,} documents set aside, {measured['accuracy']:.1%} told right"
    )
    left_out = {_NO_WORDS: hashed.rows_in - hashed.rows_out, **counts.totals}
    return {"in": hashed.rows_in, **{key: value for key, value in measured.items() if key != "thresholds"}, **left_out}


def _warn(measured: dict[str, Any], counts: Counts, config: TrainQualityConfig) -> None:
    for name in CLASSES:
        if (number := measured[f"trained_{name}"] + measured[name]) < _FEW:
            logger.warning(
                "train_quality: only %s, so the measures are uncertain", counted(number, f"{name} documents")
            )
    if both := counts.totals.get(_BOTH, 0):
        logger.warning("train_quality: %s both good and bad, and left out", they_are(both, "documents"))
    if measured["gradient"] > config.tolerance:
        logger.warning(
            "train_quality: not at its end after %d steps (the gradient is %.1e); raise max_steps, l2 or tolerance",
            measured["steps"],
            measured["gradient"],
        )


def hash_part(part: Part, folder: Path, bits: int, seed: int) -> Counts:
    """Write the features of each document with words, and a key that only equal texts share."""
    counts = Counts()
    schema = pa.schema([pa.field("key", pa.binary(_KEY_BYTES)), pa.field("buckets", pa.large_list(pa.uint32()))])
    with pa.ipc.new_file(str(folder / f"{part.name}.arrow"), schema) as writer:
        for batch in read_batches(part.file, ["text"]):
            texts = folded(batch.column("text").to_pylist())
            features = find_features(texts, bits)
            keys = [xxhash.xxh3_128_digest(texts.encoded(number), seed) for number in range(len(texts))]
            lists = pa.LargeListArray.from_arrays(pa.array(features.first), pa.array(features.buckets))
            rows = pa.record_batch([pa.array(keys, pa.binary(_KEY_BYTES)), lists], schema=schema)
            has_words = np.diff(features.first) > 0
            writer.write_batch(rows.filter(pa.array(has_words)))
            counts.rows_in += len(texts)
            counts.rows_out += int(has_words.sum())
    return counts


@dataclass(frozen=True, slots=True)
class Examples:
    """Documents in the order of their keys, which is nobody's choice: hashes with a seed."""

    features: Features
    good: Array

    def take(self, chosen: Array) -> "Examples":
        """Return those of these numbers."""
        sizes = np.diff(self.features.first)[chosen]
        first = np.cumsum(np.append(0, sizes))
        at = np.repeat(self.features.first[chosen] - first[:-1], sizes) + np.arange(first[-1])
        return Examples(Features(self.features.buckets[at], first), self.good[chosen])


def train(part: Part, folder: Path, good_files: int, config: TrainQualityConfig) -> Counts:
    """Write the model and its measures; the first `good_files` of the files are of good documents."""
    counts = Counts()
    examples = read_examples(part.files, good_files, counts)
    aside = set_aside(examples.good, config.held_out)
    trained = examples.take(np.flatnonzero(~aside))
    fitted = fit(
        trained.features,
        trained.good,
        config.bits,
        l2=config.l2,
        tolerance=config.tolerance,
        steps=config.max_steps,
    )
    about = {f"trained_{name}": number for name, number in zip(CLASSES, _sizes(trained.good), strict=True)}
    settings = {"l2": config.l2, "seed": config.seed, "steps": fitted.steps, "gradient": fitted.gradient}
    model = QualityModel.quantised(fitted, config.bits, about | settings)
    measured = measure(model, examples.take(np.flatnonzero(aside)))
    named = {key: measured[key] for key in ("good", "bad", "accuracy", "auc")}
    QualityModel.quantised(fitted, config.bits, about | settings | {"held_out": named}).save(folder / MODEL_FILE)
    store.write_json(folder / HELD_OUT_FILE, {**about, "steps": fitted.steps, "gradient": fitted.gradient, **measured})
    counts.rows_out = len(trained.good)
    return counts


def read_examples(files: Sequence[Path], good_files: int, counts: Counts) -> Examples:
    """Return the distinct documents that are not of both classes; raises UserError if a class has too few."""
    keys: list[Array] = []
    sizes: list[Array] = []
    buckets: list[Array] = []
    of_good: list[Array] = []
    for number, file in enumerate(files):
        with pa.memory_map(str(file)) as opened, pa.ipc.open_file(opened) as reader:
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in batches:
            key = b"".join(batch.column("key").to_pylist())
            keys.append(np.frombuffer(key, ">u8").reshape(-1, 2).astype(np.uint64))
            lists: Any = batch.column("buckets")
            sizes.append(np.diff(lists.offsets.to_numpy()))
            buckets.append(lists.flatten().to_numpy())
            of_good.append(np.full(batch.num_rows, number < good_files))
    key, good = np.concatenate(keys), np.concatenate(of_good)
    counts.rows_in = len(good)
    features = Features(np.concatenate(buckets), np.cumsum(np.append(0, np.concatenate(sizes))))
    order = np.lexsort((good, key[:, 1], key[:, 0]))
    key, ordered = key[order], good[order]
    begins = np.append(True, (key[1:] != key[:-1]).any(axis=1))[: len(order)]
    ends = np.append(begins[1:], True)[: len(order)]
    starts, lasts = np.flatnonzero(begins), np.flatnonzero(ends)
    both = ordered[starts] != ordered[lasts]  # bad ones come first
    counts.total(_BOTH, int(both.sum()))
    counts.total(_REPEATED, len(order) - len(starts))
    examples = Examples(features, good).take(order[starts[~both]])
    for name, number in zip(CLASSES, _sizes(examples.good), strict=True):
        if number < FEWEST:
            only = " that are not also of the other class" if both.any() else ""
            raise UserError(
                f"train_quality: {number} different {name} documents with words{only}; it takes at least {FEWEST}, and "
                "some thousands to be of use"
            )
    return examples


def _sizes(good: Array) -> tuple[int, int]:
    number = int(good.sum())
    return number, len(good) - number


def set_aside(good: Array, share: float) -> Array:
    """Return which examples are held out: the first of each class, at least one and not all."""
    aside = np.zeros(len(good), bool)
    for of_class in (good, ~good):
        numbers = np.flatnonzero(of_class)
        aside[numbers[: min(len(numbers) - 1, max(1, round(share * len(numbers))))]] = True
    return aside


def measure(model: QualityModel, examples: Examples) -> dict[str, Any]:
    """Return how well the model tells these examples, and what each threshold would keep."""
    features, good = examples.features, examples.good
    sums = np.cumsum(np.append(0, model.weights[features.buckets].astype(np.int64)))[features.first]
    quality = model.of_sums(np.diff(sums), np.diff(features.first))
    of_good, of_bad = quality[good], quality[~good]
    kept = {
        threshold: (int((of_good >= threshold).sum()), int((of_bad >= threshold).sum())) for threshold in _THRESHOLDS
    }
    return {
        "good": len(of_good),
        "bad": len(of_bad),
        "accuracy": round((kept[0.5][0] + len(of_bad) - kept[0.5][1]) / len(good), 6),
        "auc": round(area_under_curve(of_good, of_bad), 6),
        "thresholds": [
            {"min_quality": threshold, "good_kept": good_kept, "bad_kept": bad_kept}
            for threshold, (good_kept, bad_kept) in kept.items()
        ],
    }


STAGE = StageSpec.of(
    train_quality, VERSION, SHAPED_BY, limit=Limit("documents of each class"), preload=("pyarrow.parquet",)
)

if __name__ == "__main__":
    stage_main("dataprep.train_quality")
