"""Decisions on documents: edit, then judge by the rules in order; the first that fails is the reason.

A document can be decided on directly, or annotated with what every rule measures in it (`clean.annotate`) and judged
later with other thresholds (`clean.from_annotations`). Annotations are columns: `rule_<name>` for each rule, the
language, and the edits. The settings that shaped them (edits, detector, tokenizer) are recorded in the metadata of the
column `repairs`. They cannot be changed later; thresholds can.
"""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from dataprep.clean.config import CleanConfig
from dataprep.clean.edits import REPAIRS, Edits, count_edits, count_lines, edit_columns, edit_fields
from dataprep.clean.language.audit import Languages
from dataprep.clean.rules.document import DocumentText
from dataprep.clean.rules.table import Check, active, make_checks
from dataprep.clean.token_floor import TokenFloor
from dataprep.clean.waterfall import rejected_bytes
from dataprep.text.tokenizers import TextEncoder
from pipelines.config import given, named_sources
from pipelines.documents import Row, ShardWriter, read_schema
from pipelines.errors import ConfigError
from pipelines.fingerprint import source_hash
from pipelines.manifest import Counts

_SETTINGS = b"clean"
_SOURCES = ("tokenizer", "language_model", "bad_words")
_LATER_SOURCES = ("rules", "quality")
"""Sources of which annotations say nothing where there are none, since those of earlier versions do not know them."""


class Decider(Protocol):
    """Decides on documents one by one, and writes each to the kept or the rejected rows."""

    fields: list[pa.Field]
    """Columns of documents beyond the usual ones."""

    def decide(self, row: Row, shard: ShardWriter) -> None:
        """Keep or reject a document."""
        ...


def make_decider(config: CleanConfig) -> Decider:
    """Return the decider that a configuration asks for."""
    if config.from_annotations:
        return AnnotationJudge(config)
    return Annotator(config) if config.annotate else Cleaner(config)


class Cleaner:
    """Edits documents and judges their texts."""

    def __init__(self, config: CleanConfig) -> None:
        self.fields = edit_fields(config)
        self.checks = make_checks(config, _token_floor(given(config.tokenizer)))
        self._active = active(self.checks)
        self._config = config
        self._edits = Edits(config)
        self._languages = Languages(config)

    def decide(self, row: Row, shard: ShardWriter) -> None:
        """Edit a document, then keep or reject it."""
        edited_row, document = self.edit(row, shard.counts)
        _keep_or_reject(self._config, self._active, (row, edited_row), lambda check: check.rejects(document), shard)

    def edit(self, row: Row, counts: Counts) -> tuple[Row, DocumentText]:
        """Return the edited document, as a row and as the text that rules measure."""
        edited = self._edits.apply(row["text"])
        self._edits.check(row, counts)
        edited_row = {**row, "text": edited.text, **edit_columns(edited)}
        count_edits(edited_row, counts)
        count_lines(edited, counts)
        text = row["text"] if self._config.language_of_original else edited.text
        language = functools.partial(self._languages.detect, text, row, counts)
        removed = edited.cut.removed
        return edited_row, DocumentText(
            edited.text, row["text"], uncut=edited.uncut, removed=removed, language=language, row=row
        )


@functools.cache
def _token_floor(tokenizer: Path | None) -> TokenFloor:
    """Load the tokenizer once per process: GPT-2's vocabulary takes 0.4 s."""
    return TokenFloor(TextEncoder.load(tokenizer) if tokenizer else None)


class Annotator:
    """Edits documents and records all that rules measure in them."""

    def __init__(self, config: CleanConfig) -> None:
        self._cleaner = Cleaner(config)
        columns = {field.name: field for check in self._cleaner.checks for field in check.fields}
        self.fields = [*_with_settings(self._cleaner.fields, config), *columns.values()]

    def decide(self, row: Row, shard: ShardWriter) -> None:
        """Keep a document with its columns."""
        edited_row, document = self._cleaner.edit(row, shard.counts)
        for check in self._cleaner.checks:
            edited_row |= check.columns(document)
        shard.keep(edited_row)


