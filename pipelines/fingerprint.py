"""The identity of a run: two runs of a stage with equal identities are the same to scratch, receipts and status."""

import hashlib
import json
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipelines.command import Invocation, StageSpec
from pipelines.config import HasIdentity, Kind, SourceKind, named_sources, source_files, values_of
from pipelines.manifest import content_hash, is_published

IDENTITY = "identity.json"
"""The file of the identity in a run's scratch."""
PUBLISHED = "published"
"""Key of an identity: parameters that only say what of a finished run is published. No part of the fingerprint."""


def stage_identity(spec: StageSpec, call: Invocation) -> dict[str, Any]:
    """Return all that shapes the output: code version, libraries, parameters, and the contents of inputs."""
    import importlib.metadata  # here, since it brings the parser of e-mail, which `--help` need not wait for

    published = {name: values_of(section, Kind.PUBLISHES) for name, section in call.sections.items()}
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
        **({"limit": call.options.limit} if call.options.limit else {}),
        "outputs": {name: "".join(path.suffixes) for name, path in call.outputs.items()},
        **({PUBLISHED: published} if any(published.values()) else {}),
    }


def section_identity(section: Any) -> dict[str, Any]:
    """Return what of a section shapes the output: its fields of that kind, unless it says otherwise (`HasIdentity`)."""
    return section.identity() if isinstance(section, HasIdentity) else values_of(section, Kind.SHAPES)


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
    run = {key: value for key, value in identity.items() if key != PUBLISHED}
    return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]
