"""The order of a pipeline's passes, and how much of its model a process keeps for backward passes at most."""

import functools

from trainer.stages import V_SHAPED

Action = tuple[str, int, int]
"""`forward` or `backward`, stage, micro batch."""
FORWARD_FIRST = ("gpipe", "looped_bfs")
ROUNDS = 4
"""Rounds of `pp` micro batches after which a schedule has long repeated itself."""


def order(schedule: str, pp: int, chunks: int, passes: int, rank: int) -> list[Action]:
    """Return the passes of a process, `passes` micro batches through each of its `chunks` stages, in order.

    As in torch.distributed.pipelining: GPipe and looped BFS make all forward passes first; 1F1B and its interleaved
    kind fill the pipeline, then make one forward and one backward pass in turn. Schedules that split the backward pass
    are taken as interleaved 1F1B.
    """
    together = passes if schedule in FORWARD_FIRST else passes // max(1, passes // pp)
    total = passes * chunks
    counts = {"forward": [0] * chunks, "backward": [0] * chunks}

    def action(kind: str, number: int) -> Action:
        turn = number // together % chunks
        chunk = turn if kind == "forward" else chunks - 1 - turn
        micro = counts[kind][chunk]
        counts[kind][chunk] += 1
        return kind, chunk * pp + (pp - 1 - rank if schedule in V_SHAPED and chunk % 2 else rank), micro

    filling = (chunks - 1) * together + (2 if chunks > 1 else 1) * (pp - 1 - rank)
    first = total if schedule in FORWARD_FIRST else min(total, filling)
    actions = [action("forward", number) for number in range(first)]
    for number in range(total):
        if first + number < total:
            actions.append(action("forward", first + number))
        actions.append(action("backward", number))
    return actions


@functools.lru_cache(maxsize=65536)
def most_kept(schedule: str, pp: int, sizes: tuple[int, ...], passes: int, rank: int) -> int:
    """Return the most layers that a process keeps for backward passes at once, counted once for each micro batch.

    `sizes`: the layers of each stage.
    """
    if schedule not in FORWARD_FIRST and passes > ROUNDS * pp:
        return most_kept(schedule, pp, sizes, ROUNDS * pp, rank)
    kept = most = 0
    for kind, stage, _ in order(schedule, pp, len(sizes) // pp, passes, rank):
        kept += sizes[stage] * (1 if kind == "forward" else -1)
        most = max(most, kept)
    return most
