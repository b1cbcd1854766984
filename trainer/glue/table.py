"""A split as `glue_tokenize` published it, read without torch: its tokenizer, classes and texts."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from pipelines.errors import UserError
from pipelines.tokens import ARROW_ERRORS, TokenMeta

HIDDEN_LABEL = -1
"""The label of a row whose label only the benchmark's server knows."""


class GlueTable:
    """One SPLIT.arrow. Raises UserError for any other file."""

    def __init__(self, path: Path) -> None:
        try:
            with pa.memory_map(str(path)) as file:
                table = pa.ipc.open_file(file).read_all()
                table.validate(full=True)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; run glue_tokenize first") from None
        except ARROW_ERRORS as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{path}: not a readable Arrow file ({reason}); run glue_tokenize again") from None
        metadata = {
            key.decode(errors="replace"): value.decode(errors="replace")
            for key, value in (table.schema.metadata or {}).items()
        }
        missing = {"input_ids", "label", "index"} - set(table.column_names)
        missing |= {"tokenizer_sha256", "vocab_size", "end_of_text", "num_labels"} - set(metadata)
        if missing:
            raise UserError(f"{path}: lacks {', '.join(sorted(missing))}; run glue_tokenize again")
        self.path = path
        self.table = table
        self.task = metadata.get("task", "")
        try:
            self.meta = TokenMeta.of_schema(table.schema)
            self.num_labels = int(metadata["num_labels"])
            self.pad = int(metadata.get("pad_token_id", self.meta.vocab_size))
            """The padding token: the id after the last of the vocabulary, or end-of-text."""
            self.label_names: tuple[str, ...] = tuple(map(str, json.loads(metadata.get("labels", "[]"))))
            """The classes by id; empty if they have no names, or if the label is a score."""
            _check_columns(table)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: not rows of a task ({error}); run glue_tokenize again") from None

    @property
    def labels_in_words(self) -> str:
        """The classes as a message names them."""
        return ", ".join(self.label_names) or (
            "a score" if self.num_labels == 1 else f"{self.num_labels} without names"
        )

    def texts(self, rows: Sequence[int]) -> list[dict[str, str]]:
        """Return the text columns of these rows, by name."""
        names = [name for name in self.table.column_names if name not in ("input_ids", "label", "index")]
        return self.table.select(names).take(list(rows)).to_pylist()


def _check_columns(table: pa.Table) -> None:
    """Raise ValueError unless the columns that are computed with hold numbers, the first one lists of them."""
    ids, *others = (table.schema.field(name).type for name in ("input_ids", "label", "index"))
    kinds = [ids.value_type if pa.types.is_list(ids) else ids, *others]
    if not pa.types.is_list(ids) or not all(pa.types.is_integer(each) or pa.types.is_floating(each) for each in kinds):
        raise ValueError(f"its columns are {ids}, {', '.join(map(str, others))}")


def require_task(tables: Sequence[GlueTable], task: str) -> None:
    """Raise UserError if rows belong to another task, whose scores would then be reported as those of `task`.

    Only this file says which task the rows belong to; another task may have the same classes.
    """
    for table in tables:
        if table.task and table.task != task:
            raise UserError(f"{table.path}: rows of {table.task}, not of {task}; name the task of the rows")


def named_classes(names: Sequence[str], num_labels: int) -> list[str]:
    """Return the names of the classes, made up as transformers does if they have none; empty for a regression."""
    if num_labels == 1:
        return []
    return list(names) if len(names) == num_labels else [f"LABEL_{i}" for i in range(num_labels)]
