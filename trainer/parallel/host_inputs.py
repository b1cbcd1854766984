"""Inputs of recomputed blocks in the host's memory, from a block's forward pass until its backward pass.

With `activation_checkpointing: full` a block keeps nothing but its input, and the inputs of all blocks are most of what
a training with everything else on the host has on the device. Each leaves beside the forward pass of its block, and
comes back beside the backward pass of the block after it. As torchtune's `OffloadActivations` does, tensors that leave
are held until later blocks have begun, instead of telling the allocator of a second stream, which it would have to ask.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Generator
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from trainer.config import ParallelConfig
from trainer.model import GPT2
from trainer.parallel.host_memory import HostMemory
from trainer.parallel.streams import beside, mark, wait_for
from trainer.stages import taken_layers

HELD = 2
"""Inputs that are still on the device, since they may not have left completely."""


class HostInputs:
    """The inputs of some blocks of a process's stages, on the host between their passes."""

    def __init__(self, device: torch.device, *, plain: bool = False, says: bool = True) -> None:
        """`plain`: nothing is copied beside anything else. `says`: whether to say that memory cannot be pinned."""
        self._pin = device.type == "cuda"
        self._stream: Any = torch.cuda.Stream(device) if self._pin and not plain else None
        self._says = says
        self._free: list[HostMemory] = []
        """Memory that no input needs now."""
        self._leaving: deque[_Input] = deque()
        self._latest: WeakValueDictionary[int, _Input] = WeakValueDictionary()
        """By block, what its last forward pass has sent, as long as its backward pass needs that."""

    def watch(self, model: GPT2, parallel: ParallelConfig) -> None:
        """Take the inputs of `parallel.offload_activations` of a stage's recomputed blocks."""
        taken = taken_layers([int(layer) for layer in model.transformer.h], parallel)
        before = {**dict.fromkeys(taken[:1]), **{layer: earlier for earlier, layer in itertools.pairwise(taken)}}
        if taken:
            model.transformer.around_block = lambda layer, x_BTD: self._around(layer, x_BTD, before)

    @contextlib.contextmanager
    def _around(self, layer: int, x_BTD: Tensor, before: dict[int, int | None]) -> Generator[None]:
        """Take the input during the block's forward pass. `before`: of each block that is taken, the one before it."""
        if layer not in before or not torch.is_grad_enabled():
            yield
            return
        place, shape, sent = x_BTD.data_ptr(), x_BTD.shape, False

        def pack(tensor: Tensor) -> "Tensor | _Input":
            """Take nothing else: a compiled block also keeps its weights, and others what dropout needs."""
            nonlocal sent
            if tensor.data_ptr() != place or tensor.shape != shape:
                return tensor
            sent = True
            return self._send(tensor, layer, before[layer])

        with saved_tensors_hooks(pack, self._bring):
            yield
        if not sent:
            raise RuntimeError(f"parallel.offload_activations: the input of block {layer} is kept in another way")

    @torch.no_grad()
    def _send(self, tensor: Tensor, layer: int, before: int | None) -> "_Input":
        memory = self._room_for(tensor.numel() * tensor.element_size())
        sent = _Input(tensor.detach(), memory, self._free, None if before is None else self._latest.get(before))
        self._latest[layer] = sent
        with beside(self._stream):
            sent.on_host.copy_(tensor, non_blocking=True)
            sent.event = mark(self._stream)
        self._leaving.append(sent)
        while len(self._leaving) > HELD:
            self._let_go(self._leaving.popleft())
        return sent

    def _room_for(self, size: int) -> HostMemory:
        """Return memory of at least so many bytes; of rows of many lengths, it grows up to the longest."""
        memory = self._free.pop() if self._free else None
        if memory is not None and len(memory.values) >= size:
            return memory
        if memory is not None and self._pin:
            torch.cuda.synchronize()  # something may still be read from it
        memory = HostMemory(size, pin=self._pin, says=self._says)
        self._says = self._says and memory.pinned  # once
        return memory

    def _let_go(self, sent: "_Input") -> Tensor | None:
        """Return what the device has of an input, and let it have that no longer, once all copies are made."""
        wait_for(sent.event)
        tensor, sent.on_device = sent.on_device, None
        return tensor

    @torch.no_grad()
    def _bring(self, kept: "Tensor | _Input") -> Tensor:
        """Return an input to the backward pass that begins, and let the one of the block before come beside it."""
        if isinstance(kept, Tensor):
            return kept
        self._come(kept)
        if kept.before is not None:
            self._come(kept.before)
            kept.before = None
        tensor = self._let_go(kept)
        assert tensor is not None
        if kept in self._leaving:
            self._leaving.remove(kept)  # or its memory on the host would be needed until others leave
        return tensor

    def _come(self, kept: "_Input") -> None:
        if kept.on_device is None:
            # Of the device's own stream, which frees it; whatever had this memory before is done with before the copy.
            kept.on_device = torch.empty_like(kept.on_host, device=kept.device)
            with beside(self._stream):
                kept.on_device.copy_(kept.on_host, non_blocking=True)
                kept.event = mark(self._stream)


class _Input:
    """An input on the host, and on the device while it leaves or comes."""

    def __init__(self, tensor: Tensor, memory: HostMemory, free: list[HostMemory], before: "_Input | None") -> None:
        """`free`: where `memory` goes once nobody needs this. `before`: the input of the block before, if any."""
        self.on_device: Tensor | None = tensor
        self.device = tensor.device
        size = tensor.numel() * tensor.element_size()
        self.on_host = memory.values[:size].view(tensor.dtype).view(tensor.shape)
        self.event: Any = None
        """After which the last copy is made."""
        self.before = before
        self._memory, self._free = memory, free

    def __del__(self) -> None:
        """Give the memory back. What is copied there next comes after what is read from it now, on the same stream."""
        self._free.append(self._memory)
