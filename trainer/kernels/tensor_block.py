"""The fused block under tensor parallelism: exchanges run beside the products of other samples.

`block.FusedBlock` is what this computes, with a process's heads and inner columns. A pass ends where an exchange
begins; before the next pass of the same samples waits for it, a pass of the batch's other half is computed (Wang et
al., arXiv:2409.15241). Torch runs the backward passes in the opposite order, so these overlap likewise; beside their
own exchange they compute the gradients of weights. Import this module only where Triton is.

Shapes: N tokens of a share of the batch, M = N / tp those of this process, B samples, T positions, D width, F columns
of this process, K width of a head.
"""
# pyright: reportCallIssue=false
# torch types `apply` as if it took what the `forward` of the base class takes.

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.dropout import site_constant
from trainer.kernels import columns
from trainer.kernels import norm as norms
from trainer.kernels.block import HALF, FusedBlock, Sums, taken
from trainer.kernels.dropout import Drop
from trainer.kernels.products import Products
from trainer.model import AFTER_ATTENTION_SITE, AFTER_MLP_SITE, Block, LayerNorm
from trainer.parallel.exchange import Exchange


class Passage:
    """What the tp processes exchange between one pass and the next, and its gradient on the way back."""

    def __init__(self, exchange: Exchange, groups: int) -> None:
        """`groups` of samples, whose tokens are divided over the processes one group after the other."""
        self._exchange = exchange
        self._groups = groups
        self._tensor: Tensor | None = None
        self._works: list[Any] = []

    def gather(self, x_MD: Tensor) -> None:
        """Begin to gather the tokens of all processes."""
        self._tensor, self._works = self._exchange.start_gather(x_MD, self._groups)

    def scatter(self, x_ND: Tensor) -> Tensor:
        """Begin to sum the terms of all processes; return the sums of this process's tokens, which `land` waits for."""
        part_MD, self._works = self._exchange.start_scatter(x_ND, self._groups)
        self._tensor = part_MD
        return part_MD

    def land(self) -> Tensor:
        """Wait until the exchange is over, and return what came."""
        for work in self._works:
            work.wait()
        came, self._tensor, self._works = self._tensor, None, []
        assert came is not None
        return came


@dataclass(slots=True)
class Branch:
    """What the product at the end of a branch adds to the residual stream: the sum of its terms, once that is there."""

    sum_MD: Tensor  # noqa: N815 (a shape)
    passage: Passage
    bias: nn.Parameter
    drop: Drop | None


@dataclass(slots=True)
class Share:
    """Samples on their way through the blocks: half of the batch, or all of it."""

    x_MD: Tensor  # noqa: N815 (a shape)
    """Their residual stream; at the end (B, T / tp, D)."""
    samples: slice
    """Which samples of the batch."""
    groups: int
    """Of samples, see Passage."""
    branch: Branch | None = None
    """What is still to be added to the stream."""
    normed: tuple[Tensor, Passage] | None = None
    """The norm at the beginning of the next block, which is being gathered."""


class FusedTensorBlock(FusedBlock):
    """A block of which each tp process has some heads and inner columns, and between them some of the tokens."""

    exchange: Exchange
    next_norm: tuple[LayerNorm, ...] = ()
    """The norm that the next block begins with, if that block takes shares; a tuple, lest it be a part of this one."""

    def forward(self, x_BTD: Any, keys_BT: Tensor | None, documents: Tensor | None = None) -> Any:
        """(B, T / tp, D) -> (B, T / tp, D); between blocks, shares of it."""
        if self.compute_dtype not in HALF:
            return Block.forward(self, x_BTD, keys_BT, documents)
        shares = x_BTD if isinstance(x_BTD, list) else self._shares(x_BTD, whole=documents is not None)
        ways = [_Way(self, share, keys_BT, documents) for share in shares]
        if len(ways) == 1:
            ways[0].run()
        else:
            run_both(*ways)
        if self.next_norm:
            return shares
        return shares[0].x_MD if len(shares) == 1 else torch.cat([share.x_MD for share in shares])

    def _shares(self, x_BTD: Tensor, *, whole: bool) -> list[Share]:
        """Return both halves of a batch, where its tokens are divided by halves. `whole`: all in one share."""
        batch = len(x_BTD)
        groups = self.exchange.part.groups(batch, x_BTD.shape[1] * self.exchange.part.count)
        if whole or groups == 1:
            return [Share(x_BTD.flatten(0, 1), slice(0, batch), groups)]
        middle = batch // 2
        halves = slice(0, middle), slice(middle, batch)
        return [Share(x_BTD[half].flatten(0, 1), half, 1) for half in halves]


