"""What becomes of one document: edited, then judged by the rules in order; the first that fails is the reason."""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from dataprep.cleaning.checks import Check, make_checks
from dataprep.cleaning.config import CleanConfig
from dataprep.cleaning.document_text import DocumentText
from dataprep.cleaning.edits import Edits, count_edits, count_lines, edit_columns, edit_fields
from dataprep.cleaning.language_audit import Languages
from dataprep.cleaning.token_floor import TokenFloor
from dataprep.cleaning.waterfall import rejected_bytes
from dataprep.text.bpe import TextEncoder
from pipelines.config import given
from pipelines.documents import Row, ShardWriter
from pipelines.manifest import Counts


class Decider(Protocol):
    """Decides on documents one by one, and writes each where it belongs."""

    fields: list[pa.Field]
    """Columns of documents beyond the usual ones."""

    def decide(self, row: Row, shard: ShardWriter) -> None:
        """Keep or reject a document."""
        ...


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
        made, document = self.edit(row, shard.counts)
        keep_or_reject(self._config, self._active, (row, made), lambda check: check.rejects(document), shard)

    def edit(self, row: Row, counts: Counts) -> tuple[Row, DocumentText]:
        """The document after the edits, as a row and as the rules see it."""
        edited = self._edits.apply(row["text"])
        made = {**row, "text": edited.text, **edit_columns(edited)}
        count_edits(made, counts)
        count_lines(edited, counts)
        asked = row["text"] if self._config.language_of_original else edited.text
        language = functools.partial(self._languages.find, asked, row, counts)
        removed = edited.cut.removed
        return made, DocumentText(edited.text, row["text"], uncut=edited.uncut, removed=removed, language=language)


@functools.cache
def _token_floor(tokenizer: Path | None) -> TokenFloor:
    """Made once per process: a worker takes 0.4 s for GPT-2's vocabulary."""
    return TokenFloor(TextEncoder.load(tokenizer) if tokenizer else None)


def active(checks: Sequence[Check]) -> list[Check]:
    """The checks that are on, in order."""
    return [check for check in checks if check.threshold]


def keep_or_reject(
    config: CleanConfig,
    checks: Sequence[Check],
    before_and_after: tuple[Row, Mapping[str, Any]],
    rejects: Callable[[Check], str | None],
    shard: ShardWriter,
) -> None:
    """Reject a document by the first check that does, as it came in; else keep it as it is after the edits."""
    row, made = before_and_after
    for check in checks:
        value = rejects(check)
        if value is not None:
            extra = {"text": row["text"]} if config.rejected_text else {}
            shard.reject(row, check.name, value, threshold=check.threshold, **extra)
            shard.counts.total(rejected_bytes(check.name), len(made["text"].encode()))
            return
    shard.keep(made)


def rejected_fields(config: CleanConfig) -> list[pa.Field]:
    """Columns of rejected rows beyond the usual ones."""
    names = ["threshold", *(["text"] if config.rejected_text else [])]
    return [pa.field(name, pa.string()) for name in names]
