"""The optimizer's state in the host's memory, and the ways there and back.

The host has four fp32 numbers of each weight in one piece of memory: the weight itself, its two moments, and its
gradient. On the device stay the weights that the model computes with, matrices of blocks in half precision, and the
sums of gradients. Gradients leave once they are complete, those of a block beside the rest of the backward pass if no
other process has terms of them. The host then updates piece by piece in the next forward pass, each block just before
the pass comes to it, while the device computes the blocks before; whoever reads weights or state outside of a step's
passes lets it finish first. Weights never leave the device.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer.model import GPT2
from trainer.parallel.host_memory import HostMemory
from trainer.parallel.local import like, values

BYTES = 16
"""In the host's memory for each weight."""
PIECE = 2**24
"""Most weights that are updated at once: one piece is on its way while the next one is updated."""
_ALIGNED = 16
"""Numbers of a cache line; each matrix begins with one."""
BLOCKS = "transformer.h."
"""The beginning of the names of all blocks' weights."""
OTHERS = -1
"""In the place of a block's number: all vectors, and weights outside of blocks."""


def keep_halves(block: nn.Module, dtype: torch.dtype) -> None:
    """Let a block that has no memory yet have its matrices in `dtype`; vectors, which are few, stay in fp32."""
    block._apply(lambda weight: weight.to(dtype) if weight.ndim >= 2 else weight)  # pyright: ignore[reportPrivateUsage]


def last_blocks(weights: Mapping[str, Tensor], share: float) -> list[str]:
    """Return the names of about this share of all values: whole blocks from the last one on; 1: of all weights.

    Gradients of the last blocks are the first to leave. Others than blocks' are not taken in part, since embedding and
    head may be one weight that two processes hold, and both have to update it in the same place.
    """
    if share == 1:
        return list(weights)
    blocks: dict[int, list[str]] = {}
    for name in weights:
        if (layer := block_of(name)) != OTHERS:
            blocks.setdefault(layer, []).append(name)
    left, taken = share * sum(weight.numel() for weight in weights.values()), list[str]()
    for layer in sorted(blocks, reverse=True):
        size = sum(weights[name].numel() for name in blocks[layer])
        if left < size / 2:
            break
        left -= size
        taken += blocks[layer]
    return taken


def block_of(name: str) -> int:
    """Return the number of the block that has a weight."""
    return int(name.split(".")[2]) if name.startswith(BLOCKS) else OTHERS


def bytes_of(weights: Mapping[str, nn.Parameter]) -> int:
    """Return about how many bytes the host needs for these weights, which need no memory yet."""
    return BYTES * sum(_room(weight) for weight in weights.values())


