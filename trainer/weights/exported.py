"""Hugging Face folders of a GPT-2, read without torch: the model's sizes, and the location of each weight.

This refuses an unsuitable folder before any training process starts. `huggingface.py` reads the weights themselves.
"""

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipelines import store
from pipelines.errors import UserError

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
"""For a model in several files: the file of each weight."""
SIZES = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
NUMBERS = ("F32", "BF16", "F16", "F64")
"""Types of weights that are read, in fp32."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The location of a weight, and its shape there."""

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: str


def read_config(folder: Path) -> dict[str, Any]:
    """Return what is in `config.json`. Raises UserError unless it is there and has keys and values."""
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder}: holds no model ({CONFIG} is missing); name a folder that export wrote")
    return read_object(folder / CONFIG)


def read_object(path: Path) -> dict[str, Any]:
    """Return a JSON file's keys and values. Raises UserError if it holds anything else."""
    value = store.read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected keys with values, found {reprlib.repr(value)}; get the model again")
    return cast("dict[str, Any]", value)


def check_sizes(sizes: Mapping[str, Any], path: Path) -> dict[str, int]:
    """Return SIZES from `path`, whose values may be anything. Raises UserError unless they make a model.

    How large they may be follows from the weights: see `check_weights`.
    """
    if missing := [name for name in SIZES if sizes.get(name) is None]:
        raise UserError(f"{path}: lacks {', '.join(missing)}; not a GPT-2 of transformers")
    for name in SIZES:
        if type(sizes[name]) is not int or sizes[name] < 1:
            raise UserError(f"{path}: {name} is {reprlib.repr(sizes[name])}, expected a whole number of at least 1")
    if sizes["n_embd"] % sizes["n_head"]:
        raise UserError(f"{path}: n_head is {sizes['n_head']}, which does not divide n_embd {sizes['n_embd']}")
    return {name: sizes[name] for name in SIZES}


def read_sizes(folder: Path) -> dict[str, int]:
    """Return SIZES of the model in `config.json`. Raises UserError if the trainer cannot compute that model."""
    config, path = read_config(folder), folder / CONFIG
    sizes = check_sizes(config, path)
    fixed = {
        "model_type": ("gpt2",),
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "n_inner": (None, 4 * sizes["n_embd"]),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    }
    for name, allowed in fixed.items():
        if (value := config.get(name, allowed[0])) not in allowed:
            shown = value if isinstance(value, str) and value.isidentifier() else reprlib.repr(value)
            raise UserError(f"{path}: {name} is {shown}, this GPT-2 has {allowed[0]}")
    return sizes


def find_weights(folder: Path) -> dict[str, Stored]:
    """Return all tensors of a folder under transformers' names. Raises UserError if a file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    weights: dict[str, Stored] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, "numpy") as file:
                for key in file.keys():  # noqa: SIM118 (no dict)
                    header = file.get_slice(key)
                    weights[key] = Stored(path, key, tuple(header.get_shape()), header.get_dtype())
        except FileNotFoundError:
            raise UserError(f"{folder}: has no {path.name}; save the model with safe_serialization=True") from None
        except (SafetensorError, OSError, ValueError) as error:
            raise UserError(f"{path}: not readable ({error}); get or export the model again") from None
    return weights


def _weight_files(folder: Path) -> list[Path]:
    """Return the file of weights, or all files of a model that is split."""
    index = folder / SHARDS
    if (folder / WEIGHTS).exists() or not index.exists():
        return [folder / WEIGHTS]
    content = store.read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    names = sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) and weight_map else []
    if not names or any(Path(name).name != name for name in names):
        raise UserError(f"{index}: does not say which weight is in which file beside it; get the model again")
    return [folder / name for name in names]


def whole_name(key: str) -> str | None:
    """Return a weight's name with the `transformer.` that some folders omit; None if the model has no such weight."""
    name = key if key.startswith(("transformer.", "score.", "lm_head.")) else f"transformer.{key}"
    # Skip causal masks of old versions, and the tied head.
    return None if name.endswith((".attn.bias", ".attn.masked_bias", "lm_head.weight")) else name


def check_weights(folder: Path) -> dict[str, int]:
    """Return the model's sizes; raise UserError, naming the first weight that is not as they imply.

    Only headers are read. The weights in the files bound the sizes in config.json: of a model of 10^9 layers the first
    missing one ends the search, before anything is built.
    """
    sizes, weights = read_sizes(folder), find_weights(folder)
    stored = {whole_name(key): weight for key, weight in weights.items()}
    expected: set[str] = set()
    for name, shape in _shapes(sizes):
        if name not in stored:
            raise UserError(f"{folder}: has no weight {name}, which its config.json promises; get the model again")
        if stored[name].shape != shape:
            raise UserError(
                f"{folder}: {name} is {stored[name].shape}, by its config.json it has to be {shape}; get the "
                "model again"
            )
        if stored[name].dtype not in NUMBERS:
            raise UserError(
                f"{stored[name].file}: {name} is of type {stored[name].dtype}, expected {', '.join(NUMBERS)}; convert "
                "it"
            )
        expected.add(name)
    tied, words = weights.get("lm_head.weight"), stored["transformer.wte.weight"].shape
    if tied and tied.shape != words:
        raise UserError(
            f"{folder}: lm_head.weight is {tied.shape}, but tied to transformer.wte.weight, which is {words}; get the "
            "model again"
        )
    for name in stored:
        if name and name.startswith("transformer.h.") and name not in expected:
            raise UserError(
                f"{folder}: has a weight {name}, of which its config.json says nothing; get the model again"
            )
    return sizes


def _shapes(sizes: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of transformers' weights of a GPT-2 of these sizes; its matrices are (in, out)."""
    width = sizes["n_embd"]
    norm = {"weight": (width,), "bias": (width,)}
    block = {f"{name}.{kind}": shape for name in ("ln_1", "ln_2") for kind, shape in norm.items()}
    for name, before, after in (
        ("attn.c_attn", width, 3 * width),
        ("attn.c_proj", width, width),
        ("mlp.c_fc", width, 4 * width),
        ("mlp.c_proj", 4 * width, width),
    ):
        block |= {f"{name}.weight": (before, after), f"{name}.bias": (after,)}
    yield "transformer.wte.weight", (sizes["vocab_size"], width)
    yield "transformer.wpe.weight", (sizes["n_positions"], width)
    for layer in range(sizes["n_layer"]):
        yield from ((f"transformer.h.{layer}.{name}", shape) for name, shape in block.items())
    yield from ((f"transformer.ln_f.{kind}", shape) for kind, shape in norm.items())
