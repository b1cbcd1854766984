"""Split each layer's matrices over the tp processes, in Megatron's way or as the user says.

The first matrix of a pair is split by columns of the product (heads of the attention, inner width of the MLP), the
second by rows, so a pair needs one exchange before it and one after it (Shoeybi et al., arXiv:1909.08053). With
sequence parallelism each process has some of the tokens between the pairs: the exchanges become an all-gather and a
reduce-scatter, with as much traffic as the two all-reduces without it (Korthikanti et al., arXiv:2205.05198). The
embedding is split by tokens, and the loss is computed on the sharded logits. `parallel.placements` can choose other
splits (`trainer/placements.py`); each module then takes its input in the sharding that the one before it left.
Parameters become DTensors, which checkpoints and ZeRO can handle; the arithmetic uses each process's local part.
Replicated parameters that see only some positions (with sequence parallelism norms, positions, and the biases after a
second matrix) have gradients that are summed over tp once per step.
"""

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from pipelines.errors import ConfigError
from trainer.config import ParallelConfig
from trainer.loss import VocabPart, linear_cross_entropy
from trainer.model import GPT2, Classifier, Head, LayerNorm, Linear
from trainer.parallel.exchange import FEATURES, ROWS, TOKENS, Exchange, ShardDim
from trainer.parallel.local import local, values
from trainer.parallel.mesh import Mesh
from trainer.parallel.peer_copies import peer_copies
from trainer.placements import MATRICES, placement


class ColumnLinear(Linear):
    """Each process computes some of the outputs, from all inputs."""

    exchange: Exchange
    source: ShardDim
    target: ShardDim

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """(B, T, in) -> (B, T, out), sharded as `source` -> `target`."""
        x = self.exchange.spread(input, self.source)
        x = F.linear(x, local(self.weight).to(x.dtype), local(self.bias).to(x.dtype))
        return self.exchange.move(x, FEATURES, self.target)


class RowLinear(Linear):
    """Each process computes a term of the outputs, from some of the inputs; the bias is added to the sum."""

    exchange: Exchange
    source: ShardDim
    target: ShardDim

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """(B, T, in) -> (B, T, out), sharded as `source` -> `target`."""
        x = self.exchange.move(input, self.source, FEATURES)
        x = self.exchange.total(F.linear(x, local(self.weight).to(x.dtype)), self.target)
        return x + local(self.bias).to(x.dtype)


class ReplicatedLinear(Linear):
    """Each process has the whole matrix, and applies it to its part of the output's sharding."""

    exchange: Exchange
    source: ShardDim
    target: ShardDim

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """(..., in) -> (..., out), sharded as `source` -> `target`."""
        x = self.exchange.move(input, self.source, self.target)
        bias = local(self.bias).to(x.dtype) if isinstance(self.bias, Tensor) else None  # pyright: ignore
        return F.linear(x, local(self.weight).to(x.dtype), bias)


class ReplicatedNorm(LayerNorm):
    """A norm of this process's positions."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.LayerNorm's name)
        """(B, T or a part of it, D) -> the same."""
        weight, bias = (local(parameter).to(input.dtype) for parameter in (self.weight, self.bias))
        normed = F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)
        return normed if self.compute_dtype is None else normed.to(self.compute_dtype)


class VocabularyEmbedding(nn.Embedding):
    """Each process has the vectors of some tokens, and returns 0 for the others."""

    exchange: Exchange
    target: ShardDim

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        """(B, T) -> (B, T or a part of it, D)."""
        weight_VD = local(self.weight)
        rows_BT = input - first_row(self.weight, self.exchange.mesh)
        local_BT = (rows_BT >= 0) & (rows_BT < len(weight_VD))
        x_BTD = F.embedding(rows_BT.where(local_BT, 0), weight_VD) * local_BT[..., None]
        return self.exchange.total(x_BTD, self.target)


class ColumnParallelEmbedding(nn.Embedding):
    """Each process has some columns of all vectors, and looks up all rows."""

    exchange: Exchange
    source: ShardDim
    target: ShardDim

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        """(B, T or a part of it) -> (B, the same or a part of it, D)."""
        rows_BT = self.exchange.move(input, self.source, None)
        return self.exchange.move(F.embedding(rows_BT, local(self.weight)), FEATURES, self.target)


class ReplicatedEmbedding(nn.Embedding):
    """Each process has all vectors, and looks up those of its positions."""

    exchange: Exchange
    source: ShardDim
    target: ShardDim

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        """(B, T or a part of it) -> (B, the same or a part of it, D)."""
        return F.embedding(self.exchange.move(input, self.source, self.target), local(self.weight))


class PositionTable(nn.Embedding):
    """Takes positions beyond the table as its last: if tp does not divide n_positions, the longest samples are padded.

    Goes before the embedding that does the lookup.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Embedding's name)
        """(1 or B, T or a part of it) -> (the same, D)."""
        return super().forward(input.clamp(max=len(self.weight) - 1))