class AnnotationJudge:
    """Judges annotated documents by their columns."""

    def __init__(self, config: CleanConfig) -> None:
        self._config = config
        self._active = active(make_checks(config, TokenFloor(None)))
        self.fields = edit_fields(config)

    def decide(self, row: Row, shard: ShardWriter) -> None:
        """Keep or reject a document."""
        count_edits(row, shard.counts)
        _keep_or_reject(self._config, self._active, (row, row), lambda check: check.rejects_row(row), shard)


def _keep_or_reject(
    config: CleanConfig,
    checks: Sequence[Check],
    before_and_after: tuple[Row, Mapping[str, Any]],
    rejects: Callable[[Check], str | None],
    shard: ShardWriter,
) -> None:
    """Reject the unedited document by the first check that rejects it, or keep the edited one."""
    row, edited_row = before_and_after
    for check in checks:
        value = rejects(check)
        if value is not None:
            extra = {"text": row["text"]} if config.rejected_text else {}
            shard.reject(row, check.name, value, threshold=check.threshold, **extra)
            shard.counts.total(rejected_bytes(check.name), len(edited_row["text"].encode()))
            return
    shard.keep(edited_row)


def rejected_fields(config: CleanConfig) -> list[pa.Field]:
    """Return the columns of rejected rows beyond the usual ones."""
    names = ["threshold", *(["text"] if config.rejected_text else [])]
    return [pa.field(name, pa.string()) for name in names]


def check_annotations(config: CleanConfig, file: Path, checks: Sequence[Check]) -> None:
    """Raise ConfigError if `file` lacks a column that `checks` need, or was annotated with other edits."""
    schema = read_schema(file)
    if REPAIRS not in schema.names or not (schema.field(REPAIRS).metadata or {}).get(_SETTINGS):
        raise ConfigError(
            "clean.from_annotations: the input has no annotations; give a folder made with --annotate (JSONL does not "
            "record how the columns were made)"
        )
    needed = [*edit_fields(config), *(field for check in checks for field in check.fields)]
    for field in needed:
        if field.name not in schema.names:
            raise ConfigError(f"clean.from_annotations: {file.name} has no column {field.name}; annotate again")
    _check_settings(config, json.loads(schema.field(REPAIRS).metadata[_SETTINGS]))


def _check_settings(config: CleanConfig, annotated: dict[str, Any]) -> None:
    """Raise ConfigError for a setting that differs from that of the annotations, unless it may be left out and is."""
    for name, value in _settings(config).items():
        before, now = annotated.get(name, ""), value
        if value == before or (not value and name in _optional_settings(config)):
            continue
        if isinstance(value, dict):
            now = {field: each for field, each in value.items() if each != before[field]}
            before = {field: before[field] for field in now}
        difference = f"with {json.dumps(before)}, now it is {json.dumps(now)}"
        if name in (*_SOURCES, *_LATER_SOURCES):
            file = f"with another file (sha256 {before[:8]}...)" if before else "without a file"
            path = next(path for field, path, _ in named_sources(config) if field == name) if value else ""
            now = f"it is {path} (sha256 {value[:8]}...)" if value else "there is none"
            difference = f"{file}, now {now}"
        raise ConfigError(f"clean.{name}: the annotations were made {difference}; give the same, or annotate again")


def _optional_settings(config: CleanConfig) -> set[str]:
    """Return the settings that may be left out: the columns hold their results, but not which tokens were counted."""
    return {*_SOURCES, "languages"} - ({"tokenizer"} if config.min_tokens else set())


def _settings(config: CleanConfig) -> dict[str, Any]:
    """Return the settings that shape the columns, files by their contents."""
    sources = {name: source_hash(path, kind) for name, path, kind in named_sources(config)}
    later = {name: sources[name] for name in _LATER_SOURCES if name in sources}
    return {**config.shaping(), **{name: sources.get(name, "") for name in _SOURCES}, **later}


def _with_settings(fields: Sequence[pa.Field], config: CleanConfig) -> list[pa.Field]:
    """Return the columns, with the settings that shaped them in the metadata of `repairs`."""
    metadata = {_SETTINGS: json.dumps(_settings(config), sort_keys=True).encode()}
    return [field.with_metadata(metadata) if field.name == REPAIRS else field for field in fields]
