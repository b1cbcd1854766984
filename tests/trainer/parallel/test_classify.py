"""Predicting a split: each row once, whatever the layout, the rows and the batch do not divide."""

from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from trainer.config import ParallelConfig


def classified(path: Path, parallel: ParallelConfig, sizes: tuple[int, ...]) -> dict[int, list[list[float]]]:
    """By batch size the outputs of a model that answers with a row's place and 1, from the last stage alone."""
    import torch

    from trainer.data.glue import GlueRows
    from trainer.loop.validation import classify
    from trainer.parallel.mesh import Mesh

    mesh = Mesh(parallel, torch.device("cpu"))
    rows = GlueRows(path)

    def forward(batch: Any) -> Any:
        if mesh.pp_rank < mesh.pp - 1:
            return None
        return torch.stack([batch.rows.float(), torch.ones(len(batch.rows))], dim=1)

    return {size: classify(forward, 2, mesh.device, rows, rows.pad, size, mesh) for size in sizes}


@pytest.mark.parametrize(
    ("processes", "layout"),
    [
        (1, {}),
        (2, {"dp_replicate": 2}),
        (3, {"dp_replicate": 3}),
        (2, {"dp_shard": 2, "zero": 3}),
        (2, {"tp": 2}),
        (2, {"pp": 2}),
        (4, {"dp_replicate": 2, "tp": 2}),
        (4, {"dp_replicate": 2, "pp": 2}),
        (4, {"tp": 2, "pp": 2}),
    ],
    ids=str,
)
@pytest.mark.parametrize("number", [1, 9])
def test_every_row_is_predicted_once_in_every_layout(
    workers: Any, tmp_path: Path, number: int, processes: int, layout: dict[str, int]
) -> None:
    tokenizer = small.write_tokenizer(tmp_path / "tokenizer")
    path = small.write_glue(tmp_path / "glue", tokenizer, {"validation": number}) / "validation.arrow"
    parallel = ParallelConfig(**{"dp_replicate": 1, "device": "cpu", **layout})  # pyright: ignore[reportArgumentType]
    for found in workers.run(processes, classified, path, parallel, (1, 2, 4, 16)):
        for size, outputs in found.items():
            assert outputs == [[float(place), 1.0] for place in range(number)], size
