"""Blocks beside fp64."""

import pytest
import torch

from benchmarks import blocks
from tests.trainer import triton_stand_in


@pytest.mark.parametrize("size", [(16, 3, 2, 8), (2, 24, 16, 1)], ids=["heads 3 wide", "one token"])
def test_blocks_are_compared_with_fp64_in_each_precision(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, size: tuple[int, int, int, int]
) -> None:
    triton_stand_in.install(monkeypatch)
    rows = blocks.rows([blocks.Size("tiny", *size)], torch.device("cpu"))
    assert [row.split(" | ")[1] for row in rows] == ["bf16", "fp16", "fp8"]
    assert all(row.endswith("| ok |") for row in rows), rows
    assert all(row.count("|") == head.count("|") for row in rows for head in blocks.HEAD)
    assert float(rows[2].split(" | ")[2]) > 3 * float(rows[2].split(" | ")[3]), "fp8 took no products of its own"
    monkeypatch.setattr(blocks, "MORE", 0.01)
    assert blocks.row(blocks.Size("tiny", *size), "bf16", torch.device("cpu")).endswith("| FAILED |")
    capsys.readouterr()
