"""Weights from and to transformers' GPT-2, and the Hugging Face folders that hold them.

transformers keeps matrices as (in, out) where ours are (out, in), and query, key and value side by side in
`c_attn`; its head is the embedding, like ours. Both ways only move numbers: a round trip is equal to the bit. The
folders are written and read without importing transformers, from safetensors only (never a pickle).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from pipelines import store
from pipelines.errors import UserError
from pipelines.tokens import TokenMeta
from trainer import shards
from trainer.exported import SIZES, WEIGHTS, Stored, find_weights, read_sizes, whole_name
from trainer.model import TIED, Architecture, canonical

TOKENIZER = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
TOKENIZER_CONFIG = "tokenizer_config.json"
TOKENIZER_SHA256 = "tokenizer_sha256"
"""In the config.json of a fine-tuned model: of its tokenizer without the padding token."""
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


def from_huggingface(tensors: Mapping[str, Tensor], n_head: int) -> Mapping[str, Tensor]:
    """Weights of transformers, with or without its `transformer.` prefix, under our names and in our shapes.

    Each is converted when it is asked for, and not kept.
    """
    names = {key: name for key in tensors if (name := whole_name(key)) is not None}
    return _Converted(tensors, {name.replace(".c_attn.", ".qkv."): key for key, name in names.items()}, n_head)


class _Converted(Mapping[str, Tensor]):
    """`keys`: our name -> theirs."""

    def __init__(self, tensors: Mapping[str, Tensor], keys: Mapping[str, str], n_head: int) -> None:
        self._tensors, self._keys, self._n_head = tensors, keys, n_head

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._tensors[self._keys[name]]
        if ".attn.qkv." in name:
            turned = tensor.transpose(0, -1)
            return turned.unflatten(0, (3, self._n_head, -1)).transpose(0, 1).flatten(0, 2).contiguous()
        return _turned(tensor) if name.endswith(_MATRICES) else tensor.contiguous()

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


def _turned(tensor: Tensor) -> Tensor:
    """A matrix (in, out) as (out, in) or back; a bias as it is."""
    return tensor.transpose(0, -1).contiguous()


def read_architecture(folder: Path) -> Architecture:
    """The model that `config.json` describes; UserError when it is none that we can compute."""
    return Architecture(**read_sizes(folder))


def read_weights(folder: Path) -> Mapping[str, Tensor]:
    """The weights in a folder under our names, in fp32; UserError when they are missing or damaged.

    Each is read when it is asked for, and not kept: who asks for those of one pipeline stage reads no others.
    """
    return from_huggingface(_Files(find_weights(folder)), read_architecture(folder).n_head)


class _Files(Mapping[str, Tensor]):
    def __init__(self, places: Mapping[str, Stored]) -> None:
        self._places = places

    def __getitem__(self, key: str) -> Tensor:
        place = self._places[key]
        try:
            # Opened each time: what an open file has read counts as memory of this process.
            with safe_open(place.file, "pt") as file:
                return file.get_tensor(place.key).float()
        except (SafetensorError, OSError) as error:
            raise UserError(f"{place.file}: not readable ({error}); get or export the model again") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


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
        del weight  # before the next one is read


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
        **{name: getattr(shape, name) for name in SIZES},
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
    token = store.read_json(named).get("eos_token") if named.exists() else None
    end_of_text = token["content"] if isinstance(token, dict) else token or END_OF_TEXT
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
    """Raise UserError unless the tokenizer in `folder` is the one that made `other`, which `meta` names.

    A model that was fine-tuned here has a padding token in tokenizer.json; its config.json knows the one without.
    """
    config = folder / "config.json"
    if config.exists() and store.read_json(config).get(TOKENIZER_SHA256) == meta.tokenizer_sha256:
        return
    path = folder / TOKENIZER
    if not path.exists():
        raise UserError(
            f"{folder}: has no {TOKENIZER}; name a folder with the one that made {other} (of other files, as GPT-2's, "
            f"dataprep.tokenizer --kind files --files {folder} makes one, whatever its documents)"
        )
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
