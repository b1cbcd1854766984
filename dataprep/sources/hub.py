"""Documents from the Hugging Face Hub: chosen files of a data set at a pinned commit, as documents-hub-NNNNN.*.

What is in the local cache is taken from there; the rest comes straight into scratch, file by file, each
going on where a killed run left it. Every file is checked against the digest that the Hub lists.
"""

import dataclasses
import shutil
from pathlib import Path, PurePosixPath
from typing import Protocol

from dataprep.sources.finding import kind_of
from dataprep.sources.hub_client import HubDataset, HubFile, check_commit
from dataprep.sources.prepared import pass_records
from dataprep.sources.text_reader import plain_suffix
from pipelines import store
from pipelines.command import Output, Part
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun


class HubConfig(Protocol):
    """What a configuration says of the Hub."""

    @property
    def hub_repository(self) -> str:
        """A data set, such as Skylion007/openwebtext; empty for none."""
        ...

    @property
    def hub_revision(self) -> str:
        """Its commit, in full."""
        ...

    @property
    def hub_files(self) -> tuple[str, ...]:
        """Patterns of its files, such as plain_text/*.parquet."""
        ...


def download_hub(run: StageRun, config: HubConfig, output: Output) -> int:
    """Take the wanted files of a data set into the output; their number, 0 without a data set."""
    if not config.hub_repository:
        return 0
    check_commit("download.hub_revision", config.hub_repository, config.hub_revision)
    if not config.hub_files:
        raise ConfigError("download.hub_files: empty; say which files of the data set, such as plain_text/*.parquet")
    dataset = HubDataset(config.hub_repository, config.hub_revision)
    folder = run.scratch / "hub"
    plans = _plan(dataset, config.hub_files, folder)
    parts = [Part(plan.stem, (plan,)) for plan in plans]
    run.map(take_hub_file, parts, dataset, str(folder), into=output)
    return len(parts)


def _plan(dataset: HubDataset, patterns: tuple[str, ...], folder: Path) -> list[Path]:
    """What to take, one JSON file per file of the data set; a resumed run does not ask the Hub again."""
    done = folder / "planned"
    if not done.exists():
        files = dataset.files(patterns)
        _refuse_what_cannot_be_read(dataset, files)
        _refuse_full_disk(dataset, files, folder)
        for number, file in enumerate(files):
            store.write_json(folder / f"documents-hub-{number:05d}.json", dataclasses.asdict(file))
        store.write_json(done, len(files))
    return sorted(folder.glob("documents-hub-*.json"))


def _refuse_what_cannot_be_read(dataset: HubDataset, files: list[HubFile]) -> None:
    for file in files:
        if not _kind(file):
            raise UserError(f"{dataset}: {file.path}: no kind of source by its name; narrow down download.hub_files")


def _kind(file: HubFile) -> str:
    name = PurePosixPath(file.path)
    # A name that only says how its file is compressed is what OpenWebText calls its tars.
    return "tar" if name.suffix in store.COMPRESSED and not plain_suffix(name.name) else kind_of(Path(name))[0]


def _refuse_full_disk(dataset: HubDataset, files: list[HubFile], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    needed, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"{dataset}: {needed / 1e9:.1f} GB to download, {free / 1e9:.1f} GB free in {folder}; make room"
        )


def take_hub_file(part: Part, folder: Path, dataset: HubDataset, partials: str) -> Counts:
    """One file of the data set, under the names that `extract` looks for."""
    file = HubFile(**store.read_json(part.file))
    partial = Path(partials) / f"{part.name}.partial"
    counts = pass_records(dataset.take(file, partial), file.path, _kind(file), folder / part.name)
    partial.unlink(missing_ok=True)
    return counts