def _room(weight: Tensor) -> int:
    size = values(weight).numel()
    return -(-size // _ALIGNED) * _ALIGNED if weight.ndim >= 2 else size


@dataclass(frozen=True, slots=True)
class Piece:
    """Some weights that are updated together, as flat views of the host's memory."""

    names: list[str]
    """Of the weights, of which it may be only a part of the first one: of all vectors, or of one matrix."""
    decays: bool
    weights: Tensor
    gradients: Tensor
    first: Tensor
    second: Tensor
    start: int
    """Where in the matrix it begins."""


class Offload:
    """The state of this process's weights in the host's memory."""

    def __init__(
        self,
        weights: Mapping[str, nn.Parameter],
        device: torch.device,
        *,
        gathered: bool = False,
        plain: bool = False,
        says: bool = True,
    ) -> None:
        """`gathered`: whether ZeRO gathers weights, on streams of its own. `says`: whether to say what is refused.

        `plain`: gradients leave after the backward pass and the host updates before the next one, nothing beside them.
        """
        self._plain = plain
        self._weights = dict(weights)
        self._gathered = gathered
        self._vectors = [name for name, weight in weights.items() if weight.ndim < 2 and values(weight).numel()]
        matrices = [name for name, weight in weights.items() if weight.ndim >= 2]
        empty = [name for name, weight in weights.items() if weight.ndim < 2 and not values(weight).numel()]
        self._at: dict[str, slice] = {}
        total = 0
        for name in (*matrices, *self._vectors, *empty):
            self._at[name] = slice(total, total + values(weights[name]).numel())
            total += _room(weights[name])
        total = -(-total // _ALIGNED) * _ALIGNED
        self._memory = HostMemory(BYTES * total, pin=device.type == "cuda", says=says)
        self._arrays = self._memory.values.view(torch.float32).view(4, total).unbind()
        masters, self._gradients, first, second = self._arrays
        self.masters: dict[str, Tensor] = {
            name: like(weight.detach(), self._part(masters, name)) for name, weight in weights.items()
        }
        """The fp32 weights, of which those on the device are copies."""
        self.moments = {name: (self._part(first, name), self._part(second, name)) for name in weights}
        """Both moments of this process's part of each weight."""
        self._leaves_early = False
        self.norms: dict[str, Tensor] = {}
        """By name, norms of gradients that the device no longer has at the end of a step."""
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._arrived: dict[str, Any] = {name: torch.cuda.Event() for name in weights} if self._stream else {}
        self._left: set[str] = set()
        self._matrices = [name for name in matrices if values(weights[name]).numel()]
        self._pieces: dict[int, list[Piece]] = {OTHERS: []}
        for piece in self._cut():
            self._pieces.setdefault(block_of(piece.names[0]) if piece.decays else OTHERS, []).append(piece)
        self._waiting: dict[int, list[Piece]] = {}
        """Pieces that the last update has not come to, by block."""
        self._apply: Callable[[Piece], None] = _nothing
        vectors = sum(values(weights[name]).numel() for name in self._vectors)
        self._returned = torch.empty(vectors, device=device)
        """Where vectors arrive on the device, together."""

    def _part(self, array: Tensor, name: str) -> Tensor:
        return array[self._at[name]].view(values(self._weights[name]).shape)

    def _cut(self) -> Iterator[Piece]:
        """Yield all pieces, in the order in which a forward pass needs them; all vectors are one, and the first."""
        if self._vectors:
            at = slice(self._at[self._vectors[0]].start, self._at[self._vectors[-1]].stop)
            yield Piece(self._vectors, False, *(array[at] for array in self._arrays), start=0)
        for name in self._matrices:
            whole = self._at[name]
            for start in range(whole.start, whole.stop, PIECE):
                at = slice(start, min(start + PIECE, whole.stop))
                arrays = (array[at] for array in self._arrays)
                yield Piece([name], True, *arrays, start=start - whole.start)

    def watch(self, model: GPT2) -> None:
        """Update blocks as forward passes come to them, and let their gradients leave early, where they may."""
        model.transformer.at_block = self._at_block

    def _at_block(self, layer: int, x_BTD: Tensor) -> None:
        """Act before a block's forward pass."""
        self._catch_up(layer)
        # The gradient of its input is the last that a block computes, and autograd adds those of weights before.
        if self._leaves_early and x_BTD.requires_grad:
            names = [name for name in self._matrices if block_of(name) == layer]
            x_BTD.register_hook(lambda _: self._leave(names))

    def expect(self, *, last: bool, alone: bool) -> None:
        """Prepare for a backward pass: with the `last` one of a step, gradients of blocks leave during it if `alone`.

        `alone`: no other process has terms of them, and they are added to what is there.
        """
        self._leaves_early = last and alone and not self._plain

    def gradient_of(self, name: str) -> Tensor:
        """Return the gradient that is on the host."""
        if self._stream is not None:
            self._stream.synchronize()
        return self._part(self._gradients, name)

    def begin(self) -> None:
        """Begin a step: what has left of the last one's gradients may be overwritten on the device.

        What is no block's is updated here, since the forward pass begins with embeddings and each block has vectors.
        """
        self._left.clear()
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        self._catch_up(OTHERS)

    def leave(self) -> None:
        """Send the host all gradients that have not left yet: the last backward pass of the step is done."""
        self.finish()
        self._leave([name for name in self._matrices if name not in self._left])
        if not self._vectors:
            return
        with self._beside():
            together = torch.cat([values(gradient(self._weights[name])).flatten() for name in self._vectors])
            at = slice(self._at[self._vectors[0]].start, self._at[self._vectors[-1]].stop)
            self._gradients[at].copy_(together, non_blocking=True)
            self._mark(self._vectors[0])

    @torch.no_grad()
    def _leave(self, names: list[str]) -> None:
        with self._beside():
            for name in names:
                part = values(gradient(self._weights[name]))
                self._part(self._gradients, name).copy_(part, non_blocking=True)
                self._mark(name)
        self._left.update(names)

    def _mark(self, name: str) -> None:
        if self._stream is not None:
            self._arrived[name].record()

    def _beside(self) -> contextlib.AbstractContextManager[Any]:
        """Copy after everything that the device has got until now, and beside what it gets from now on."""
        self._wait_for_device()
        return self._on_stream()

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Copy after what has been copied, and beside everything else."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def update(self, apply: Callable[[Piece], None]) -> None:
        """Let `apply` update all pieces: those of a block when the next forward pass comes to it, or in `finish`.

        Each is updated once its gradients are there, and sent to the device; what the device gets afterwards waits for
        it, the host does not.
        """
        self.finish()
        self._apply, self._waiting = apply, dict(self._pieces)
        self._wait_for_device()
        if self._plain:
            self.finish()

    def finish(self) -> None:
        """Bring the last update to its end, before weights, state or gradients are read or written from outside."""
        for block in list(self._waiting):
            self._catch_up(block)

    @torch.no_grad()
    def _catch_up(self, block: int) -> None:
        """Update what the last update has left of a block."""
        pieces = self._waiting.pop(block, None)
        if pieces is None:
            return
        for piece in pieces:
            if self._stream is not None:
                self._arrived[piece.names[0]].synchronize()
            self._apply(piece)
            self._give(piece)
        self._end()

    @torch.no_grad()
    def give(self) -> None:
        """Send the device all weights, after a loader has written the masters."""
        self._wait_for_device()
        for pieces in self._pieces.values():
            for piece in pieces:
                self._give(piece)
        self._end()

    def _wait_for_device(self) -> None:
        """Send weights only after everything that the device has got until now, which may read the old ones."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())

    def _end(self) -> None:
        """Let everything that the device gets from now on wait for the weights that have been sent."""
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            if self._gathered:  # on streams that wait for nothing but the beginning of the pass
                self._stream.synchronize()

    def _give(self, piece: Piece) -> None:
        """Send a piece to the device; what is rounded is rounded here, in the place of the gradients, now used up."""
        if len(piece.names) > 1 or piece.names[0] in self._vectors:
            parts = [values(self._weights[name]) for name in piece.names]
            with self._on_stream():
                self._returned.copy_(piece.weights, non_blocking=True)
                sources = self._returned.split([part.numel() for part in parts])
                shaped = [source.view_as(part) for source, part in zip(sources, parts, strict=True)]
                torch._foreach_copy_(parts, shaped)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
            return
        target = values(self._weights[piece.names[0]]).view(-1)[piece.start : piece.start + piece.weights.numel()]
        source = piece.weights
        if target.dtype != source.dtype:
            source = piece.gradients.view(target.dtype)[: target.numel()].copy_(source)
        with self._on_stream():
            target.copy_(source, non_blocking=True)


def gradient(weight: nn.Parameter) -> Tensor:
    """Return a weight's gradient, which is there."""
    assert weight.grad is not None
    return weight.grad


def _nothing(_: Piece) -> None:
    pass
