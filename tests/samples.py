"""Where tests find their data: a small sample that is always there, and larger real collections where they are.

Both have the same folders (`warc/`, `text/`, `glue/`...). The sample is made by `tests/data/build.py`, once in a
process, from `tests/data` and the project's own articles. The real collections lie in `../shared/data`. A test that
takes the fixture `data` runs with the sample, and by night again with the real collections where they are; none is
skipped.
"""

import functools
import json
import re
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.data.build import build
from tests.nightly import nightly

REAL = Path(__file__).parents[2] / "shared" / "data"
KINDS = ("sample", nightly("real")) if REAL.is_dir() else ("sample",)


@dataclass(frozen=True, slots=True)
class Translation:
    """One text in one language."""

    language: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Data:
    """The sample or the real collections."""

    folder: Path
    real: bool

    @property
    def openwebtext(self) -> Path:
        """The folder with OpenWebText-like documents as JSONL and as a Megatron pair with its vocabulary."""
        (folder,) = (self.folder / "text").glob("openwebtext-*")
        return folder

    def documents(self, number: int | None = None) -> list[str]:
        """The first `number` texts of these documents, or all."""
        (file,) = self.openwebtext.glob("*.decoded.jsonl")
        return [json.loads(line)["text"] for line in file.read_text("utf-8").splitlines()[:number]]

    def translations(self) -> list[Translation]:
        """Texts in many languages, by their path in the archive: in the sample one for each language."""
        (archive,) = (self.folder / "text").glob("*-multilingual.tar.*")
        with tarfile.open(archive) as tar:
            members = sorted((member for member in tar if member.isfile()), key=lambda member: member.name)
            files = {member.name: file.read().decode() for member in members if (file := tar.extractfile(member))}
        return [Translation(_language(name), name, text) for name, text in files.items()]

    def encodings(self) -> list[Path]:
        """Files of text that was decoded wrongly: JSON, lists of cases, but for one line of plain text."""
        return sorted((self.folder / "encodings").iterdir())

    def encoding_cases(self) -> list[str]:
        """The text of each of these cases, as it was found."""
        files = [file for file in self.encodings() if file.suffix == ".json"]
        return [case["original"] for file in files for case in json.loads(file.read_text("utf-8"))]


def _language(name: str) -> str:
    found = re.search(r"_articles/([a-zA-Z-]+)/", name)
    return found[1].lower() if found else Path(name).stem


@functools.cache
def sample() -> Data:
    """The sample, made when a test first needs it and removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="millrace-sample-")
    build(Path(folder.name))
    _FOLDERS.append(folder)
    return Data(Path(folder.name), real=False)


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


def data_of(kind: str) -> Data:
    """The sample or the real collections, by the name in KINDS."""
    return sample() if kind == "sample" else Data(REAL, real=True)


def gpt2() -> Path:
    """The folder of GPT-2's own vocabulary and merges, whole in the sample."""
    return sample().folder / "gpt2-tokenizer"


def at_hand(*rows: tuple[Any, ...]) -> list[Any]:
    """Parameters of a test: rows that begin with a file's path in the data, less those whose file is not at hand.

    Files whose names begin with `sample` are the sample's, and always stay; the others are for the night.
    """
    return [
        pytest.param(*row, id=Path(row[0]).name, marks=() if _of_sample(row[0]) else pytest.mark.nightly)
        for row in rows
        if _of_sample(row[0]) or (REAL / row[0]).exists()
    ]


def real_files(pattern: str) -> list[tuple[str]]:
    """Rows for `at_hand`: the files of the real collections that a pattern finds, none where these are not at hand."""
    return [(file.relative_to(REAL).as_posix(),) for file in sorted(REAL.glob(pattern))]


def find(path: str) -> Path:
    """The file that a row of `at_hand` begins with."""
    return (sample().folder if _of_sample(path) else REAL) / path


def _of_sample(path: str) -> bool:
    return Path(path).name.startswith("sample")


def strings(value: Any) -> Iterable[str]:
    """Every string in a value read from JSON, in any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)
