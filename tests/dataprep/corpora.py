"""Small texts that are hard to tokenize, and the commands that tokenize them, in this process."""

import json
from pathlib import Path

from pipelines.command import StageSpec
from pipelines.stage import run_command

TEXTS = [
    f"The wheel of mill {i} turns: it's grinding, déjà vu, 日本語, 🙂!\n\n  Tabs\tand 12,345 more." for i in range(40)
]


def write_jsonl(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def run(module: str, *arguments: object) -> int:
    return run_command(StageSpec.load(module), [*map(str, arguments), "--log-level", "error"])
