"""Hugging Face folders of a GPT-2, as far as they can be read without torch: sizes, and which weight is where.

So what does not fit is refused before any training process starts. `huggingface.py` reads the weights themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines import store
from pipelines.errors import UserError

WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
"""Of a model in several files: which weight is in which."""
SIZES = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a weight is, and its shape there."""

    file: Path
    key: str
    shape: tuple[int, ...]


def read_sizes(folder: Path) -> dict[str, int]:
    """SIZES of the model that `config.json` describes; UserError when it is none that we can compute."""
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
    """All tensors in a folder under transformers' names; UserError when a file is missing or damaged."""
    from safetensors import SafetensorError, safe_open

    found: dict[str, Stored] = {}
    for path in _weight_files(folder):
        try:
            with safe_open(path, "numpy") as file:
                found |= {key: Stored(path, key, tuple(file.get_slice(key).get_shape())) for key in file.keys()}  # noqa: SIM118 (no dict)
        except FileNotFoundError:
            raise UserError(f"{folder}: has no {path.name}; save the model with safe_serialization=True") from None
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path}: not readable ({error}); get or export the model again") from None
    return found


def _weight_files(folder: Path) -> list[Path]:
    """The one file of weights, or all of a model that is split."""
    index = folder / SHARDS
    if (folder / WEIGHTS).exists() or not index.exists():
        return [folder / WEIGHTS]
    found = store.read_json(index)
    named = found.get("weight_map") if isinstance(found, dict) else None
    names = sorted(set(map(str, named.values()))) if isinstance(named, dict) and named else []
    if not names or any(Path(name).name != name for name in names):
        raise UserError(f"{index}: does not say which weight is in which file beside it; get the model again")
    return [folder / name for name in names]


def whole_name(key: str) -> str | None:
    """A weight's name with the `transformer.` that some folders leave out; None where it is no weight of ours."""
    name = key if key.startswith(("transformer.", "score.", "lm_head.")) else f"transformer.{key}"
    # Causal masks of old versions, and the tied head.
    return None if name.endswith((".attn.bias", ".attn.masked_bias", "lm_head.weight")) else name


def check_weights(folder: Path) -> None:
    """Raise UserError, naming the first weight that is missing or of another shape than config.json says."""
    found = {whole_name(key): stored.shape for key, stored in find_weights(folder).items()}
    for name, shape in _shapes(read_sizes(folder)).items():
        if name not in found:
            raise UserError(f"{folder}: has no weight {name}, which its config.json promises; get the model again")
        if found[name] != shape:
            raise UserError(
                f"{folder}: {name} is {found[name]}, by its config.json it has to be {shape}; get the model again"
            )


def _shapes(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Transformers' weights of a GPT-2 of these sizes: its matrices are (in, out)."""
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
