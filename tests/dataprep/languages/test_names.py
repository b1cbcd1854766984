"""Names of languages lead to codes that langdetect knows."""

import pytest

from dataprep.languages.detection import known_languages
from dataprep.languages.names import CODES, code_of


@pytest.mark.parametrize(
    ("name", "code"), [("English", "en"), ("german", "de"), ("SWEDISH", "sv"), ("klingon", "klingon")]
)
def test_a_name_is_found_in_any_case_and_anything_else_stays(name: str, code: str) -> None:
    assert code_of(name) == code


def test_every_language_of_langdetect_has_a_name() -> None:
    assert set(CODES.values()) == set(known_languages("langdetect", None)) - {"zh-tw"}
