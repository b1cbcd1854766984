"""Documents from the Hugging Face Hub: selected files of a data set at a pinned commit, as documents-hub-NNNNN.*.

Files in the local cache are taken from there; the others are downloaded into scratch, one by one, and a resumed
run continues each where the last one stopped. Every file is checked against the digest that the Hub lists.
"""

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dataprep.download.prepared import link_records
from dataprep.readers.kinds import kind_of
from dataprep.readers.text import plain_suffix
from pipelines import store
from pipelines.command import Output, Part
from pipelines.errors import ConfigError, UserError
from pipelines.hub import HubDataset, HubFile, check_commit
from pipelines.manifest import Counts
from pipelines.run import StageRun


@dataclass(frozen=True, slots=True)
class HubSource:
    """The files to take from the Hub."""

    repository: str
    """A data set, such as Skylion007/openwebtext."""
    revision: str
    """Its commit, in full."""
    patterns: tuple[str, ...]
    """Patterns of its files, such as plain_text/*.parquet."""


def download_hub(run: StageRun, source: HubSource, output: Output) -> int:
    """Take the selected files of a data set into the output; return how many there are."""
    check_commit("download.hub_revision", source.repository, source.revision)
    if not source.patterns:
        raise ConfigError("download.hub_files: empty; say which files of the data set, such as plain_text/*.parquet")
    dataset = HubDataset(source.repository, source.revision)
    folder = run.scratch / "hub"
    plans = _plan(dataset, source.patterns, folder)
    parts = [Part(plan.stem, (plan,)) for plan in plans]
    run.map(take_hub_file, parts, dataset, str(folder), into=output)
    return len(parts)


def _plan(dataset: HubDataset, patterns: tuple[str, ...], folder: Path) -> list[Path]:
    """Write which files to take, as one JSON file each; a resumed run does not ask the Hub again."""
    done = folder / "planned"
    if not done.exists():
        files = dataset.files(patterns)
        _refuse_unreadable(dataset, files)
        _refuse_full_disk(dataset, files, folder)
        for number, file in enumerate(files):
            store.write_json(folder / f"documents-hub-{number:05d}.json", dataclasses.asdict(file))
        store.write_json(done, len(files))
    return sorted(folder.glob("documents-hub-*.json"))


def _refuse_unreadable(dataset: HubDataset, files: list[HubFile]) -> None:
    for file in files:
        if not _kind(file):
            raise UserError(
                f"{dataset}: {file.path}: no kind of source by its name; select fewer files with download.hub_files"
            )


def _kind(file: HubFile) -> str:
    name = PurePosixPath(file.path)
    # OpenWebText names its tars by their compression only (urlsf_subset00.xz).
    return "tar" if name.suffix in store.COMPRESSED and not plain_suffix(name.name) else kind_of(Path(name))[0]


def _refuse_full_disk(dataset: HubDataset, files: list[HubFile], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{dataset}: {needed / 1e9:.1f} GB to download, {free / 1e9:.1f} GB free in {folder}; free some space"
        )


def take_hub_file(part: Part, folder: Path, dataset: HubDataset, partials: str) -> Counts:
    """Take one file of the data set, under the names that `extract` looks for."""
    file = HubFile(**store.read_json(part.file))
    partial = Path(partials) / f"{part.name}.partial"
    counts = link_records(dataset.take(file, partial), file.path, _kind(file), folder / part.name)
    partial.unlink(missing_ok=True)
    return counts
