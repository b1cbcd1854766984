"""Leave out the update of a step whose loss or gradient norm stands out (`skip_sigma`), or is no finite number.

This is llm.c's outlier detector (`llmc/outlier_detector.h`, options -sl and -sg). The limits of a step follow from the
steps before it, so that the device can compare by itself and the host need not wait before the update. They are part
of a checkpoint: a resumed run leaves out the same steps.
"""

import math
import statistics
from collections import deque
from typing import Any

from torch import Tensor

MOST_IN_A_ROW = 10
"""So many steps left out one after the other end the run: its weights, or its data, are broken."""


class Outliers:
    """The losses and gradient norms of the last steps, and how many steps were left out."""

    def __init__(self, sigma: float, window: int) -> None:
        """`sigma`: standard deviations above the mean of the last `window` steps from which on a step is left out."""
        self.sigma = sigma
        self._losses: deque[float] = deque(maxlen=window)
        self._norms: deque[float] = deque(maxlen=window)
        self.skipped = 0
        """Steps left out since the beginning of the run."""
        self.in_a_row = 0
        """Steps left out since the last one that was not."""

    @property
    def skips(self) -> bool:
        """Whether steps are left out; otherwise the first that is not finite ends training."""
        return self.sigma > 0

    @property
    def limits(self) -> tuple[float, float]:
        """Return the highest loss and the highest gradient norm of a step that is not left out."""
        return self._limit(self._losses), self._limit(self._norms)

    def found(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Return, on the device, whether to leave out the step with this loss and gradient norm, both in fp64."""
        highest_loss, highest_norm = self.limits
        outside = (loss > highest_loss) | (norm > highest_norm)
        return outside | ~(loss.isfinite() & norm.isfinite())

    def add(self, loss: float, norm: float, *, skipped: bool) -> None:
        """Note a step.

        One that was left out counts for the limits too, as in llm.c: they follow a change that stays. Numbers that are
        not finite do not.
        """
        for values, value in ((self._losses, loss), (self._norms, norm)):
            if math.isfinite(value):
                values.append(value)
        self.skipped += skipped
        self.in_a_row = self.in_a_row + 1 if skipped else 0

    def _limit(self, values: "deque[float]") -> float:
        """Return the highest number that does not stand out; any is, until there are enough to tell."""
        spread = statistics.pstdev(values) if len(values) == values.maxlen else 0.0
        return statistics.fmean(values) + self.sigma * spread if spread else math.inf

    def record(self) -> dict[str, Any]:
        """Return the state as a checkpoint stores it."""
        values = {"losses": list(self._losses), "norms": list(self._norms)}
        return {**values, "skipped": self.skipped, "in_a_row": self.in_a_row}

    def restore(self, record: dict[str, Any]) -> None:
        """Restore the state from a checkpoint; of a longer window, the last steps."""
        for values, name in ((self._losses, "losses"), (self._norms, "norms")):
            values.clear()
            values.extend(record[name])
        self.skipped, self.in_a_row = record["skipped"], record["in_a_row"]
