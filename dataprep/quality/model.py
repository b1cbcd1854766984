"""The quality classifier: a file of weights, and what it says of a text.

The file is Arrow IPC with one column `weight` (int16), a row for each bucket of hashes, and the JSON below the key
`millrace_quality` of its schema's metadata: what the weights mean, what they were trained on, and a digest of them.
With S the sum of the weights of a text's n of `dataprep.quality.features`:

    quality = 1 / (1 + exp(-scale * (S / sqrt(n) + bias)))

S is a sum of integers, so it does not depend on an order. A text without words has no n-grams; its quality is 0.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from dataprep.quality.features import find_features, folded, named_features
from dataprep.quality.logistic import Fit, sigmoid
from pipelines.errors import UserError
from pipelines.tokens import ARROW_ERRORS

Array = np.ndarray[Any, Any]

FORMAT = 1
"""Raised when features or arithmetic change: weights are worth nothing with other ones."""
MODEL_FILE = "model.arrow"
DIGITS = 4
"""Decimals of a quality, also where it is compared with a threshold."""
_METADATA = b"millrace_quality"
_LARGEST = 32_767
_ADVICE = "train it again: millrace train-quality GOOD BAD FOLDER"
_LONGEST = 40


@dataclass(frozen=True, slots=True)
class Word:
    """A word or pair of words of a text, and what it adds to the logit of its quality."""

    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a text has its quality."""

    speaking_for: list[Word]
    against: list[Word]
    number: int
    """Distinct words and pairs of words of the text."""
    total: float
    """What all of them add to the logit."""


@dataclass(frozen=True, slots=True)
class QualityModel:
    """A trained classifier."""

    weights: Array
    bias: int
    scale: float
    bits: int
    trained: Mapping[str, Any]
    """What it was trained on and how well it does: for people."""

    @classmethod
    def quantised(cls, fitted: Fit, bits: int, trained: Mapping[str, Any]) -> "QualityModel":
        """Round weights to 16 bits: what rounding a text's sum loses is far below a digit of its quality."""
        largest = float(np.abs(fitted.weights).max())
        scale = largest / _LARGEST if largest else 1.0
        weights = np.rint(fitted.weights / scale).astype(np.int16)
        return cls(weights, round(fitted.bias / scale), scale, bits, trained)

    @classmethod
    def load(cls, path: Path) -> "QualityModel":
        """Open a model file. Raises UserError for a damaged one, one of another format, and any other file."""
        try:
            with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
                table = reader.read_all()
                about = json.loads(table.schema.metadata[_METADATA])
                if about["format"] == FORMAT:
                    return cls._checked(table, about)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; check the path") from None
        except (*ARROW_ERRORS, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{path}: not a quality model, or a damaged one ({reason}); {_ADVICE}") from None
        raise UserError(f"{path}: a quality model of format {about['format']}, and {FORMAT} is expected; {_ADVICE}")

    @classmethod
    def _checked(cls, table: pa.Table, about: Mapping[str, Any]) -> "QualityModel":
        weights = table.column("weight").to_numpy().copy()
        if weights.dtype != np.int16 or len(weights) != 1 << about["bits"]:
            raise ValueError(f"{len(weights)} weights of {weights.dtype}")
        if xxhash.xxh3_128_hexdigest(weights.tobytes()) != about["digest"]:
            raise ValueError("the weights are not those that were written")
        bias, scale = about["bias"], about["scale"]
        if not isinstance(bias, int) or not isinstance(scale, float) or not 0 < scale < math.inf:
            raise ValueError(f"bias {bias!r} and scale {scale!r}")
        return cls(weights, bias, scale, about["bits"], about["trained"])

    def save(self, path: Path) -> None:
        """Write the model file."""
        about = {
            "format": FORMAT,
            "bits": self.bits,
            "bias": self.bias,
            "scale": self.scale,
            "digest": xxhash.xxh3_128_hexdigest(self.weights.tobytes()),
            "trained": dict(self.trained),
        }
        metadata = {_METADATA: json.dumps(about, sort_keys=True).encode()}
        schema = pa.schema([pa.field("weight", pa.int16())], metadata=metadata)
        with pa.ipc.new_file(str(path), schema) as writer:
            writer.write_batch(pa.record_batch([pa.array(self.weights)], schema=schema))

    def qualities(self, texts: Sequence[str]) -> list[float]:
        """Return the quality of each text: 0 to 1, with DIGITS decimals."""
        features = find_features(folded(texts), self.bits)
        sums = np.cumsum(np.append(0, self.weights[features.buckets].astype(np.int64)))[features.first]
        return self.of_sums(np.diff(sums), np.diff(features.first)).tolist()

    def of_sums(self, sums: Array, sizes: Array) -> Array:
        """Return the qualities of texts, given the sum of their weights and the number of their features."""
        logits = self.scale * (sums / np.sqrt(np.maximum(sizes, 1)) + self.bias)
        return np.where(sizes > 0, np.round(sigmoid(logits), DIGITS), 0.0)

    def quality(self, text: str) -> float:
        """Return the quality of one text."""
        return self.qualities([text])[0]

    def explain(self, text: str, most: int) -> "Explanation":
        """Return the words and pairs of words that speak most for and against a text, and all of them summed up.

        Those of equal weight come in the order of the text.
        """
        features = named_features(text, self.bits)
        weights = self.weights[features.buckets].astype(np.int64)
        unit = self.scale / math.sqrt(max(1, len(features)))
        speaking_for, against = (
            [
                Word(_short(features.name(number)), int(weights[number]) * unit)
                for number in np.argsort(sign * weights, kind="stable")[:most].tolist()
                if sign * weights[number] < 0
            ]
            for sign in (-1, 1)
        )
        return Explanation(speaking_for, against, len(features), int(weights.sum()) * unit)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
