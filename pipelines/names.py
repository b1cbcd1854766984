"""Names and paths of the user's that the graph puts into commands and paths: what they may hold.

DVC fills `${...}` of `dvc.yaml` into shell commands as plain text. There each stands between single quotes, so a path
may hold blanks, `;`, `&` and `$()`; what would end such a word, or be read as an option or an address, is refused. A
name becomes part of paths and of stages' names, so it is plainer still. This is checked by `use` and `check`, by
`versions`, which DVC runs before all else once such a value has changed, and by every stage that gets `--params`.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.errors import ConfigError, shown

NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
NO_RULES = "configs/none/rules"
"""The empty file that stands for the user's own rules where there are none."""
_LONGEST = 1000
"""Characters of a path; Linux takes 4,096 bytes."""
_NOT_SHOWN = {
    "Cc": "a line break or another control character",
    "Cs": "bytes that are not UTF-8",
    "Zl": "a line break",
    "Zp": "a line break",
}
"""Unicode categories that no path may hold. DVC splits a command at each kind of line break, quoted or not."""


def name_problem(text: str) -> str:
    """Return what keeps `text` from being a name, or nothing."""
    if NAME.fullmatch(text):
        return ""
    return (
        "not a name; use at most 100 letters a to z, digits, '_', '-' and single dots, and none of the last two first"
    )


def path_problem(text: str) -> str:
    """Return what keeps `text` from being a path in a command, or nothing."""
    if not text:
        return "is empty; name a file or folder, or one of configs/none"
    return source_problem(text)


def source_problem(text: str) -> str:
    """Return what keeps `text` from being a path, which may be empty, or nothing."""
    if len(text) > _LONGEST:
        return f"a path of {len(text)} characters; give one of at most {_LONGEST}"
    for part, what in {"'": "a single quote", "\\": "a backslash", "${": "'${'"}.items():
        if part in text:
            return f"a path with {what}, which has a meaning in commands; rename it, or link it under another name"
    for character in text:
        if what := _NOT_SHOWN.get(unicodedata.category(character)):
            return f"a path with {what}; rename it, or link it under another name"
    if text.startswith("-"):
        return "a path that begins as an option does; write ./ before it"
    return "an address; give the path of a file or folder" if _ADDRESS.match(text) else ""


def folder_problem(text: str) -> str:
    """Return what keeps `text` from being a folder of outputs inside the project, or nothing."""
    inside = not Path(text).is_absolute() and ".." not in Path(text).parts
    return path_problem(text) or ("" if inside else "not inside the project; give a path below it")


TEXTS: dict[str, Callable[[str], str]] = {
    **dict.fromkeys(
        ("corpus.name", "corpus.traced", "glue.name", "glue.tasks", "glue.scored", "labels.model", "labels.parallel"),
        name_problem,
    ),
    **dict.fromkeys(("glue_download.tasks", "run"), name_problem),
    **dict.fromkeys(
        ("corpus.urls", "corpus.documents", "glue.folder", "base.model", "base.contamination"), path_problem
    ),
    **dict.fromkeys(("urls.blacklists", "urls.blacklist", "download.local_site", "download.replay"), source_problem),
    **dict.fromkeys(("extract.tokenizer", "clean.tokenizer", "clean.language_model"), source_problem),
    **dict.fromkeys(("clean.bad_words", "clean.quality"), source_problem),
    **dict.fromkeys(("find_duplicates.fingerprints", "decontaminate.targets"), source_problem),
    **dict.fromkeys(("tokenizer.files", "pretrain.init_path", "download.forget", "extract.forget"), source_problem),
    "rules": source_problem,
    "data": folder_problem,
}
"""Key of params.yaml -> its check: every key that `dvc.yaml` names, and those that these are made of."""


def check_texts(params: Mapping[str, Any], file: Path) -> None:
    """Raise ConfigError for the first text of TEXTS that is not as it must be; pass over keys that are missing."""
    for key, problem in TEXTS.items():
        for value in _texts(_look_up(params, key)):
            wrong = problem(value) if isinstance(value, str) else "expected text; put it in quotes"
            if wrong:
                raise ConfigError(f"{file}: {key}: {shown(value)}: {wrong}")
    of_rules, expected = params.get("rules"), rules_file(_texts(_look_up(params, "clean.rules")))
    if of_rules not in (None, expected):
        raise ConfigError(
            f"{file}: rules: {shown(of_rules)}: is not the file of clean.rules, which DVC would then not watch; set "
            "clean.rules with python -m pipelines set clean.rules=[FILE:FUNCTION]"
        )


def file_of(function: str) -> str:
    """Return the file of a function that is named as FILE:FUNCTION, or nothing."""
    return function.rpartition(":")[0]


def rules_file(functions: Sequence[str]) -> str:
    """Return the file that DVC watches for functions named as FILE:FUNCTION, which are all in one."""
    return file_of(functions[0]) if functions else NO_RULES


def check_name(word: str, where: str) -> None:
    """Raise ConfigError unless a word of a command line, which becomes part of paths, is a name."""
    if wrong := name_problem(word):
        raise ConfigError(f"{where}: {shown(word)}: {wrong}")


def _look_up(params: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key, or no texts where it or its section is not there."""
    value: Any = params
    for part in key.split("."):
        value = value.get(part, ()) if isinstance(value, Mapping) else ()  # pyright: ignore
    return value  # pyright: ignore[reportUnknownVariableType]


def _texts(value: Any) -> list[Any]:
    """Return a value as a list of itself, or its items, or its keys and values."""
    if isinstance(value, Mapping):
        return [*value, *value.values()]  # pyright: ignore
    return [*value] if isinstance(value, (list, tuple)) else [value]  # pyright: ignore
