"""The identity of a run: two runs of a stage with equal identities are the same to scratch, receipts and status."""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.command import Invocation, StageSpec
from pipelines.config import HasIdentity, SourceKind, named_sources, source_files, to_plain
from pipelines.manifest import content_hash, is_published


def stage_identity(spec: StageSpec, call: Invocation) -> dict[str, Any]:
    """Return all that shapes the output: code version, libraries, parameters, and the contents of inputs."""
    import importlib.metadata  # here, since it brings the parser of e-mail, which `--help` need not wait for

    return {
        "stage": spec.name,
        "version": spec.version,
        "libraries": {library: importlib.metadata.version(library) for library in spec.shaped_by},
        "unicode": unicodedata.unidata_version,
        "parameters": {name: section_identity(section) for name, section in call.sections.items()},
        "inputs": {name: [_named_hash(path) for path in paths] for name, paths in call.inputs.items()},
        "sources": [
            source_hash(path, kind)
            for section in call.sections.values()
            for _, path, kind in named_sources(section)
            if path.exists()
        ],
        "words": {name: list(word) if isinstance(word, tuple) else word for name, word in call.words.items()},
        "outputs": {name: "".join(path.suffixes) for name, path in call.outputs.items()},
    }


def section_identity(section: Any) -> dict[str, Any]:
    """Return what of a section shapes the output: all its fields, unless it says otherwise (`HasIdentity`)."""
    return section.identity() if isinstance(section, HasIdentity) else to_plain(section)


def _named_hash(path: Path) -> str:
    """Hash an input's content. A file's name counts too: it is the `source` of documents that name none."""
    return f"{path.name} {content_hash(path)}" if path.is_file() else content_hash(path)


def source_hash(path: Path, kind: SourceKind) -> str:
    """Hash a source's content; of a folder, only the files that count."""
    if not kind.names or path.is_file() or is_published(path):
        return content_hash(path)
    digests = "".join(f"{file.name}\0{content_hash(file)}\n" for file in source_files(path, kind))
    return hashlib.sha256(digests.encode("utf-8", "surrogateescape")).hexdigest()


def fingerprint(identity: Mapping[str, Any]) -> str:
    """Return 16 hex digits of an identity's hash."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
