"""Second step: split each layer's matrices over the tp processes, in Megatron's manner or as the user says.

The first matrix of a pair is split by columns of the product (heads of the attention, inner width of the MLP), the
second by rows, so a pair needs one exchange before it and one after it (Shoeybi et al., arXiv:1909.08053). With
sequence parallelism each process has some of the positions between the pairs: the exchanges are a gathering and a
scattering of sums, as much traffic as the two sums without it (Korthikanti et al., arXiv:2205.05198). The embedding is
split by tokens, and the loss is taken where the logits are. Where `parallel.placements` says otherwise
(`trainer/placements.py`), each module takes its input from where the one before it left it. Parameters become DTensors,
which checkpoints and ZeRO know how to handle; the arithmetic is on each process's own part. What is replicated and sees
some positions only (with sequence parallelism norms, positions, the biases after a second matrix) has gradients that
are summed over tp once per step.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from trainer.config import ParallelConfig
from trainer.loss import VocabPart, linear_cross_entropy
from trainer.model import GPT2, Classifier, Head, LayerNorm, Linear, SequencePart
from trainer.parallel.exchange import FEATURES, POSITIONS, ROWS, Exchange, Place
from trainer.parallel.mesh import Mesh
from trainer.placements import MATRICES, placement
from trainer.shards import local


class ColumnLinear(Linear):
    """Each process computes some of the outputs, from all inputs."""

    exchange: Exchange
    source: Place
    target: Place

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """(B, T, in) -> (B, T, out), each where it should be."""
        x = self.exchange.spread(input, self.source)
        x = F.linear(x, local(self.weight).to(x.dtype), local(self.bias).to(x.dtype))
        return self.exchange.move(x, FEATURES, self.target)


class RowLinear(Linear):
    """Each process computes a term of the outputs, from some of the inputs; the bias is added to the sum."""

    exchange: Exchange
    source: Place
    target: Place

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """(B, T, in) -> (B, T, out), each where it should be."""
        x = self.exchange.move(input, self.source, FEATURES)
        x = self.exchange.total(F.linear(x, local(self.weight).to(x.dtype)), self.target)
        return x + local(self.bias).to(x.dtype)


class WholeLinear(Linear):
    """Each process has the whole matrix, and applies it to what should stand here."""

    exchange: Exchange
    source: Place
    target: Place

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """(..., in) -> (..., out), each where it should be."""
        x = self.exchange.move(input, self.source, self.target)
        bias = local(self.bias).to(x.dtype) if isinstance(self.bias, Tensor) else None  # pyright: ignore
        return F.linear(x, local(self.weight).to(x.dtype), bias)


class WholeNorm(LayerNorm):
    """A norm of the positions that stand here."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.LayerNorm's name)
        """(B, T or a part of it, D) -> the same."""
        weight, bias = (local(parameter).to(input.dtype) for parameter in (self.weight, self.bias))
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class VocabularyEmbedding(nn.Embedding):
    """Each process has the vectors of some tokens, and gives 0 for the others."""

    exchange: Exchange
    target: Place

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        """(B, T) -> (B, T or a part of it, D)."""
        weight_VD = local(self.weight)
        rows_BT = input - first_row(self.weight, self.exchange.mesh)
        here_BT = (rows_BT >= 0) & (rows_BT < len(weight_VD))
        x_BTD = F.embedding(rows_BT.where(here_BT, 0), weight_VD) * here_BT[..., None]
        return self.exchange.total(x_BTD, self.target)


class HiddenEmbedding(nn.Embedding):
    """Each process has some columns of all vectors, and looks up all rows."""

    exchange: Exchange
    source: Place
    target: Place

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        """(B, T or a part of it) -> (B, the same or a part of it, D)."""
        rows_BT = self.exchange.move(input, self.source, None)
        return self.exchange.move(F.embedding(rows_BT, local(self.weight)), FEATURES, self.target)


