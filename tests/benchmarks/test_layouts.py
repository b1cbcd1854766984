"""The layouts on GPUs: what this torch cannot do is told from what failed."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import layouts
from pipelines.errors import UserError


def test_a_schedule_that_this_torch_cannot_do_is_refused_and_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def run(job: Any) -> dict[str, Any]:
        if job.parallel.tp > 1:
            raise UserError("training process 1 was killed")
        return {}

    monkeypatch.setattr(layouts, "shards", lambda folder, *_: folder)
    monkeypatch.setattr(layouts, "run", run)
    monkeypatch.setattr(layouts, "compared", lambda *_: ("0 | 0 | 0", True))
    monkeypatch.setattr("trainer.launch._count_gpus", lambda: 4)
    monkeypatch.setattr("trainer.config._torch_release", lambda: (2, 11))
    rows = layouts.check_parity(tmp_path, 4, layouts.CASES)
    ends = {case.name: row.split(" | ")[-1].strip(" |") for case, row in zip(layouts.CASES, rows, strict=True)}
    split = {case.name for case in layouts.CASES if case.parallel.get("schedule") in ("zbv", "dualpipev")}
    split.add("pipeline 2 x data 2, interleaved zero bubble")
    assert {name for name, end in ends.items() if end == "refused on this torch"} == split
    assert {name for name, end in ends.items() if end == "FAILED"} == {
        case.name for case in layouts.CASES if case.parallel.get("tp", 1) > 1
    } - split
    failed = sum(end == "FAILED" for end in ends.values())
    total = len(layouts.CASES)
    assert layouts.counted(rows) == (
        f"{total} cases: {total - len(split) - failed} ok, {len(split)} refused on this torch, {failed} FAILED."
    )
    monkeypatch.setattr("trainer.config._torch_release", lambda: (2, 13))
    assert "refused" not in "".join(layouts.check_parity(tmp_path, 4, layouts.CASES))
    capsys.readouterr()
