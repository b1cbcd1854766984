"""Documents annotated with what every rule measured, and judged from that with other thresholds.

Columns made by `clean.annotate`: `rule_<name>` for each rule, the language, and the edits. What shaped them (edits,
detector, tokenizer) is noted in the metadata of the column `repairs`; thresholds can be chosen anew, these cannot.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dataprep.cleaning.checks import Check, make_checks
from dataprep.cleaning.config import CleanConfig
from dataprep.cleaning.decisions import Cleaner, active, keep_or_reject
from dataprep.cleaning.edits import REPAIRS, count_edits, edit_fields
from dataprep.cleaning.token_floor import TokenFloor
from pipelines.config import named_sources
from pipelines.documents import Row, ShardWriter
from pipelines.errors import ConfigError
from pipelines.fingerprint import source_hash

_SETTINGS = b"clean"
_SOURCES = ("tokenizer", "language_model", "bad_words")


class Annotator:
    """Edits documents and writes down all that rules measure in them."""

    def __init__(self, config: CleanConfig) -> None:
        self._cleaner = Cleaner(config)
        columns = [field for check in self._cleaner.checks for field in check.fields]
        self.fields = [*_noted(self._cleaner.fields, config), *columns]

    def decide(self, row: Row, shard: ShardWriter) -> None:
        """Keep a document with its columns."""
        made, document = self._cleaner.edit(row, shard.counts)
        for check in self._cleaner.checks:
            made |= check.columns(document)
        shard.keep(made)


class AnnotationJudge:
    """Judges annotated documents by their columns."""

    def __init__(self, config: CleanConfig) -> None:
        self._config = config
        self._active = active(make_checks(config, TokenFloor(None)))
        self.fields = edit_fields(config)

    def decide(self, row: Row, shard: ShardWriter) -> None:
        """Keep or reject a document."""
        count_edits(row, shard.counts)
        keep_or_reject(self._config, self._active, (row, row), lambda check: check.rejects_row(row), shard)


def check_annotations(config: CleanConfig, file: Path, checks: Sequence[Check]) -> None:
    """ConfigError when `file` lacks a column that a rule is judged by, or was annotated with other edits."""
    schema = pq.read_schema(str(file))
    if REPAIRS not in schema.names or not (schema.field(REPAIRS).metadata or {}).get(_SETTINGS):
        raise ConfigError(
            "clean.from_annotations: the input has no annotations; give a folder made with --annotate (JSONL does not "
            "keep how the columns were made)"
        )
    needed = [*edit_fields(config), *(field for check in checks for field in check.fields)]
    for field in needed:
        if field.name not in schema.names:
            raise ConfigError(f"clean.from_annotations: {file.name} has no column {field.name}; annotate again")
    _check_settings(config, json.loads(schema.field(REPAIRS).metadata[_SETTINGS]))


def _check_settings(config: CleanConfig, annotated: dict[str, Any]) -> None:
    """ConfigError when what shaped the columns is asked for otherwise; a source or language not asked for is not."""
    for name, value in _settings(config).items():
        if value == annotated[name] or (not value and name in _free_to_leave_out(config)):
            continue
        before, now = annotated[name], value
        if isinstance(value, dict):
            now = {field: each for field, each in value.items() if each != annotated[name][field]}
            before = {field: annotated[name][field] for field in now}
        values = f"with {json.dumps(before)}, now it is {json.dumps(now)}"
        if name in _SOURCES:
            file = f"with another file (sha256 {before[:8]}...)" if before else "without a file"
            now = f"it is {getattr(config, name)} (sha256 {value[:8]}...)" if value else "there is none"
            values = f"{file}, now {now}"
        raise ConfigError(f"clean.{name}: the annotations were made {values}; give the same, or annotate again")


def _free_to_leave_out(config: CleanConfig) -> set[str]:
    """Settings that need not be given again: the columns have it all, but not what the token floor counted."""
    return {*_SOURCES, "languages"} - ({"tokenizer"} if config.min_tokens else set())


def _settings(config: CleanConfig) -> dict[str, Any]:
    """What shapes the columns, sources by their contents."""
    sources = {name: source_hash(path, kind) for name, path, kind in named_sources(config)}
    return {**config.shaping(), **{name: sources.get(name, "") for name in _SOURCES}}


def _noted(fields: Sequence[pa.Field], config: CleanConfig) -> list[pa.Field]:
    """The columns, `repairs` with a note of what shaped them."""
    note = {_SETTINGS: json.dumps(_settings(config), sort_keys=True).encode()}
    return [field.with_metadata(note) if field.name == REPAIRS else field for field in fields]
