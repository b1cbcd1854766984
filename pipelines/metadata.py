"""Column `metadata`: what a document's record holds beside its text, URL and source, as the text of a JSON object.

The keys stand in the order of the record. The column is there if any document of an output has such keys, and null for
those that have none. In JSON lines the keys are keys again, after the columns, which win over a key of their name.

Values are what JSON readers agree on: of a key that occurs twice the last value, numbers as doubles (integers of any
size exactly), null for NaN and Infinity and for what is nested deeper than DEEPEST, U+FFFD for half a
surrogate pair.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import orjson
import pyarrow as pa

METADATA = "metadata"
METADATA_FIELD = pa.field(METADATA, pa.string())
DEEPEST = 200
"""Levels of lists and objects that are kept; orjson writes 254."""
HALF_PAIR = re.compile("[\ud800-\udfff]")
_OWN = ("doc_id",)
"""Keys that are not carried: an id says what the text was where it was given."""
_EXPONENT = re.compile(r"e\+?\d")


def metadata_of(record: Mapping[str, Any], used: Sequence[str]) -> str | None:
    """Return the keys of a record other than `used` as the text of a JSON object; None if there are none."""
    kept = {key: value for key, value in record.items() if key not in used and key not in _OWN}
    return object_text(kept) if kept else None


def object_text(kept: Mapping[str, Any]) -> str:
    """Return an object of JSON as text."""
    try:
        text = orjson.dumps(kept).decode()
    except TypeError:  # too deep, an integer of more than 64 bits, half of a pair
        return json.dumps(_plain(kept, 1), ensure_ascii=False, separators=(",", ":"))
    if text.count("[") + text.count("{") > DEEPEST:
        return orjson.dumps(_plain(kept, 1)).decode()
    return text


def may_have_lost_digits(metadata: str) -> bool:
    """Return whether orjson may have read an integer of more than 64 bits as a double."""
    return _EXPONENT.search(metadata) is not None


def _plain(value: Any, level: int) -> Any:
    if isinstance(value, str):
        return HALF_PAIR.sub("\ufffd", value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if not isinstance(value, (dict, list)):
        return value
    if level > DEEPEST:
        return None
    if isinstance(value, list):
        return [_plain(each, level + 1) for each in cast(list[Any], value)]
    return {_plain(key, level): _plain(each, level + 1) for key, each in cast(dict[str, Any], value).items()}


def with_keys(line: bytes, names: Sequence[str], metadata: str) -> tuple[bytes, list[str]]:
    """Return the JSON object of a row, whose keys are `names`, with the keys of `metadata` after them.

    Also returns the keys that are left out, because a column has their name.
    """
    clashing = [key for key in orjson.loads(metadata) if key in names]
    if clashing:
        keys = cast(dict[str, Any], json.loads(metadata))  # orjson would read an integer of 65 bits as a double
        metadata = object_text({key: value for key, value in keys.items() if key not in names})
    return line if metadata == "{}" else line[:-1] + b"," + metadata[1:].encode(), clashing