def run_both(first: "_Way", second: "_Way") -> None:
    """Run a block for two shares: while one waits for an exchange, the other computes."""
    first.norm()
    first.heads()
    second.norm()
    first.attend()
    second.heads()
    first.middle()
    second.attend()
    first.inner()
    second.middle()
    first.outer()
    second.inner()
    first.end()
    second.outer()
    if not first.block.next_norm:
        second.end()


class _Way:
    """The way of a share through a block, pass by pass."""

    def __init__(self, block: FusedTensorBlock, share: Share, keys_BT: Tensor | None, documents: Tensor | None) -> None:
        self.block = block
        self._share = share
        self._keys_BT = None if keys_BT is None else keys_BT[share.samples]
        self._documents = documents
        self._drops: list[Drop | None] = [None, None]
        if keys_BT is not None and block.dropout:
            own = block.part.of(keys_BT)[share.samples]
            sites = (AFTER_ATTENTION_SITE, AFTER_MLP_SITE)
            self._drops = [Drop.of(own, site_constant(site), block.dropout, block.compute_dtype) for site in sites]
        self._passed: Any = None
        """What the last pass leaves to the next."""

    def run(self) -> None:
        """Run all passes."""
        for each in (self.norm, self.heads, self.attend, self.middle, self.inner, self.outer, self.end):
            each()

    def norm(self) -> None:
        """Norm the stream, if the last block has not, and begin to gather it."""
        share = self._share
        if share.normed is None:
            self._norm(self.block.ln_1)
        self._passed, share.normed = share.normed, None

    def heads(self) -> None:
        """Compute queries, keys and values of this process's heads."""
        normed_MD, passage = self._passed
        samples, attention = self._share.samples, self.block.attn
        sums, weights = self._taken(attention.qkv.weight, attention.qkv.bias)
        shape = samples.stop - samples.start, attention.head_width
        self._passed = _Heads.apply(normed_MD, passage, self.block, shape, sums, *weights)

    def attend(self) -> None:
        """Attend, and begin to sum the products of all heads."""
        attention = self.block.attn
        y_BTF = attention.attend(*self._passed, self._keys_BT, self._documents).transpose(1, 2).flatten(2)
        self._branch(y_BTF.flatten(0, 1), attention.c_proj, self._drops[0])

    def middle(self) -> None:
        """Add that to the stream, norm it, and begin to gather it."""
        self._norm(self.block.ln_2)
        self._passed, self._share.normed = self._share.normed, None

    def inner(self) -> None:
        """Compute this process's inner columns."""
        normed_MD, passage = self._passed
        first = self.block.mlp.c_fc
        sums, weights = self._taken(first.weight, first.bias)
        self._passed = _Inner.apply(normed_MD, passage, self.block, sums, *weights)

    def outer(self) -> None:
        """Begin to sum the products of all inner columns."""
        self._branch(self._passed, self.block.mlp.c_proj, self._drops[1])

    def end(self) -> None:
        """Begin the next block; without one, add to the stream what is still to be added."""
        if self.block.next_norm:
            self._norm(*self.block.next_norm)
            return
        share, branch = self._share, self._share.branch
        assert branch is not None
        sums, weights = self._taken(branch.bias)
        # Not a view at last: on those of a block, FSDP warns that changes in place would skip its hooks.
        x_BTD = share.x_MD.view(share.samples.stop - share.samples.start, -1, share.x_MD.shape[-1])
        share.x_MD = _Add.apply(x_BTD, branch.sum_MD, branch.passage, branch.drop, sums, *weights)
        share.branch = None

    def _norm(self, norm: LayerNorm) -> None:
        """Norm the stream, with what is still to be added to it, and begin to gather that."""
        share, branch = self._share, self._share.branch
        passage = Passage(self.block.exchange, share.groups)
        if branch is None:
            sums, weights = self._taken(norm.weight, norm.bias)
            given = (share.x_MD, passage, norm.eps, self.block.compute_dtype, sums, *weights)
            share.x_MD, normed_MD = _Norm.apply(*given)
        else:
            sums, weights = self._taken(norm.weight, norm.bias, branch.bias)
            given = (share.x_MD, branch.sum_MD, branch.passage, passage, branch.drop, norm.eps, sums, *weights)
            share.x_MD, normed_MD = _AddNorm.apply(*given)
        share.branch, share.normed = None, (normed_MD, passage)

    def _branch(self, y_NF: Tensor, linear: nn.Linear, drop: Drop | None) -> None:
        """Begin to sum the processes' products, at the end of a branch."""
        passage = Passage(self.block.exchange, self._share.groups)
        sums, weights = self._taken(linear.weight)
        sum_MD: Tensor = _Rows.apply(y_NF, passage, self.block, sums, *weights)
        self._share.branch = Branch(sum_MD, passage, linear.bias, drop)  # pyright: ignore[reportArgumentType]
        self._passed = None

    def _taken(self, *weights: Tensor) -> tuple[Sums, Sequence[Tensor]]:
        return taken(weights, adds=self.block.adds)


