"""A saved dictionary: the index of the items and how many documents had each of its keys, for runs on other documents.

Whether an n-gram is too common to count is then decided once, on the documents of the run that saved it, as with
--save-dictionary and --load-dictionary of Megatron's filter_ngrams.py. Those are pickles; this is a folder with the
index's tables (`items`), counts-LENGTH.npy, and dictionary.json, which says by which rules it was made.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines import store
from pipelines.command import Part, Source
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts

RULES = "dictionary.json"


def save_dictionary(part: Part, folder: Path, made: Sequence[Path], rules: Mapping[str, Any]) -> Counts:
    """Write a dictionary of `part.files`, which are below the folders `made` of an index and of its counts."""
    for file in part.files:
        (name,) = (file.relative_to(root) for root in made if file.is_relative_to(root))
        store.link_or_copy(file.resolve(), folder / name)
    store.write_json(folder / RULES, rules)
    return Counts()


def dictionary_folder(dictionary: Source, rules: Mapping[str, Any]) -> Path:
    """Return the folder of a dictionary. Raise UserError if it is none, ConfigError if it was made by other rules."""
    if dictionary.manifest is None or RULES not in dictionary.manifest.files:
        raise UserError(f"{dictionary.path}: not a dictionary; give a folder that --save-dictionary wrote")
    made = store.read_json(dictionary.path / RULES)
    for name, value in rules.items():
        if made.get(name) != value:
            raise ConfigError(
                f"{dictionary.path}: made with {name} {made.get(name)}, not {value}; use the same, or save it again"
            )
    return dictionary.path
