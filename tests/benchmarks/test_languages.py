"""Texts in many languages: two halves that have no source in common."""

import io
import json
import tarfile
from pathlib import Path

from benchmarks.languages import collections

GUIDES = [f"guide-{number}.md" for number in range(12)]
PAGES = 60


def write_sources(folder: Path) -> None:
    """Guides in two languages and web pages, whose paragraphs begin with the name of their source."""
    web = folder / "text" / "openwebtext-1000" / "openwebtext-1000.decoded.jsonl"
    web.parent.mkdir(parents=True)
    web.write_text("".join(json.dumps({"text": document(f"page-{number}")}) + "\n" for number in range(PAGES)))
    with tarfile.open(folder / "text" / "opensource-guide-multilingual.tar.gz", "w:gz") as tar:
        for name in [f"_articles/{place}{guide}" for place in ("", "de/") for guide in GUIDES]:
            content = document(Path(name).name).encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def document(source: str) -> str:
    return "\n\n".join(f"<{source}> {'The mill turned at dawn. ' * 10}" for _ in range(5))


def sources(texts: list[str]) -> set[str]:
    return {part.partition(">")[0] for text in texts for part in text.split("<")[1:]}


def test_halves_share_no_source_in_any_language_piece_or_mixture(tmp_path: Path) -> None:
    write_sources(tmp_path)
    halves = [collections(tmp_path, half) for half in (0, 1)]
    found = [sources([text for texts in half.values() for text in texts]) for half in halves]
    assert not found[0] & found[1]
    assert found[0] | found[1] == {*GUIDES, *(f"page-{number}" for number in range(PAGES))}
    assert all({"Open Source Guides, pieces", "mixtures", "OpenWebText"} <= half.keys() for half in halves)
    assert all(len(half["Open Source Guides"]) == 2 * len(sources(half["Open Source Guides"])) for half in halves)
