"""Stage `clean` (placeholder to try the runner)."""
from dataclasses import dataclass
from pathlib import Path
from pipelines.command import Documents, Output, Part
from pipelines.stage import StageRun, stage_main
from pipelines.config import Count
from pipelines.documents import ShardWriter, read_rows
from pipelines.manifest import Counts
VERSION = 1
SHAPED_BY = ("ftfy", "langdetect", "pyarrow")

@dataclass(frozen=True, slots=True, kw_only=True)
class CleanConfig:
    """x"""
    min_tokens: Count = 128
    """Fewest tokens of a document."""

def clean(config: CleanConfig, run: StageRun, documents: Documents, output: Output) -> None:
    run.map(clean_part, documents.parts, config, into=output)

def clean_part(part, folder: Path, config: CleanConfig) -> Counts:
    with ShardWriter(folder, part.name) as shard:
        for row in read_rows(part.file):
            n = len(row["text"].split())
            if n < config.min_tokens: shard.reject(row, "too_short", n)
            else: shard.keep(row)
    return shard.counts

if __name__ == "__main__":
    stage_main("dataprep.clean")
