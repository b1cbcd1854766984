"""The audit sample is one document in a hundred, by its id alone; names of languages lead to langdetect's codes."""

import pytest

from dataprep.clean.language.detector import known_languages
from dataprep.clean.language.language import CODES, code_of, is_audited
from pipelines.identity import document_id


def test_about_one_document_in_a_hundred_is_audited_and_always_the_same() -> None:
    ids = [document_id(f"http://mill.test/{number}", "text") for number in range(20_000)]
    audited = [doc_id for doc_id in ids if is_audited(doc_id)]
    assert 150 < len(audited) < 250
    assert audited == [doc_id for doc_id in ids if is_audited(doc_id)]


def test_a_known_id_stays_where_it_is() -> None:
    assert [number for number in range(300) if is_audited(number.to_bytes(16))] == [197, 262, 291]


def test_a_document_without_an_id_is_not_audited() -> None:
    assert not is_audited(None)


@pytest.mark.parametrize(
    ("name", "code"), [("English", "en"), ("german", "de"), ("SWEDISH", "sv"), ("klingon", "klingon")]
)
def test_a_name_is_found_in_any_case_and_anything_else_stays(name: str, code: str) -> None:
    assert code_of(name) == code


def test_every_language_of_langdetect_has_a_name() -> None:
    assert set(CODES.values()) == set(known_languages("langdetect", None)) - {"zh-tw"}
