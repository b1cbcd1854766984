"""GPT-2 on one device: learned positions, norms before each layer, tanh GELU, biases, a tied head.

Query, key and value are separate matrices, so that tensor parallelism can split each by heads. Blocks stand in a
dictionary under their global number, so a weight has the same name in every layout: the canonical name of
checkpoints. Weights are fp32; matrices are multiplied in `Transformer.compute_dtype`.

Shapes: B samples, T positions, D width, H heads, K width of a head, V vocabulary, C classes.
"""

import hashlib
import math
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config import ModelConfig
from trainer.dropout import at_heads, at_site, keyed_dropout, vector_keys
from trainer.loss import linear_cross_entropy

TIED = "transformer.wte.weight"
"""The token embedding, which is also the language-model head."""
INITIAL_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """All that decides what the model computes, and the names and sizes of its weights."""

    n_layer: int
    n_head: int
    n_embd: int
    n_positions: int
    vocab_size: int
    num_labels: int = 0
    """Outputs of the classification head; 0: a language model."""
    dropout: float = 0.0
    attention_dropout: float = 0.0
    pad_vocab_to: int = 1

    @classmethod
    def of(cls, config: ModelConfig, vocab_size: int) -> "Architecture":
        """The language model of section `model` over so many tokens."""
        values = {name.name: getattr(config, name.name) for name in fields(config)}
        return cls(vocab_size=vocab_size, **values)

    @property
    def padded_vocab(self) -> int:
        """Rows of the embedding in memory."""
        return -(-self.vocab_size // self.pad_vocab_to) * self.pad_vocab_to

    def record(self) -> dict[str, Any]:
        """What a checkpoint says of its model: whatever has to be equal to load it."""
        names = ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size", "num_labels")
        return {name: getattr(self, name) for name in names}


ATTENTION_SITE, AFTER_ATTENTION_SITE, AFTER_MLP_SITE = 1, 2, 3
"""Where dropout acts in a block."""


class Linear(nn.Linear):
    """nn.Linear that computes in its input's dtype; the weight itself stays fp32."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """(..., in) -> (..., out)."""
        bias = self.bias.to(input.dtype) if isinstance(self.bias, Tensor) else None  # pyright: ignore
        return F.linear(input, self.weight.to(input.dtype), bias)


class LayerNorm(nn.LayerNorm):
    """nn.LayerNorm that takes and gives its input's dtype; the weight itself stays fp32."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.LayerNorm's name)
        """(..., D) -> (..., D)."""
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.head_width = shape.n_embd // shape.n_head
        self.dropout = shape.attention_dropout
        self.q = Linear(shape.n_embd, shape.n_embd)
        self.k = Linear(shape.n_embd, shape.n_embd)
        self.v = Linear(shape.n_embd, shape.n_embd)
        self.c_proj = Linear(shape.n_embd, shape.n_embd)

    def forward(self, x_BTD: Tensor, keys_BT: Tensor | None) -> Tensor:
        """`keys_BT`: dropout keys, None outside training."""
        q_BHTK, k_BHTK, v_BHTK = (
            project(x_BTD).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        if keys_BT is None or self.dropout == 0:
            y_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
        else:
            y_BHTK = self._with_dropout(q_BHTK, k_BHTK, keys_BT) @ v_BHTK
        return self.c_proj(y_BHTK.transpose(1, 2).flatten(2))

    def _with_dropout(self, q_BHTK: Tensor, k_BHTK: Tensor, keys_BT: Tensor) -> Tensor:
        """Attention probabilities with some dropped: the fused kernels have no place for a keyed mask."""
        heads, length = q_BHTK.shape[1:3]
        future = torch.ones(length, length, dtype=torch.bool, device=q_BHTK.device).triu(1)
        scores_BHTT = (q_BHTK @ k_BHTK.transpose(2, 3)).float() / math.sqrt(self.head_width)
        probabilities_BHTT = scores_BHTT.masked_fill(future, -torch.inf).softmax(-1).to(q_BHTK.dtype)
        return keyed_dropout(probabilities_BHTT, self.dropout, at_heads(keys_BT, ATTENTION_SITE, heads))


class MLP(nn.Module):
    """Two matrices around a tanh GELU, four times as wide inside."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.c_fc = Linear(shape.n_embd, 4 * shape.n_embd)
        self.c_proj = Linear(4 * shape.n_embd, shape.n_embd)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.c_proj(F.gelu(self.c_fc(x_BTD), approximate="tanh"))


class Block(nn.Module):
    """Attention and MLP, each on the normed residual stream and added to it."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.dropout = shape.dropout
        self.ln_1 = LayerNorm(shape.n_embd)
        self.attn = Attention(shape)
        self.ln_2 = LayerNorm(shape.n_embd)
        self.mlp = MLP(shape)

    def forward(self, x_BTD: Tensor, keys_BT: Tensor | None) -> Tensor:
        """(B, T, D) -> (B, T, D). `keys_BT`: this layer's dropout keys, None outside training.

        Nothing in a block knows its layer, so that one compiled graph serves all of them.
        """
        x_BTD = x_BTD + self._drop(self.attn(self.ln_1(x_BTD), keys_BT), keys_BT, AFTER_ATTENTION_SITE)
        return x_BTD + self._drop(self.mlp(self.ln_2(x_BTD)), keys_BT, AFTER_MLP_SITE)

    def _drop(self, x_BTD: Tensor, keys_BT: Tensor | None, site: int) -> Tensor:
        if keys_BT is None or self.dropout == 0:
            return x_BTD
        return keyed_dropout(x_BTD, self.dropout, at_site(keys_BT, site))


class Transformer(nn.Module):
    """Embeddings, blocks and the last norm."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.shape = shape
        self.compute_dtype = torch.float32
        self.dropout_seed = 0
        self.wte = nn.Embedding(shape.padded_vocab, shape.n_embd)
        self.wpe = nn.Embedding(shape.n_positions, shape.n_embd)
        self.h = nn.ModuleDict({str(layer): Block(shape) for layer in range(shape.n_layer)})
        self.ln_f = LayerNorm(shape.n_embd)

    def forward(self, ids_BT: Tensor, rows_B: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D). `rows_B`: number of each sample in the run; training with dropout needs it."""
        length = ids_BT.shape[1]
        x_BTD = self.wte(ids_BT) + self.wpe(torch.arange(length, device=ids_BT.device))
        keys_BT = None
        if self.training and (self.shape.dropout or self.shape.attention_dropout):
            assert rows_B is not None, "dropout is keyed by the number of the sample"
            keys_BT = vector_keys(self.dropout_seed, rows_B, length)
            x_BTD = keyed_dropout(x_BTD, self.shape.dropout, at_site(keys_BT, 0))
        x_BTD = x_BTD.to(self.compute_dtype)
        for layer, block in self.h.items():
            x_BTD = block(x_BTD, None if keys_BT is None else at_site(keys_BT, int(layer) + 1))
        return self.ln_f(x_BTD)


class LanguageModel(nn.Module):
    """GPT-2 with its head, the token embedding once more."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.shape = shape
        self.transformer = Transformer(shape)
        self.lm_head = Linear(shape.n_embd, shape.padded_vocab, bias=False)
        self.tie()

    def tie(self) -> None:
        """Make head and embedding one parameter again, after something replaced either."""
        self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids_BT: Tensor, targets_BT: Tensor | None = None, rows_B: Tensor | None = None) -> Tensor:
        """Logits (B, T, V) in fp32; with targets, the loss summed over all tokens."""
        hidden_BTD = self.transformer(ids_BT, rows_B)
        if targets_BT is None:
            return self.lm_head(hidden_BTD)[..., : self.shape.vocab_size].float()
        return linear_cross_entropy(
            hidden_BTD.flatten(0, 1), self.lm_head.weight, targets_BT.flatten(), self.shape.vocab_size
        )


class Classifier(nn.Module):
    """GPT-2 with a classification head on the last real token of each row."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.shape = shape
        self.transformer = Transformer(shape)
        self.score = Linear(shape.n_embd, shape.num_labels, bias=False)

    def tie(self) -> None:
        """Nothing is tied here."""

    def forward(self, ids_BT: Tensor, last_B: Tensor, rows_B: Tensor | None = None) -> Tensor:
        """Logits (B, C) in fp32. `last_B`: place of each row's last real token.

        What stands right of it is padding, which causal attention never sees, so no mask is needed.
        """
        hidden_BTD = self.transformer(ids_BT, rows_B)
        rows = torch.arange(len(last_B), device=last_B.device)
        return self.score(hidden_BTD[rows, last_B]).float()


GPT2 = LanguageModel | Classifier


@torch.no_grad()
def initialise(model: GPT2, seed: int) -> None:
    """GPT-2's initial weights: normal, 0.02; residual projections 0.02 / sqrt(2 layers); biases 0, norms 1.

    Each weight has a generator of its own, seeded by its name, so that the values do not depend on the order of
    building or on the layout.
    """
    for name, weight in model.named_parameters():
        weight.copy_(initial_weight(name, model.shape, weight.shape, seed))


def initial_weight(name: str, shape: Architecture, size: torch.Size, seed: int) -> Tensor:
    """The whole initial weight called `name`; the embedding's padding rows are 0, and stay so."""
    if name.endswith(".bias"):
        return torch.zeros(size)
    if len(size) == 1:
        return torch.ones(size)
    std = INITIAL_STD / math.sqrt(2 * shape.n_layer) if name.endswith("c_proj.weight") else INITIAL_STD
    number = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little", signed=True)
    weight = torch.zeros(size)
    rows = shape.vocab_size if name == TIED else size[0]
    weight[:rows].normal_(0.0, std, generator=torch.Generator().manual_seed(number))
    return weight
