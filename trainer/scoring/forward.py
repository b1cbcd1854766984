"""The forward pass of scoring: logits of the positions that are looked at, not of all, which would cost most of it."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from trainer.data.batch import Batch
from trainer.parallel import ParallelModel

ForwardAt = Callable[[Batch, Tensor, Tensor], Tensor | None]
"""From a batch, rows (N,) and positions (N,) to the logits (N, V) there; None in the other stages of a pipeline."""


def forward_at(model: ParallelModel[Any]) -> ForwardAt:
    """Return the forward pass of a language model in any layout.

    With tp, a process's hidden states may be of some positions only, and the head gathers them: there all logits are
    computed.
    """
    head: nn.Module | None = model.stages[-1].lm_head

    def forward(batch: Batch, row_N: Tensor, position_N: Tensor) -> Tensor | None:
        def only_there(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (inputs[0][row_N, position_N],)

        if model.mesh.tp > 1 or head is None:
            logits_BTV = model.forward(batch, rows_B=batch.rows)
            return None if logits_BTV is None or head is None else logits_BTV[row_N, position_N]
        hook = head.register_forward_pre_hook(only_there)
        try:
            return model.forward(batch, rows_B=batch.rows)
        finally:
            hook.remove()

    return forward
