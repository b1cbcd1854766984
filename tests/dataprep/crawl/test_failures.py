"""Why an attempt gave no page."""

import pytest

from dataprep.crawl.failures import FetchError, retry_after


def test_a_value_is_one_short_line() -> None:
    assert FetchError("rule", "a\n b\t" + "x" * 1000).value == "a b " + "x" * 296


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 120 ", 120.0),
        ("", 0.0),
        ("soon", 0.0),
        ("-5", 0.0),
        ("Thu, 01 Jan 2026 00:01:30 GMT", 90.0),
        ("Thu, 01 Jan 2015 00:00:00 GMT", 0.0),
        ("9" * 400, 999_999_999.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str, seconds: float) -> None:
    assert retry_after(value, 1767225600.0) == seconds