class WholeEmbedding(nn.Embedding):
    """Each process has all vectors, and looks up the rows that should stand here."""

    exchange: Exchange
    source: Place
    target: Place

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        """(B, T or a part of it) -> (B, the same or a part of it, D)."""
        return F.embedding(self.exchange.move(input, self.source, self.target), local(self.weight))


class HiddenPositions(HiddenEmbedding):
    """The table of positions."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        """(1 or B, T or a part of it) -> (the same, D)."""
        return super().forward(_within(self, input))


class WholePositions(WholeEmbedding):
    """The table of positions."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        """(1 or B, T or a part of it) -> (the same, D)."""
        return super().forward(_within(self, input))


def _within(table: nn.Embedding, positions: Tensor) -> Tensor:
    # A sample as long as the model has positions is padded beyond them where tp does not divide it.
    return positions.clamp(max=len(table.weight) - 1)


class VocabularyHead(Head):
    """Each process has the logits of some tokens, and the loss is taken without putting them together."""

    exchange: Exchange
    source: Place

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """(B, T or a part of it, D) -> all logits (B, T, V), in fp32."""
        weight_VD = self.weight.full_tensor() if isinstance(self.weight, DTensor) else self.weight
        hidden_BTD = self.exchange.move(input, self.source, None)
        return F.linear(hidden_BTD, weight_VD[: self.vocab_size].to(hidden_BTD.dtype)).float()

    def loss(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """The cross entropy summed over all tokens, the same in each process."""
        mesh = self.exchange.mesh
        part = VocabPart(first_row(self.weight, mesh), mesh.largest_over_tp, mesh.sum_over_tp)
        hidden_ND = self.exchange.spread(hidden_BTD, self.source).flatten(0, 1)
        return linear_cross_entropy(hidden_ND, self.rows(), targets_BT.flatten(), self.vocab_size, part)

    def rows(self) -> Tensor:
        """The vectors of this process's tokens."""
        return local(self.weight)


class HiddenHead(VocabularyHead):
    """Each process has some columns, and gets all columns of some tokens' rows for the loss.

    Less travels than would of the logits, which else are sums: each weight once, whatever the number of tokens.
    """

    def rows(self) -> Tensor:
        """The vectors of this process's tokens: as many in each process, the last ones padding."""
        weight_VD = local(self.weight)
        missing = -len(weight_VD) % self.exchange.mesh.tp
        return self.exchange.move(F.pad(weight_VD, (0, 0, 0, missing)) if missing else weight_VD, FEATURES, ROWS)