class ColumnParallelPositions(PositionTable, ColumnParallelEmbedding):
    """The table of positions, of which each process has some columns."""


class ReplicatedPositions(PositionTable, ReplicatedEmbedding):
    """The table of positions, which each process has whole."""


class VocabularyHead(Head):
    """Each process has the logits of some tokens, and the loss is computed without gathering them."""

    exchange: Exchange
    source: ShardDim

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's name)
        """(B, T or a part of it, D) -> all logits (B, T, V), in fp32."""
        weight_VD = self.weight.full_tensor() if isinstance(self.weight, DTensor) else self.weight
        hidden_BTD = self.exchange.move(input, self.source, None)
        return F.linear(hidden_BTD, weight_VD[: self.vocab_size].to(hidden_BTD.dtype)).float()

    def loss(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the cross entropy summed over all tokens, the same in each process."""
        mesh = self.exchange.mesh
        part = VocabPart(first_row(self.weight, mesh), mesh.largest_over_tp, mesh.sum_over_tp)
        hidden_ND = self.exchange.spread(hidden_BTD, self.source).flatten(0, 1)
        targets_N = targets_BT.flatten()
        return linear_cross_entropy(
            *(hidden_ND, self.rows(), targets_N, self.vocab_size, part),
            differentiate=self.differentiate,
            expected=self.expected,
            total_VD=values(self.weight.grad) if self.adds else None,  # pyright: ignore[reportArgumentType]
        )

    def rows(self) -> Tensor:
        """Return the vectors of this process's tokens."""
        return values(self.weight) if self.adds else local(self.weight)  # of the former, copies are kept


class ColumnParallelHead(VocabularyHead):
    """Each process has some columns, and gets all columns of some tokens' rows for the loss.

    That is less traffic than summing the logits: each weight is sent once, whatever the number of tokens.
    """

    def rows(self) -> Tensor:
        """Return the vectors of this process's tokens: equally many in each process, padded at the end."""
        weight_VD = local(self.weight)
        missing = -len(weight_VD) % self.exchange.mesh.tp
        return self.exchange.move(F.pad(weight_VD, (0, 0, 0, missing)) if missing else weight_VD, FEATURES, ROWS)


class ReplicatedHead(VocabularyHead):
    """Each process has the whole head, and computes the loss of its own positions."""

    def loss(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the cross entropy summed over all tokens, the same in each process."""
        targets_N = self.exchange.move(targets_BT, None, self.source).flatten()
        hidden_ND, weight_VD = hidden_BTD.flatten(0, 1), local(self.weight)
        loss = linear_cross_entropy(
            *(hidden_ND, weight_VD, targets_N, self.vocab_size),
            differentiate=self.differentiate,
            expected=self.expected,
        )
        return loss if self.source is None else self.exchange.total(loss, None)


def first_row(weight: Tensor, mesh: Mesh) -> int:
    """Return the index of this process's first row; the last process may have fewer rows than the others."""
    return mesh.tp_rank * -(-len(weight) // mesh.tp)


LINEARS: dict[str, tuple[type[nn.Module], dict[str, Placement]]] = {
    "column": (ColumnLinear, {"weight": Shard(0), "bias": Shard(0)}),
    "row": (RowLinear, {"weight": Shard(1), "bias": Replicate()}),
    "replicate": (ReplicatedLinear, {"weight": Replicate(), "bias": Replicate()}),
}
TABLES: dict[str, tuple[type[nn.Module], type[nn.Module], Placement]] = {
    "vocabulary": (VocabularyEmbedding, VocabularyHead, Shard(0)),
    "hidden": (ColumnParallelEmbedding, ColumnParallelHead, Shard(1)),
    "replicate": (ReplicatedEmbedding, ReplicatedHead, Replicate()),
}
"""For tokens: the embedding, the head, and the placement of the weight that they share."""
POSITION_TABLES: dict[str, tuple[type[nn.Module], Placement]] = {
    "hidden": (ColumnParallelPositions, Shard(1)),
    "replicate": (ReplicatedPositions, Replicate()),
}


LEAST_GROUP = 2048
"""Tokens of a group: with fewer, more starts of kernels and exchanges would come for each second of products. Groups of
16,384 were measured (`benchmarks/README.md`, "Two GPUs"), none as small as this."""


def exchange_of(parallel: ParallelConfig, mesh: Mesh, *, fused: bool) -> Exchange | None:
    """Return the exchanges of all of this process's stages; None with tp 1.

    `fused`: whether blocks multiply some tokens while others are exchanged (`kernels/exchanged.py`).
    """
    if mesh.tp == 1:
        return None
    # Selective recomputation keeps a product's result only if it is computed whole.
    by_parts = fused and parallel.activation_checkpointing != "selective"
    copies = peer_copies(mesh) if by_parts and parallel.peer_copies and not parallel.tp_across_machines else None
    least_group = LEAST_GROUP if by_parts and copies is None else 0
    return Exchange(mesh, sequence_parallel=parallel.sequence_parallel, least_group=least_group, copies=copies)


def split_tensors(model: GPT2, parallel: ParallelConfig, exchange: Exchange | None) -> None:
    """Split the matrices of `model` (on the meta device) in place; tied ones stay tied. Does nothing with tp 1."""
    if exchange is not None:
        for layer, block in model.transformer.h.items():
            names = {matrix: f"transformer.h.{layer}.{matrix}" for matrix in MATRICES}
            _split_block(block, exchange, {each: placement(name, parallel.placements) for each, name in names.items()})
        _split_ends(model, exchange, parallel)
    model.tie()


def _split_block(block: Any, exchange: Exchange, plan: dict[str, str]) -> None:
    mesh, stream = exchange.mesh, exchange.stream
    for norm in (block.ln_1, block.ln_2):
        _become(norm, ReplicatedNorm, exchange, stream, stream, weight=Replicate(), bias=Replicate())
    # Attention needs all positions of the heads that it computes; an MLP needs only this process's positions.
    for first, second, whole in (("attn.qkv", "attn.c_proj", None), ("mlp.c_fc", "mlp.c_proj", stream)):
        between = FEATURES if plan[first] == "column" else whole
        for name, source, target in ((first, stream, between), (second, between, stream)):
            kind, placements = LINEARS[plan[name]]
            _become(block.get_submodule(name), kind, exchange, source, target, **placements)
    if plan["attn.qkv"] == "column":
        heads = block.attn.qkv.out_features // (3 * block.attn.head_width)
        block.attn.first_head = mesh.tp_rank * heads // mesh.tp
    block.part = exchange.part


def _split_ends(model: GPT2, exchange: Exchange, parallel: ParallelConfig) -> None:
    transformer: Any = model.transformer
    stream = exchange.stream
    transformer.part = exchange.part
    embedding, head, split = TABLES[placement("transformer.wte", parallel.placements)]
    if transformer.wte is not None:
        _become(transformer.wte, embedding, exchange, None, stream, weight=split)
        positions, placed = POSITION_TABLES[placement("transformer.wpe", parallel.placements)]
        _become(transformer.wpe, positions, exchange, stream, stream, weight=placed)
    if transformer.ln_f is not None:
        _become(transformer.ln_f, ReplicatedNorm, exchange, stream, stream, weight=Replicate(), bias=Replicate())
    if isinstance(model, Classifier):
        model.gather = lambda x: exchange.move(x, stream, None)
        if model.score is not None:
            _become(model.score, ReplicatedLinear, exchange, None, None, weight=Replicate())
    elif model.lm_head is not None:
        _become(model.lm_head, head, exchange, stream, stream, weight=split)


def _become(
    module: Any,
    kind: Callable[..., nn.Module],
    exchange: Exchange,
    source: ShardDim,
    target: ShardDim,
    **placements: Placement,
) -> None:
    """Give a module the forward pass of `kind`, from `source` to `target` sharding, and split its parameters."""
    module.__class__ = kind
    module.exchange, module.source, module.target = exchange, source, target
    # Gradients of its replicated parameters are then terms of a sum (`zero.Gradients`).
    module.sees_own_tokens = target == TOKENS
    for name, layout in placements.items():
        whole, mesh = getattr(module, name).detach(), exchange.mesh
        box, part = mesh.box["tp"], whole
        if isinstance(layout, Shard):
            parts = whole.chunk(mesh.tp, layout.dim)
            if len(parts) < mesh.tp:
                raise ConfigError(
                    f"parallel.tp {mesh.tp}: a vocabulary of {len(whole)} rows makes {len(parts)} equal parts only; "
                    f"set model.pad_vocab_to to {mesh.tp}, or lower parallel.tp"
                )
            part = parts[mesh.tp_rank].clone()
        split = DTensor.from_local(part, box, [layout], run_check=False, shape=whole.shape, stride=whole.stride())
        setattr(module, name, nn.Parameter(split))
