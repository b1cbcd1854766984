"""Names of a ready corpus in the download folder: documents-NNNNN-NAME.*, from which the user's own can be told."""

import re

CUT, PACKED = ".cut", ".pack"
"""After the names of what was cut into several tars, and of what several files were packed into."""
_NAME_CHARS = 60
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
# Within a name these would say that a file holds JSON lines, or what was rejected.
_MISLEADING = re.compile(r"\.(?=(?:jsonl|rejected)(?:\.|$))", re.IGNORECASE)
_PASSED = re.compile(rf"documents-\d{{5}}-(.+?)(?:{re.escape(CUT)}-\d{{5}}\.tar|{re.escape(PACKED)}\.tar)?", re.DOTALL)


def passed_name(number: int, name: str, ending: str = "") -> str:
    """`documents-NNNNN-NAME` for a file, without its ending: letters, digits, `.`, `_` and `-`, at most 60 of them."""
    stem = name[: -len(ending)] if ending and name.lower().endswith(ending) else name
    safe = _MISLEADING.sub("_", _UNSAFE.sub("_", stem))
    return f"documents-{number:05d}-{safe[:_NAME_CHARS]}"


def given_name(name: str) -> str:
    """The user's name for a passed file, as far as it could be kept; any other name as it is."""
    found = _PASSED.fullmatch(name)
    return found[1] if found else name
