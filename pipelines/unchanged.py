"""Compares files with the digests in their manifest: a flipped bit leaves the size of a file, and often its format."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipelines import store
from pipelines.engine import default_workers
from pipelines.errors import UserError
from pipelines.manifest import FileEntry, Manifest, load_checked
from pipelines.progress import track


def require_unchanged(folder: Path, suffix: str) -> Manifest:
    """Return the manifest of `folder` after comparing every file whose name ends so with its digest.

    For stages that trust what they read, before they begin. Raises UserError, naming the first file that differs, or if
    `load_checked` does.
    """
    manifest = load_checked(folder)
    files = {folder / name: entry for name, entry in manifest.files.items() if name.endswith(suffix)}
    # Threads: hashing releases the interpreter's lock, and is as fast as the disk.
    with ThreadPoolExecutor(default_workers()) as pool:
        found = pool.map(damage_of_file, files, files.values())
        for problem in track(found, what=f"compare {folder} with its manifest", total=len(files), unit="files"):
            if problem:
                raise UserError(problem)
    return manifest


def damage_of_file(file: Path, entry: FileEntry) -> str | None:
    """Return what is wrong with a file, or None."""
    if not file.is_file():
        return f"{file}: missing; make the folder again"
    size = file.stat().st_size
    if size != entry.bytes:
        kind = "truncated" if size < entry.bytes else "too long"
        return f"{file}: {kind}: {size} bytes, its manifest says {entry.bytes}; make the folder again"
    if store.sha256(file) != entry.sha256:
        return f"{file}: changed: its size is right, its sha256 is not that of its manifest; make the folder again"
    return None
