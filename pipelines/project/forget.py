"""What holds a page, or was made from it: every shard, checkpoint, fingerprint and export, and what only names it.

`python -m pipelines forget URL|DOC_ID` prints `holders` and adds the page to the list of `download.forget`. It deletes
nothing: the next `dvc repro` makes all of these without the page.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipelines.documents import REJECTED
from pipelines.project.explain import Trail
from pipelines.project.graph import GraphStage

DEFAULT_LIST = Path("inputs/forget.txt")
_TEXT_SUFFIXES = (".json", ".jsonl", ".html", ".md", ".csv", ".tsv", ".txt", ".yaml")
_LARGEST_TEXT = 1 << 28
"""Bytes of a text file that is searched; larger ones are data of another kind."""
_TABLES = ("*.parquet", "part-*.arrow")
_REPORTS = Path("reports")

Holder = tuple[str, Path, str]
"""A stage, a file or folder, and what it has of the page."""


def holders(trail: Trail, stages: Sequence[GraphStage]) -> Iterator[Holder]:
    """Yield everything that holds a page, in the order of the stages; afterwards `trail` has its URLs and ids.

    A stage without tables of documents (a tokenizer, a model, its scores) holds what was made from the page if it
    reads an output that holds the page itself, or was made from it.
    """
    found = Counter((stage.name, out, file) for stage, out, file, _ in trail.rows())
    kept = {out for _, out, file in found if file.parent.name != REJECTED}
    texts = [text.encode() for text in sorted(trail.urls | {doc_id.hex() for doc_id in trail.ids})]
    for stage in stages:
        files = {file: number for (name, _, file), number in found.items() if name == stage.name}
        for file in sorted(files):
            what = "rejected rows" if file.parent.name == REJECTED else "tokens" if file.suffix == ".arrow" else "rows"
            yield stage.name, file, f"{what}: {files[file]}"
            yield from ((stage.name, segment, "the page as it was sent") for segment in _segments(file, stage))
        sources = [dep for dep in stage.deps if any(dep == out or out in dep.parents for out in kept)]
        if sources and not any(_has_tables(out) for out in stage.outs):
            kept.update(stage.outs)
            for out in (out for out in stage.outs if out.exists()):
                names = ", ".join(map(str, sources))
                for part in sorted(out.glob("step-*")) or [out]:
                    yield stage.name, part, f"made from {names}"
        elsewhere = [*stage.outs, *stage.metrics, *([_REPORTS] if stage.name == "report" else [])]
        for file in sorted({file for place in elsewhere for file in _texts_below(place)} - files.keys()):
            if any(text in file.read_bytes() for text in texts):
                yield stage.name, file, "names it"


def _has_tables(out: Path) -> bool:
    return any(next(out.rglob(pattern), None) for pattern in _TABLES)


def _segments(file: Path, stage: GraphStage) -> Iterator[Path]:
    """Yield the WARC files of the range that a part of the fetch log is about."""
    if stage.name == "download" and file.parent.name != REJECTED:
        name = file.stem.replace("fetch", "segment")
        for out in stage.outs:
            yield from sorted(out.glob(f"{name}*.warc.gz"))


def _texts_below(place: Path) -> Iterator[Path]:
    files = [place] if place.is_file() else place.rglob("*")
    for file in files:
        if file.suffix in _TEXT_SUFFIXES and file.is_file() and file.stat().st_size <= _LARGEST_TEXT:
            yield file


def sources(stages: Sequence[GraphStage]) -> Iterator[Path]:
    """Yield what no stage changes and may hold a page: the sources of `urls` and `download`, and the fetch store."""
    made = {out for stage in stages for out in stage.outs}
    for stage in stages:
        if stage.name in ("urls", "download"):
            yield from (dep for dep in stage.deps if dep not in made and _is_given(dep))
        if stage.name == "download":
            yield from (store for out in stage.outs[:1] if (store := out.parent / ".fetch_store").exists())


def _is_given(path: Path) -> bool:
    return path.exists() and not (path.is_file() and path.stat().st_size == 0)
