"""Fixtures of the data stages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dataprep.corpora import TEXTS, run, write_jsonl
from tests.dataprep.kernels import KERNELS, using


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A tokenizer folder with 300 entries, trained on the small texts."""
    source = write_jsonl(tmp_path / "train.jsonl", TEXTS)
    assert run("dataprep.tokenizer", source, tmp_path / "tokenizer", "--vocab-size", 300) == 0
    return tmp_path / "tokenizer"


@pytest.fixture(scope="module", params=KERNELS)
def each_kernel(request: pytest.FixtureRequest) -> Iterator[str]:
    """The module's tests once with NumPy, and once with every native kernel that this machine can run."""
    with using(request.param):
        yield request.param
