"""Small corpora: texts that are hard to tokenize, documents, the commands that read them, and what these wrote."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.command import StageSpec
from pipelines.documents import read_rows
from pipelines.stage import run_command

TEXTS = [
    f"The wheel of mill {i} turns: it's grinding, déjà vu, 日本語, 🙂!\n\n  Tabs\tand 12,345 more." for i in range(40)
]


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def write_documents(path: Path, texts: Sequence[str]) -> Path:
    """JSON lines with a text and a URL each; the URL ends in the number of the text."""
    documents = ({"text": text, "url": f"http://mill.test/{number}"} for number, text in enumerate(texts))
    path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return path


def run(module: str, *arguments: object) -> int:
    return run_command(StageSpec.load(module), [*map(str, arguments), "--log-level", "error"])


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file in a folder, by its path there."""
    return {file.relative_to(folder).as_posix(): store.sha256(file) for file in store.list_files(folder)}


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the Parquet files in a folder, in order of name."""
    return [row for file in sorted(folder.glob("*.parquet")) for row in read_rows(file)]
