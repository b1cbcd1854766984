"""Addresses in place of paths: `s3://BUCKET/KEY`, `hf://datasets/OWNER/NAME[@REVISION]/PATH`, and patterns of names.

A command line is parsed into paths, and `Path("s3://a/b")` is `s3:/a/b`: an address is recognized in that form too.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from pipelines.errors import ConfigError

_ADDRESS = re.compile(r"(s3|hf):/+(.*)", re.DOTALL)
_LIKE_AN_ADDRESS = re.compile(r"(s3|hf):/+", re.IGNORECASE)
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PATTERN = re.compile(r"[*?\[]")


def address_of(path: Path | str) -> str | None:
    """Return the address that a path stands for, as people write it; None for a path of this machine."""
    match = _ADDRESS.fullmatch(str(path))
    return f"{match[1]}://{match[2]}" if match else None


def check_spelling(word: str) -> None:
    """Raise ConfigError for a word of a command line that is nearly an address, such as `S3://a/b` or `s3:/a/b`.

    As paths, the first would be a folder of this machine, and the second could not be told from an address.
    """
    match = _LIKE_AN_ADDRESS.match(word)
    if match and match[0] not in ("s3://", "hf://"):
        meant = f"{match[1].lower()}://{word[match.end() :]}"
        raise ConfigError(f"{meant}: write the address like this, in small letters and with two slashes")


def split_s3(address: str) -> tuple[str, str]:
    """Return the bucket and the key of an address at `s3://`; raise ConfigError for one without a bucket and a key."""
    name, _, key = address.removeprefix("s3://").partition("/")
    key = key.strip("/")
    if not _BUCKET.fullmatch(name):
        raise ConfigError(f"{address}: {name!r} is no name of a bucket; expected s3://BUCKET/FOLDER")
    if not key:
        raise ConfigError(f"{address}: a whole bucket; name a folder in it: s3://{name}/FOLDER")
    if any(part in ("", ".", "..") for part in key.split("/")):
        raise ConfigError(f"{address}: '..' and '.' have no meaning in a bucket; leave them out")
    return name, key


def split_hf(address: str) -> tuple[str, str, str]:
    """Return the repository, the revision ("main" if none is named) and the path of an address at `hf://`."""
    match = re.fullmatch(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?(?:/(.+))?", address)
    if not match:
        raise ConfigError(f"{address}: expected hf://datasets/OWNER/NAME/PATH, or OWNER/NAME@REVISION")
    return match[1], (match[2] or "main").replace("%2F", "/"), (match[3] or "").strip("/")


def is_pattern(path: Path | str) -> bool:
    """Return whether a path has a character of patterns: `*`, `?` or `[`."""
    return bool(_PATTERN.search(str(path)))


def fixed_part(pattern: str) -> str:
    """Return the folder that everything a pattern matches lies in, without an end; empty if there is none."""
    parts = PurePosixPath(pattern).parts
    first = next(number for number, part in enumerate(parts) if is_pattern(part))
    return "/".join(parts[:first])


def matches(name: str, pattern: str) -> bool:
    """Return whether a key matches a pattern as a shell's would: `*` within one name, `**` over any number of folders.

    Hidden names only match what begins with a dot.
    """
    return _match(name.split("/"), pattern.split("/"))


def _match(names: Sequence[str], parts: Sequence[str]) -> bool:
    if not parts or not names:
        return not parts and not names
    if parts[0] == "**":
        visible = next((number for number, name in enumerate(names) if name.startswith(".")), len(names))
        if len(parts) == 1:
            return visible == len(names)
        return any(_match(names[number:], parts[1:]) for number in range(visible + 1))
    hidden = names[0].startswith(".") and not parts[0].startswith(".")
    return not hidden and fnmatchcase(names[0], parts[0]) and _match(names[1:], parts[1:])
