"""The three commands in a row on small files, for tests of what comes out in the end."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipelines import store
from pipelines.command import StageSpec
from pipelines.stage import run_command


def stage(name: str, *arguments: object) -> int:
    words = ["--workers", "1", "--log-level", "error", *map(str, arguments)]
    return run_command(StageSpec.load(f"dataprep.{name}"), words)


def write_texts(path: Path, texts: Iterable[str], name: str = "mill", **more: str) -> Path:
    rows = ({"text": text, "url": f"http://{name}.test/{number:06d}", **more} for number, text in enumerate(texts))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def deduplicate(
    documents: Path, folder: Path, *, find: Sequence[object] = (), group: Sequence[object] = ()
) -> list[dict[str, Any]]:
    """Find, group and remove in `folder`; the rows that are kept."""
    assert stage("find_duplicates", documents, folder / "pairs", "--stats", folder / "find.json", *find) == 0
    assert stage("group_duplicates", folder / "pairs", folder / "groups", "--stats", folder / "group.json", *group) == 0
    assert stage("remove_duplicates", documents, folder / "groups", folder / "kept.jsonl") == 0
    return read_lines(folder / "kept.jsonl")


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in store.read_lines(path)]


def urls(rows: Iterable[dict[str, Any]]) -> list[str]:
    return [row["url"] for row in rows]


def read_rows(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(file).to_pylist()]


def random_text(generator: random.Random, words: int = 120) -> list[str]:
    return generator.choices([f"word{number}" for number in range(3000)], k=words)


def changed(words: Sequence[str], generator: random.Random, rate: float) -> list[str]:
    return [f"new{generator.randrange(10**6)}" if generator.random() < rate else word for word in words]


def families(seed: int, originals: int, copies: int) -> list[str]:
    """Texts and near-copies of them in which more and more words differ, in mixed order."""
    generator = random.Random(seed)
    texts: list[list[str]] = []
    for _ in range(originals):
        original = random_text(generator)
        texts.append(original)
        texts += [changed(original, generator, generator.choice([0, 0.01, 0.03, 0.05, 0.08])) for _ in range(copies)]
    generator.shuffle(texts)
    return [" ".join(text) for text in texts]
