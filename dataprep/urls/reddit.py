"""Reddit submissions as pushshift publishes them (RS_*.zst): which of them recommend a page, in WebText's sense.

Rules, in order: self_post (links to no page), over_18, low_karma, out_of_range (of the dates). A submission
that lacks a field needed by a rule is invalid_submission.
"""

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SELF_POST = "self_post"
Kind = Literal["auto", "lists", "submissions"]
_KEYS = {"url", "subreddit", "created_utc", "score"}
_BEYOND = 1e18
"""Larger than any real score or time. NaN fails the comparison with it too."""


class DateError(ValueError):
    """A date that cannot be read; the message says what was expected."""


@dataclass(frozen=True, slots=True)
class SubmissionRules:
    """The conditions under which a submission's URL is taken."""

    kind: Kind
    min_karma: int
    start: float
    """Seconds since 1970, UTC; earlier submissions are out of range."""
    stop: float
    """Seconds since 1970, UTC; submissions from then on are out of range."""
    karma_key: str = ""
    """Key of the score in the JSON records of others; empty if they have none."""

    def applies(self, record: Mapping[str, Any]) -> bool:
        """Return whether a JSON record is judged as a submission."""
        return self.kind == "submissions" or (self.kind == "auto" and record.keys() >= _KEYS)

    def broken(self, record: Mapping[str, Any], url: str) -> tuple[str, str] | None:
        """Return the first rule that a submission of `url` breaks, and the value seen; None if it breaks none."""
        score, created = _number(record.get("score")), _number(record.get("created_utc"))
        if score is None or created is None:
            return "invalid_submission", f"score {record.get('score')!r}, created_utc {record.get('created_utc')!r}"
        if record.get("is_self"):
            return SELF_POST, "is_self"
        if url.startswith("/"):
            return SELF_POST, "relative URL"
        if record.get("over_18"):
            return "over_18", "over_18"
        if score < self.min_karma:
            return "low_karma", f"score {score:g}"
        if not self.start <= created < self.stop:
            return "out_of_range", _day(created)
        return None

    def too_little(self, record: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return the rule that a record with `karma_key` breaks, and the value seen; None if it breaks none."""
        if not self.karma_key:
            return None
        score = _number(record.get(self.karma_key))
        if score is None:
            return "invalid_submission", f"no number under the key {self.karma_key!r}"
        return ("low_karma", f"{self.karma_key} {score:g}") if score < self.min_karma else None


def submission_rules(kind: Kind, min_karma: int, date_from: str, date_to: str, karma_key: str = "") -> SubmissionRules:
    """Return the rules for a range of dates such as 2017-01-31, both days included; raises DateError."""
    start = day_start(date_from, "date_from") if date_from else float("-inf")
    stop = day_start(date_to, "date_to") + 86_400 if date_to else float("inf")
    if start >= stop:
        raise DateError(f"date_from {date_from} is later than date_to {date_to}")
    return SubmissionRules(kind, min_karma, start, stop, karma_key)


def day_start(text: str, name: str) -> float:
    """Return the start of a day such as 2017-01-31 in UTC, in seconds since 1970; raises DateError."""
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError as error:
        raise DateError(f"{name}: expected a day such as 2017-01-31, got {text!r} ({error})") from None
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp()


def _number(value: Any) -> float | None:
    if type(value) is int:  # nearly all are, so they come first
        return value if -_BEYOND < value < _BEYOND else None
    # In the oldest dumps `created_utc` is a string.
    if isinstance(value, str) and re.fullmatch("[0-9]{1,18}", value):
        return int(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return value if abs(value) < _BEYOND else None


def _day(seconds: float) -> str:
    try:
        return f"created {datetime.datetime.fromtimestamp(seconds, datetime.UTC).date().isoformat()}"
    except (ValueError, OverflowError, OSError):
        return f"created {seconds:g}"
