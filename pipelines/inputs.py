"""Opens the inputs of a stage: published folders with their manifests, and anything that holds documents."""

import logging
from collections.abc import Sequence
from pathlib import Path

from pipelines import documents as formats
from pipelines import store
from pipelines.command import Documents, Output, Part, Source
from pipelines.errors import UserError, describe
from pipelines.manifest import Counts, is_published, load_checked
from pipelines.run import StageRun

logger = logging.getLogger(__name__)


def open_source(run: StageRun, path: Path) -> Source:
    """A path with its manifest, if it has one; its files' digests are then known without hashing."""
    manifest = load_checked(path) if is_published(path) else None
    if manifest:
        run.know(path, manifest)
    return Source(path, manifest)


def open_documents(run: StageRun, name: str, paths: Sequence[Path]) -> Documents:
    """Shards of all `paths` in order; JSONL is converted in scratch first, its broken lines counted."""
    files: list[Path] = []
    for number, path in enumerate(paths):
        if path.is_dir() and formats.part_files(path):
            run.know(path, load_checked(path))
            files += formats.part_files(path)
            continue
        sources = formats.jsonl_files(path) if path.is_dir() else [path]
        if path.is_file() and not formats.is_jsonl(path) and path.stat().st_size:
            raise UserError(f"{path}: not JSON lines by its name (.jsonl, .json or .ndjson, also .gz, .zst, .xz)")
        if not sources:
            raise UserError(f"{path}: holds neither document shards (part-*.parquet) nor JSONL files")
        files += _ingest(run, f"{name}-{number}", sources)
    if not any(formats.count_rows(file) for file in files):
        named = ", ".join(str(path) for path in paths)
        raise UserError(f"{named}: holds no document; nothing to do (if a stage made it, its rejected/ says why)")
    return Documents(tuple(Part(f"part-{i:05d}", (file,)) for i, file in enumerate(files)))


def _ingest(run: StageRun, folder: str, sources: Sequence[Path]) -> list[Path]:
    target = Output(run.scratch / folder, Path(folder))
    parts = [Part(f"file-{i:05d}", (source,)) for i, source in enumerate(sources)]
    counts = run.map(ingest_part, parts, len(sources) == 1, into=target)
    if formats.UNREADABLE_FILE in counts.rejected:
        unreadable = formats.rejected_rows(target.folder, formats.UNREADABLE_FILE)
        if not counts.rows_out:
            raise UserError(f"{sources[0].parent / unreadable[0][0]}: {unreadable[0][1]}")
        logger.warning("%s: %d file(s) could not be read: %s", run.name, len(unreadable), describe(unreadable))
    first_output = next(iter(run.outputs.values()))
    for rule, number in counts.rejected.items():
        logger.warning("%s: %d broken input lines (%s)", run.name, number, rule)
        first_output.counts.rows_in += number
        first_output.counts.reject(rule, number)
    for file, entry in target.files.items():
        if file.startswith(formats.REJECTED):
            name = f"{formats.REJECTED}/input-{folder}-{Path(file).name}"
            store.link_or_copy(target.folder / file, first_output.folder / name)
            first_output.files[name] = entry
    return sorted(target.folder / file for file in target.files if "/" not in file)


def ingest_part(part: Part, folder: Path, alone: bool) -> Counts:
    """One JSONL file, alone or one of a folder, as document shards."""
    return formats.ingest_jsonl(part.file, folder, part.name, alone=alone)
