"""Command `deduplicate`: find_duplicates, group_duplicates and remove_duplicates in one go.

Documents -> the documents that are in no group or survive theirs; the others in rejected/, with the survivor and the
similarity. The same documents as the three stages keep one after the other, which is how the graph runs them: there
each table is an output of its own. Here --pairs and --groups publish the tables, and the documents are read once.

    python -m dataprep.deduplicate raw.jsonl unique.jsonl
    python -m dataprep.deduplicate crawl/ unique/ --threshold 0.8 --survivor earliest_url --groups groups/
"""

from dataclasses import dataclass, fields
from typing import Any

from dataprep import find_duplicates as find
from dataprep import group_duplicates as group
from dataprep import remove_duplicates as remove
from dataprep.dedup.clusters import SurvivorRule
from pipelines.command import Documents, Output, Source, Table
from pipelines.config import Count, Share
from pipelines.errors import ConfigError
from pipelines.manifest import Manifest
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = find.VERSION + group.VERSION + remove.VERSION
SHAPED_BY = find.SHAPED_BY


@dataclass(frozen=True, slots=True, kw_only=True)
class DeduplicateConfig(find.FindDuplicatesConfig):
    """What a near-duplicate is, how thoroughly to look, and which of a group stays."""

    survivor: SurvivorRule = "longest"
    """Which document of a group stays: most characters, first in the input, lowest URL, or of the best source; ties by
    doc_id. One of an old crawl comes before all."""
    alarm_share: Share = 0.01
    """Warn of a group that holds more than this share of the documents."""
    alarm_least: Count = 100
    """Never warn of a group with fewer documents than this."""

    @property
    def grouping(self) -> group.GroupDuplicatesConfig:
        """The part for group_duplicates."""
        names = [field.name for field in fields(group.GroupDuplicatesConfig)]
        return group.GroupDuplicatesConfig(**{name: getattr(self, name) for name in names})


def deduplicate(
    config: DeduplicateConfig,
    run: StageRun,
    documents: Documents,
    output: Table,
    pairs: Table | None,
    groups: Table | None,
    save_fingerprints: Output | None,
) -> dict[str, Any]:
    """The three stages; a table that is not asked for stays in scratch."""
    pairs = pairs or _scratch_table(run, "pairs")
    groups = groups or _scratch_table(run, "groups")
    found = find.find_duplicates(config, run, documents, pairs, save_fingerprints)
    made = Source(pairs.folder, Manifest(pairs.files, pairs.counts))
    grouped = group.group_duplicates(config.grouping, run, made, groups)
    remove.remove_duplicates(run, documents, Source(groups.folder, None), output)
    return {**found, **grouped}


def check_config(config: DeduplicateConfig) -> None:
    """Refuse, before the search, a rule that lacks its sources."""
    if config.survivor == "best_source" and not config.sources:
        raise ConfigError("deduplicate.sources: best_source needs the sources, the best first: --sources a b")


def _scratch_table(run: StageRun, name: str) -> Table:
    folder = run.scratch / name
    folder.mkdir(exist_ok=True)
    return Table(folder, folder)


if __name__ == "__main__":
    stage_main("dataprep.deduplicate")
