"""Documents in JSON lines: one object per line with a text, and a URL and a source where it has them."""

from collections.abc import Iterator
from pathlib import Path

from dataprep.sources.passed_names import given_name
from dataprep.sources.records import Broken, Record, Text
from pipelines.jsonl import BrokenLineError, read_jsonl


def read_json_lines(file: Path, text_key: str, url_key: str) -> Iterator[Record]:
    """Every line of a JSONL file, compressed or not. Raises UserError when none of them is a document."""
    for number, row in read_jsonl(file, text_key, url_key):
        if isinstance(row, BrokenLineError):
            yield Broken(f"{file.name}:{number}", row.rule, str(row))
        elif not row["text"].strip():
            yield Broken(row["url"] or f"{file.name}:{number}", "empty_text", f"{len(row['text'])} blank characters")
        else:
            source = row["source"] if row["source"] != file.name else given_name(file.name)
            yield Text(row["url"], row["text"], source)
