"""The section `urls`."""

from dataclasses import dataclass
from typing import Literal

from dataprep.urls.reddit import Kind
from pipelines.config import Count, NonNegative, StageSource

Compat = Literal["none", "megatron"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlsConfig:
    """The conditions that a URL must meet to be fetched."""

    blacklists: StageSource = ""
    """Blacklists to use instead of the built-in ones: a file or folder in any format of `blacklist`."""
    blacklist: StageSource = ""
    """Additional blacklists: a file or folder; lists of domains, hosts files, UT1's folders or .tar.gz, or files
    named domains-<category>.txt and extensions-<category>.txt."""
    compat: Compat = "none"
    """megatron: match and compare as Megatron-LM's blacklist_urls.py did (labels, not domains; no canonical form)."""
    kind: Kind = "auto"
    """How to read JSON records. lists: only their `url` counts; submissions: as Reddit's; auto: decided by their
    keys."""
    url_key: str = "url"
    """Key of the URL in JSON records."""
    karma_key: str = ""
    """Key of the score in JSON records that are not Reddit's, to which `min_karma` then applies; empty if they have
    none."""
    min_karma: int = 3
    """Lowest score (upvotes minus downvotes) of submissions, and of records with `karma_key`."""
    date_from: str = ""
    """Submissions only: first day, such as 2005-06-23, in UTC; empty for no limit."""
    date_to: str = ""
    """Submissions only: last day, in UTC; empty for no limit. (WebText ends with 2017-12-31.)"""
    longest_short: NonNegative = 8
    """Length in characters up to which a line is too short to be a URL."""
    rows_per_part: Count = 100_000
    """URLs in each part of the output."""
