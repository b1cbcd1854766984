"""Weights from and to transformers' GPT-2, and the Hugging Face folders that hold them.

transformers keeps matrices as (in, out) where ours are (out, in), and query, key and value side by side in
`c_attn`; its head is the embedding, like ours. Both ways only move numbers: a round trip is equal to the bit. The
folders are written and read without importing transformers, from safetensors only (never a pickle).
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipelines import store
from pipelines.errors import UserError
from pipelines.tokens import TokenMeta
from trainer import shards
from trainer.model import TIED, Architecture, canonical

WEIGHTS = "model.safetensors"
SHARDS = "model.safetensors.index.json"
"""Of a model in several files: which weight is in which."""
TOKENIZER = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
TOKENIZER_CONFIG = "tokenizer_config.json"
PAD = "<|pad|>"

_MATRICES = ("attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")


def to_huggingface(weights: Mapping[str, Tensor], n_head: int) -> dict[str, Tensor]:
    """Our weights under transformers' names and in its shapes."""
    converted: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if ".attn.qkv." in name:
            # Rows by head, and in a head by part -> by part, and in a part by head.
            by_part = weight.unflatten(0, (n_head, 3, -1)).transpose(0, 1).flatten(0, 2)
            converted[name.replace(".qkv.", ".c_attn.")] = _turned(by_part)
        else:
            converted[name] = _turned(weight) if name.endswith(_MATRICES) else weight.contiguous()
    return converted


def from_huggingface(tensors: Mapping[str, Tensor], n_head: int) -> dict[str, Tensor]:
    """Weights of transformers, with or without its `transformer.` prefix, under our names and in our shapes."""
    converted: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name = key if key.startswith(("transformer.", "score.", "lm_head.")) else f"transformer.{key}"
        if name.endswith((".attn.bias", ".attn.masked_bias", "lm_head.weight")):
            continue  # causal masks of old versions, and the tied head
        if ".attn.c_attn." in name:
            by_head = _turned(tensor).unflatten(0, (3, n_head, -1)).transpose(0, 1).flatten(0, 2)
            converted[name.replace(".c_attn.", ".qkv.")] = by_head.contiguous()
        else:
            converted[name] = _turned(tensor) if name.endswith(_MATRICES) else tensor.contiguous()
    return converted


def _turned(tensor: Tensor) -> Tensor:
    """A matrix (in, out) as (out, in) or back; a bias as it is."""
    return tensor.transpose(0, -1).contiguous()


def read_architecture(folder: Path) -> Architecture:
    """The model that `config.json` describes; UserError when it is none that we can compute."""
    config = store.read_json(folder / "config.json")
    sizes = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
    if missing := [name for name in sizes if not isinstance(config.get(name), int)]:
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
    return Architecture(**{name: config[name] for name in sizes})


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The weights in a folder under our names, in fp32; UserError when they are missing or damaged."""
    tensors: dict[str, Tensor] = {}
    for path in _weight_files(folder):
        try:
            tensors |= load_file(path)
        except FileNotFoundError:
            raise UserError(f"{folder}: has no {path.name}; save the model with safe_serialization=True") from None
        except SafetensorError as error:
            raise UserError(f"{path}: not readable ({error}); get or export the model again") from None
    n_head = read_architecture(folder).n_head
    return {name: weight.float() for name, weight in from_huggingface(tensors, n_head).items()}


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


def fill(targets: Mapping[str, Tensor], weights: Mapping[str, Tensor], source: Path) -> None:
    """Copy `weights` into a model's parameters or this process's parts of them; the embedding may have more rows.

    Raises UserError, naming the first weight that is missing or has another shape.
    """
    for name, target in targets.items():
        weight = weights.get(canonical(name))
        if weight is None:
            raise UserError(f"{source}: has no weight {name}; it is another model")
        more_rows = canonical(name) == TIED and len(target) > len(weight)
        expected = (len(weight), *target.shape[1:]) if more_rows else tuple(target.shape)
        if tuple(weight.shape) != expected:
            raise UserError(f"{source}: {name} is {tuple(weight.shape)}, expected {expected}; another model")
        shards.fill(target.detach(), weight)


def save_folder(folder: Path, shape: Architecture, weights: dict[str, Tensor], settings: dict[str, Any]) -> None:
    """Write config.json and model.safetensors; `settings` are added to the config."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2ForSequenceClassification" if shape.num_labels else "GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "resid_pdrop": shape.dropout,
        "embd_pdrop": shape.dropout,
        "attn_pdrop": shape.attention_dropout,
        **{name: getattr(shape, name) for name in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")},
        **settings,
    }
    store.write_json(folder / "config.json", config)
    save_file(to_huggingface(weights, shape.n_head), folder / WEIGHTS, metadata={"format": "pt"})
    # safetensors makes files that only their owner can read.
    (folder / WEIGHTS).chmod(0o644)
    store.sync_file(folder / WEIGHTS)


def save_tokenizer(
    source: Path, folder: Path, n_positions: int, *, padding: Literal["none", "added", "end_of_text"] = "none"
) -> None:
    """Copy the tokenizer beside a model so that AutoTokenizer opens it, with a padding token if asked."""
    from tokenizers import AddedToken, Tokenizer

    if padding == "added":
        tokenizer = Tokenizer.from_file(str(source / TOKENIZER))
        tokenizer.add_special_tokens([AddedToken(PAD, special=True, normalized=False)])
        text = tokenizer.to_str()
    else:
        text = (source / TOKENIZER).read_text()
    with store.create(folder / TOKENIZER) as file:
        file.write(text.encode())
    named = source / TOKENIZER_CONFIG
    end_of_text = store.read_json(named)["eos_token"] if named.exists() else END_OF_TEXT
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": end_of_text,
        "eos_token": end_of_text,
        "unk_token": end_of_text,
        "model_max_length": n_positions,
        "clean_up_tokenization_spaces": False,
    }
    pad = {"none": {}, "added": {"pad_token": PAD}, "end_of_text": {"pad_token": end_of_text}}[padding]
    store.write_json(folder / TOKENIZER_CONFIG, config | pad)


def require_same_tokenizer(folder: Path, meta: TokenMeta, other: Path) -> None:
    """Raise UserError unless the tokenizer in `folder` is the one that made `other`, which `meta` names."""
    path = folder / TOKENIZER
    if not path.exists():
        raise UserError(f"{folder}: has no {TOKENIZER}; add the one that made {other}, or name its folder")
    if meta.tokenizer_sha256 not in (store.sha256(path), _rewritten_sha256(path, meta.end_of_text)):
        raise UserError(
            f"{path}: not the tokenizer that made {other}; use one tokenizer for both, and tokenize or export again"
        )


def _rewritten_sha256(path: Path, end_of_text: int) -> str | None:
    """Of the same tokenizer as the stage `tokenizer` writes it: the files of the Hub have another layout."""
    from tokenizers import AddedToken, Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 (tokenizers raises nothing narrower)
        raise UserError(f"{path}: not a readable tokenizer ({error}); get or export it again") from None
    token = tokenizer.id_to_token(end_of_text)
    if token is None:
        return None
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return hashlib.sha256(tokenizer.to_str(pretty=True).encode()).hexdigest()


def end_of_text_id(folder: Path) -> int:
    """The end-of-text token's id, from the exported config."""
    return int(json.loads((folder / "config.json").read_text())["eos_token_id"])
