"""Addresses in place of paths, and what patterns match."""

import glob
from pathlib import Path

import pytest

from pipelines.addresses import address_of, fixed_part, matches, split_hf, split_s3
from pipelines.errors import ConfigError

NAMES = [
    "a.jsonl",
    "b.jsonl",
    "c.txt",
    "d/a.jsonl",
    "d/e/a.jsonl",
    "d/e/[x].jsonl",
    ".h.jsonl",
    "d/.h/a.jsonl",
    "d/+.j",
]


@pytest.mark.parametrize(
    "pattern",
    ["*.jsonl", "?.jsonl", "[ab].jsonl", "[!a].jsonl", "d/*", "*/*.jsonl", "**/*.jsonl", "d/**/a.jsonl", "d/e/[[]x].*"],
)
def test_a_pattern_matches_what_it_does_in_a_folder(pattern: str, tmp_path: Path) -> None:
    """As the standard library's glob: a bucket and a folder give the same files."""
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = glob.glob(pattern, root_dir=tmp_path, recursive=True)  # noqa: PTH207 - what is compared with
    here = {each for each in found if (tmp_path / each).is_file()}
    assert {name for name in NAMES if matches(name, pattern)} == here
    assert here


def test_a_path_made_of_an_address_is_still_one() -> None:
    assert address_of(Path("s3://mill/a/b")) == address_of("s3://mill/a/b") == "s3://mill/a/b"
    assert address_of(Path("hf://datasets/o/n@main/x.jsonl")) == "hf://datasets/o/n@main/x.jsonl"
    assert address_of(Path("s3/a")) is address_of("/s3:/a") is address_of("c:/a") is None


def test_the_parts_of_addresses() -> None:
    assert split_s3("s3://mill/a/b/") == ("mill", "a/b")
    assert split_hf("hf://datasets/o/n/data/x.jsonl") == ("o/n", "main", "data/x.jsonl")
    assert split_hf("hf://datasets/o/n@refs%2Fconvert%2Fparquet") == ("o/n", "refs/convert/parquet", "")
    assert fixed_part("a/b/*.x") == "a/b"
    assert fixed_part("*.x") == ""


@pytest.mark.parametrize("address", ["s3://", "s3://mill", "s3://m/x", "s3://mill/../x", "hf://x/y", "hf://datasets/x"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match=address.replace("?", ".")):
        (split_s3 if address.startswith("s3") else split_hf)(address)
