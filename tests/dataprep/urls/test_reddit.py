"""Which of Reddit's submissions recommend a page."""

from typing import Any

import pytest

from dataprep.urls.reddit import DateError, SubmissionRules, submission_rules

GOOD: dict[str, Any] = {
    "url": "http://garden.test/",
    "subreddit": "gardens",
    "score": 3,
    "created_utc": 1483228800,  # 2017-01-01 00:00:00 UTC
    "is_self": False,
    "over_18": False,
}


def broken(rules: SubmissionRules, record: dict[str, Any]) -> tuple[str, str] | None:
    return rules.broken(record, record["url"])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, None),
        ({"is_self": True, "over_18": True, "score": 0}, ("self_post", "is_self")),
        ({"url": "/r/gardens/comments/1/spring/", "score": 0}, ("self_post", "relative URL")),
        ({"over_18": True, "score": 0}, ("over_18", "over_18")),
        ({"score": 2, "created_utc": 0}, ("low_karma", "score 2")),
        ({"score": -5}, ("low_karma", "score -5")),
        ({"created_utc": 1483228799}, ("out_of_range", "created 2016-12-31")),
        ({"created_utc": 1485907199}, None),  # the last second of January
        ({"created_utc": 1485907200}, ("out_of_range", "created 2017-02-01")),
        ({"created_utc": "1483228800"}, None),  # as the oldest dumps have it
        ({"created_utc": 1483228800.0}, None),
        ({"created_utc": None}, ("invalid_submission", "score 3, created_utc None")),
        ({"score": "many"}, ("invalid_submission", "score 'many', created_utc 1483228800")),
        ({"score": True}, ("invalid_submission", "score True, created_utc 1483228800")),
        ({"score": float("nan")}, ("invalid_submission", "score nan, created_utc 1483228800")),
        ({"created_utc": 10**30}, ("invalid_submission", f"score 3, created_utc {10**30}")),
        ({"created_utc": 10**17}, ("out_of_range", "created 1e+17")),
    ],
)
def test_the_first_rule_that_applies_is_named_with_its_value(
    change: dict[str, Any], expected: tuple[str, str] | None
) -> None:
    rules = submission_rules("auto", 3, "2017-01-01", "2017-01-31")
    assert broken(rules, GOOD | change) == expected


def test_old_submissions_without_flags_are_links_for_everyone() -> None:
    record = {key: value for key, value in GOOD.items() if key not in ("is_self", "over_18")}
    assert broken(submission_rules("auto", 3, "", ""), record) is None


def test_karma_and_dates_are_open_to_choice() -> None:
    assert broken(submission_rules("auto", -10, "", ""), GOOD | {"score": -10, "created_utc": 0}) is None
    assert broken(submission_rules("auto", 4, "", ""), GOOD) == ("low_karma", "score 3")


def test_records_are_told_by_their_keys_or_by_the_option() -> None:
    plain = {"url": "http://garden.test/", "score": 9}
    applies = {kind: submission_rules(kind, 3, "", "").applies for kind in ("auto", "lists", "submissions")}
    assert [applies[kind](GOOD) for kind in applies] == [True, False, True]
    assert [applies[kind](plain) for kind in applies] == [False, False, True]


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        ("2017-02-30", "", "date_from: expected a day such as 2017-01-31, got '2017-02-30'"),
        ("", "January", "date_to: expected a day such as 2017-01-31, got 'January'"),
        ("2017-02-01", "2017-01-01", "date_from 2017-02-01 is later than date_to 2017-01-01"),
    ],
)
def test_a_date_that_is_none_is_an_error(first: str, last: str, message: str) -> None:
    with pytest.raises(DateError, match=message):
        submission_rules("auto", 3, first, last)
