"""A window of steps under torch.profiler: one trace per process, of these steps and no others."""

import dataclasses
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import small
from tests.trainer.test_loop import process
from trainer.pretrain import Job


def profiled(job: Job, first: int, last: int) -> None:
    from trainer.loop import train
    from trainer.pretrain import prepare
    from trainer.profiling import Profiler

    train(prepare(process(), job), [Profiler(first, last, job.scratch / "profile")])


@pytest.mark.parametrize(("first", "last"), [(1, 1), (2, 4)])
def test_each_process_has_a_trace_of_the_steps_asked_for(workers: Any, tmp_path: Path, first: int, last: int) -> None:
    job = Job(
        config=dataclasses.replace(small.PRETRAIN, steps=5),
        model=small.MODEL,
        parallel=small.TWO,
        train=small.write_stream(tmp_path / "train"),
        val=tmp_path / "train",
        data={"train": "a", "val": "b"},
        scratch=tmp_path,
    )
    workers.run(2, profiled, job, first, last)
    names = [f"steps-{first}-{last}-rank-{rank}.json.gz" for rank in range(2)]
    assert sorted(path.name for path in (tmp_path / "profile").iterdir()) == names
    for name in names:
        events = json.loads(gzip.decompress((tmp_path / "profile" / name).read_bytes()))["traceEvents"]
        counts = Counter(event.get("name") for event in events)
        assert counts["aten::_fused_adamw_"] == 2 * (last - first + 1), "two groups of weights are updated in a step"
