"""What makes two runs of a stage the same: the identity that scratch, receipts and status go by."""

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.command import Invocation, StageSpec
from pipelines.config import given, to_plain
from pipelines.manifest import content_hash


def stage_identity(spec: StageSpec, call: Invocation) -> dict[str, Any]:
    """All that shapes the output. A section may narrow itself down with an `identity()` method."""
    sections = {
        name: section.identity() if hasattr(section, "identity") else to_plain(section)
        for name, section in call.sections.items()
    }
    return {
        "stage": spec.name,
        "version": spec.version,
        "libraries": {library: importlib.metadata.version(library) for library in spec.shaped_by},
        "parameters": sections,
        "inputs": {name: [content_hash(path) for path in paths] for name, paths in call.inputs.items()},
        "sources": {
            path: content_hash(Path(path))
            for path in sorted(_paths_in(sections))
            if given(path) and Path(path).exists()
        },
        "words": {name: list(word) if isinstance(word, tuple) else word for name, word in call.words.items()},
        "outputs": {name: "".join(path.suffixes) for name, path in call.outputs.items()},
    }


def _paths_in(value: Any) -> set[str]:
    """Values of parameters that are paths of files: their contents shape the output too."""
    if isinstance(value, Mapping):
        return {path for item in value.values() for path in _paths_in(item)}  # pyright: ignore
    if isinstance(value, list):
        return {path for item in value for path in _paths_in(item)}  # pyright: ignore
    return {value} if isinstance(value, str) and ("/" in value or Path(value).exists()) else set()


def fingerprint(identity: Mapping[str, Any]) -> str:
    """16 hex digits of an identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