class WholeHead(VocabularyHead):
    """Each process has the whole head, and takes the loss of the positions that stand here."""

    def loss(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """The cross entropy summed over all tokens, the same in each process."""
        targets_N = self.exchange.move(targets_BT, None, self.source).flatten()
        hidden_ND, weight_VD = hidden_BTD.flatten(0, 1), local(self.weight)
        loss = linear_cross_entropy(hidden_ND, weight_VD, targets_N, self.vocab_size, compiled=self.compiled)
        return loss if self.source is None else self.exchange.total(loss, None)


def first_row(weight: Tensor, mesh: Mesh) -> int:
    """Number of the first row that this process has: the last process may have fewer than the others."""
    return mesh.tp_rank * -(-len(weight) // mesh.tp)


LINEARS: dict[str, tuple[type[nn.Module], dict[str, Placement]]] = {
    "column": (ColumnLinear, {"weight": Shard(0), "bias": Shard(0)}),
    "row": (RowLinear, {"weight": Shard(1), "bias": Replicate()}),
    "replicate": (WholeLinear, {"weight": Replicate(), "bias": Replicate()}),
}
TABLES: dict[str, tuple[type[nn.Module], type[nn.Module], Placement]] = {
    "vocabulary": (VocabularyEmbedding, VocabularyHead, Shard(0)),
    "hidden": (HiddenEmbedding, HiddenHead, Shard(1)),
    "replicate": (WholeEmbedding, WholeHead, Replicate()),
}
"""Of tokens: the embedding, the head, and the weight that they share."""
POSITION_TABLES: dict[str, tuple[type[nn.Module], Placement]] = {
    "hidden": (HiddenPositions, Shard(1)),
    "replicate": (WholePositions, Replicate()),
}


def split_tensors(model: GPT2, parallel: ParallelConfig, mesh: Mesh) -> None:
    """Split the matrices of `model` (on the meta device) in place: with tp 1, not at all. Tied ones stay tied."""
    if mesh.tp > 1:
        exchange = Exchange(mesh, sequence_parallel=parallel.sequence_parallel)
        for layer, block in model.transformer.h.items():
            names = {matrix: f"transformer.h.{layer}.{matrix}" for matrix in MATRICES}
            _split_block(block, exchange, {each: placement(name, parallel.placements) for each, name in names.items()})
        _split_ends(model, exchange, parallel)
    model.tie()


def _split_block(block: Any, exchange: Exchange, plan: dict[str, str]) -> None:
    mesh, stream = exchange.mesh, exchange.stream
    for norm in (block.ln_1, block.ln_2):
        _become(norm, WholeNorm, exchange, stream, stream, weight=Replicate(), bias=Replicate())
    # Attention needs all positions of the heads that it computes; an MLP is content with those that are here.
    for first, second, whole in (("attn.qkv", "attn.c_proj", None), ("mlp.c_fc", "mlp.c_proj", stream)):
        between = FEATURES if plan[first] == "column" else whole
        for name, source, target in ((first, stream, between), (second, between, stream)):
            kind, placements = LINEARS[plan[name]]
            _become(block.get_submodule(name), kind, exchange, source, target, **placements)
    if plan["attn.qkv"] == "column":
        heads = block.attn.qkv.out_features // (3 * block.attn.head_width)
        block.attn.first_head = mesh.tp_rank * heads // mesh.tp
    block.part = _part(exchange)


def _split_ends(model: GPT2, exchange: Exchange, parallel: ParallelConfig) -> None:
    transformer: Any = model.transformer
    stream = exchange.stream
    transformer.part = _part(exchange)
    embedding, head, split = TABLES[placement("transformer.wte", parallel.placements)]
    if transformer.wte is not None:
        _become(transformer.wte, embedding, exchange, None, stream, weight=split)
        positions, placed = POSITION_TABLES[placement("transformer.wpe", parallel.placements)]
        _become(transformer.wpe, positions, exchange, stream, stream, weight=placed)
    if transformer.ln_f is not None:
        _become(transformer.ln_f, WholeNorm, exchange, stream, stream, weight=Replicate(), bias=Replicate())
    if isinstance(model, Classifier):
        model.gather = lambda x: exchange.move(x, stream, None)
        if model.score is not None:
            _become(model.score, WholeLinear, exchange, None, None, weight=Replicate())
    elif model.lm_head is not None:
        _become(model.lm_head, head, exchange, stream, stream, weight=split)


def _part(exchange: Exchange) -> SequencePart:
    mesh = exchange.mesh
    return SequencePart(mesh.tp_rank, mesh.tp) if exchange.stream == POSITIONS else SequencePart()


def _become(
    module: Any,
    kind: Callable[..., nn.Module],
    exchange: Exchange,
    source: Place,
    target: Place,
    **placements: Placement,
) -> None:
    """Give a module the forward pass of `kind`, from one place to another, and parameters that are split so."""
    module.__class__ = kind
    module.exchange, module.source, module.target = exchange, source, target
    # Gradients of what it has whole are then terms of a sum (`zero.Gradients`).
    module.sees_own_positions = target == POSITIONS
    for name, kept in placements.items():
        whole = getattr(module, name).detach()
        box = exchange.mesh.box["tp"]
        cut = isinstance(kept, Shard)
        part = whole.chunk(exchange.mesh.tp, kept.dim)[exchange.mesh.tp_rank].clone() if cut else whole
        split = DTensor.from_local(part, box, [kept], run_check=False, shape=whole.shape, stride=whole.stride())
        setattr(module, name, nn.Parameter(split))
