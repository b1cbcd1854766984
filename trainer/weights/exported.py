"""Hugging Face folders of a GPT-2, read without torch: the model's sizes, and the location of each weight.

This refuses an unsuitable folder before any training process starts. `huggingface.py` reads the weights themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines import store
from pipelines.errors import UserError

WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
"""For a model in several files: the file of each weight."""
SIZES = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")


@dataclass(frozen=True, slots=True)
class Stored:
    """The location of a weight, and its shape there."""

    file: Path
    key: str
    shape: tuple[int, ...]


def read_sizes(folder: Path) -> dict[str, int]:
    """Return SIZES of the model in `config.json`. Raises UserError if the trainer cannot compute that model."""
    config = store.read_json(folder / "config.json")
    if missing := [name for name in SIZES if not isinstance(config.get(name), int)]:
        raise UserError(f"{folder / 'config.json'}: lacks {', '.join(missing)}; not a GPT-2 of transformers")
    fixed = {
        "model_type": ("gpt2",),
        "activation_function": ("gelu_new", "gelu_pytorch_tanh"),
        "n_inner": (None, 4 * config["n_embd"]),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    }
    for name, allowed in fixed.items():
        if config.get(name, allowed[0]) not in allowed:
            raise UserError(f"{folder / 'config.json'}: {name} is {config[name]}, this GPT-2 has {allowed[0]}")
    return {name: config[name] for name in SIZES}


def find_weights(folder: Path) -> dict[str, Stored]:
    """Return all tensors of a folder under transformers' names. Raises UserError if a file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    weights: dict[str, Stored] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, "numpy") as file:
                weights |= {key: Stored(path, key, tuple(file.get_slice(key).get_shape())) for key in file.keys()}  # noqa: SIM118 (no dict)
        except FileNotFoundError:
            raise UserError(f"{folder}: has no {path.name}; save the model with safe_serialization=True") from None
        except (SafetensorError, OSError) as error:
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


def check_weights(folder: Path) -> None:
    """Raise UserError, naming the first weight that is missing or not of the shape that config.json implies."""
    shapes = {whole_name(key): stored.shape for key, stored in find_weights(folder).items()}
    for name, shape in _shapes(read_sizes(folder)).items():
        if name not in shapes:
            raise UserError(f"{folder}: has no weight {name}, which its config.json promises; get the model again")
        if shapes[name] != shape:
            raise UserError(
                f"{folder}: {name} is {shapes[name]}, by its config.json it has to be {shape}; get the model again"
            )


def _shapes(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of transformers' weights of a GPT-2 of these sizes; its matrices are (in, out)."""
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
    return {
        "transformer.wte.weight": (sizes["vocab_size"], width),
        "transformer.wpe.weight": (sizes["n_positions"], width),
        **{
            f"transformer.h.{layer}.{name}": shape for layer in range(sizes["n_layer"]) for name, shape in block.items()
        },
        **{f"transformer.ln_f.{kind}": shape for kind, shape in norm.items()},
    }
