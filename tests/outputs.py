"""Outputs as a stage leaves them, for tests in which they are in the way."""

from pathlib import Path

from pipelines import store
from pipelines.manifest import Counts, FileEntry, Manifest, manifest_path


def published(output: Path, **files: str) -> Path:
    """Make a folder, or a JSONL file with its companions, that holds these texts, and its manifest."""
    folder = output if not output.suffix else output.parent
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    entries = {name: FileEntry(None, len(text), store.sha256(folder / name)) for name, text in files.items()}
    Manifest(entries, Counts()).save(manifest_path(output))
    return output