class _Norm(torch.autograd.Function):
    """Norm the stream and begin to gather it; backward: wait for the gradient's sums."""

    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, passage: Passage, epsilon: float, dtype: torch.dtype, sums: Sums, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        normed_MD, statistics_2M = norms.norm(x_MD, *weights, epsilon, dtype, None)
        passage.gather(normed_MD)
        ctx.save_for_backward(x_MD, statistics_2M, weights[0])
        ctx.passage, ctx.sums = passage, sums
        return x_MD.view_as(x_MD), normed_MD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        above_MD = ctx.passage.land()
        below_MD, _, for_norm = norms.gradients(above_MD, *ctx.saved_tensors, gradients[0].contiguous(), ctx.sums)
        return below_MD, None, None, None, None, *for_norm


class _AddNorm(torch.autograd.Function):
    """Add a branch to the stream, norm it, and begin to gather it; backward: wait, and begin to gather the branch's."""

    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, sum_MD: Tensor, before: Passage, after: Passage,
        drop: Drop | None, epsilon: float, sums: Sums, *weights: Tensor,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        weight_D, shift_D, bias_D = weights
        before.land()
        x_MD, normed_MD, statistics_2M = norms.add_and_norm(
            x_MD, sum_MD, bias_D, weight_D, shift_D, epsilon, None, drop
        )
        after.gather(normed_MD)
        ctx.save_for_backward(x_MD, statistics_2M, weight_D)
        ctx.before, ctx.after, ctx.drop, ctx.sums = before, after, drop, sums
        return x_MD, normed_MD

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        above_MD = ctx.after.land()
        below_MD, added_MD, for_weights = norms.gradients(
            above_MD, *ctx.saved_tensors, gradients[0].contiguous(), ctx.sums, None, ctx.drop
        )
        ctx.before.gather(added_MD)
        return below_MD, added_MD, None, None, None, None, None, *for_weights


