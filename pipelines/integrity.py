"""Whether published outputs are what their manifests say, byte for byte: `python -m pipelines check --deep`."""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pipelines import store
from pipelines.documents import is_jsonl
from pipelines.engine import default_workers
from pipelines.errors import UserError
from pipelines.manifest import MANIFEST, FileEntry, Manifest, manifest_path


def damages(outputs: Iterable[Path], workers: int = 0) -> Iterator[str]:
    """One line for each file of these outputs, folders or JSONL files, that is not as its manifest says."""
    # Threads: hashing lets go of the interpreter's lock, and is as fast as the disk.
    with ThreadPoolExecutor(workers or default_workers()) as pool:
        for output in outputs:
            yield from _of_output(output, pool)


def _of_output(output: Path, pool: ThreadPoolExecutor) -> Iterator[str]:
    path = manifest_path(output)
    if not path.exists():
        yield f"{output}: missing {path.name}, so no stage finished it, or it was removed; run its stage again"
        return
    try:
        manifest = Manifest.load(path)
    except UserError as error:
        yield str(error)
        return
    folder = path.parent
    names = list(manifest.files)
    if is_jsonl(output) and output.name not in names:
        yield f"{path}: is not of {output.name}: it names {', '.join(names) or 'nothing'}; make {output.name} again"
        return
    for line in pool.map(_of_file, [folder / name for name in names], manifest.files.values()):
        if line:
            yield line
    if not is_jsonl(output):
        for file in extra_files(folder, names):
            yield f"{file}: extra: {MANIFEST} does not name it; move it away, or make the folder again"


def _of_file(file: Path, entry: FileEntry) -> str | None:
    """What is wrong with a file, if anything."""
    if not file.is_file():
        return f"{file}: missing; make the folder again"
    size = file.stat().st_size
    if size != entry.bytes:
        kind = "truncated" if size < entry.bytes else "too long"
        return f"{file}: {kind}: {size} bytes, its manifest says {entry.bytes}; make the folder again"
    if store.sha256(file) != entry.sha256:
        return f"{file}: changed: its size is right, its sha256 is not that of its manifest; make the folder again"
    return None


def extra_files(folder: Path, names: Sequence[str]) -> list[Path]:
    """Files of a published folder that its manifest does not name, in order."""
    known = {*names, MANIFEST}
    return [file for file in store.list_files(folder) if file.relative_to(folder).as_posix() not in known]