class _Add(torch.autograd.Function):
    """Add a branch to the stream; backward: begin to gather the branch's gradient."""

    @staticmethod
    def forward(
        ctx: Any, x_BTD: Tensor, sum_MD: Tensor, passage: Passage, drop: Drop | None, sums: Sums, bias_D: Tensor
    ) -> Tensor:
        passage.land()
        ctx.passage, ctx.drop, ctx.sums, ctx.dtype = passage, drop, sums, sum_MD.dtype
        return columns.add(x_BTD, sum_MD, bias_D, drop)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        beside_BTD = gradients[0].contiguous()
        added_MD, for_bias = columns.sum_rows(beside_BTD.flatten(0, 1), ctx.sums[0], None, ctx.drop, ctx.dtype)
        ctx.passage.gather(added_MD)
        return beside_BTD, added_MD, None, None, None, for_bias


class _Heads(torch.autograd.Function):
    """Wait for all tokens, and compute their queries, keys and values; backward: begin to sum the gradient's terms."""

    @staticmethod
    def forward(
        ctx: Any, _: Tensor, passage: Passage, block: FusedBlock, shape: tuple[int, int], sums: Sums,
        matrix_FD: Tensor, bias_F: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        qkv_NF, kept = block.products.forward(passage.land(), matrix_FD, bias_F, None, keep=block.adds)
        ctx.save_for_backward(*kept)
        ctx.products, ctx.passage, ctx.sums = block.products, passage, sums
        samples, width = shape
        qkv_BTH3K = qkv_NF.view(samples, len(qkv_NF) // samples, -1, 3, width)
        return tuple(qkv_BTH3K[:, :, :, kind].transpose(1, 2) for kind in range(3))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        sum_matrix, sum_bias = ctx.sums
        qkv_NF, for_bias = columns.join_heads(*gradients, sum_bias, None)
        below_MD, for_matrix = _summed(ctx, qkv_NF, ctx.saved_tensors, sum_matrix)
        return below_MD, None, None, None, None, for_matrix, for_bias


class _Inner(torch.autograd.Function):
    """Wait for all tokens, and compute their inner columns; backward: begin to sum the gradient's terms."""

    @staticmethod
    def forward(
        ctx: Any, _: Tensor, passage: Passage, block: FusedBlock, sums: Sums, matrix_FD: Tensor, bias_F: Tensor
    ) -> Tensor:
        inner_NF, kept = block.products.forward(passage.land(), matrix_FD, bias_F, None, keep=block.adds)
        ctx.save_for_backward(inner_NF, *kept)
        ctx.products, ctx.passage, ctx.sums = block.products, passage, sums
        return columns.gelu(inner_NF, None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inner_NF, *kept = ctx.saved_tensors
        sum_matrix, sum_bias = ctx.sums
        above_NF, for_bias = columns.gelu_gradient(inner_NF, gradients[0], sum_bias, None)
        below_MD, for_matrix = _summed(ctx, above_NF, kept, sum_matrix)
        return below_MD, None, None, None, for_matrix, for_bias


class _Rows(torch.autograd.Function):
    """Multiply, and begin to sum the products' terms; backward: wait for the gradient of all tokens."""

    @staticmethod
    def forward(ctx: Any, y_NF: Tensor, passage: Passage, block: FusedBlock, sums: Sums, matrix_DF: Tensor) -> Tensor:
        out_ND, kept = block.products.forward(y_NF, matrix_DF, None, None, keep=block.adds)
        ctx.save_for_backward(*kept)
        ctx.products, ctx.passage, ctx.sums = block.products, passage, sums
        return passage.scatter(out_ND)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        above_ND = ctx.passage.land()
        below_NF, for_matrix = ctx.products.backward(above_ND, ctx.saved_tensors, ctx.sums[0], None)
        return below_NF, None, None, None, for_matrix


def _summed(ctx: Any, above_NF: Tensor, kept: Sequence[Tensor], sum_FD: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the sums of the gradients before a product, which are under way, and the gradient of its weight."""
    parts: list[Tensor] = []
    products: Products = ctx.products
    _, for_matrix = products.backward(
        above_NF, tuple(kept), sum_FD, None, then=lambda below_ND: parts.append(ctx.passage.scatter(below_ND))
    )
    return parts[0], for_matrix
