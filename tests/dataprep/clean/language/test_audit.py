"""The audit compares the decision of the rules with that by the same engine on the whole text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from dataprep.clean.config import CleanConfig
from dataprep.clean.language import audit, langdetect
from dataprep.clean.language.audit import AGREED, AUDITED, Languages
from dataprep.clean.language.language import Language, is_audited
from pipelines.errors import UserError
from pipelines.manifest import Counts

AUDITED_ID = next(i.to_bytes(16, "big") for i in range(10_000) if is_audited(i.to_bytes(16, "big")))
AUDITED_ROW = {"doc_id": AUDITED_ID, "url": "http://mill.test/"}
BY_LIBRARY = {"checked_by_langdetect": 1, "different_from_langdetect": 0}


@dataclass
class Fixed:
    """A detector that always says the same."""

    language: Language

    def detect(self, text: str) -> Language:
        return self.language


def audited(monkeypatch: pytest.MonkeyPatch, config: CleanConfig, said: Mapping[str, Language]) -> dict[str, int]:
    """Totals after one audited document; `said` is the language by engine and mode."""

    def make(*, engine: str, mode: str, model: Path | None, seed: int, languages: tuple[str, ...]) -> Fixed:
        return Fixed(said[f"{engine} {mode}"])

    monkeypatch.setattr(audit, "make_detector", make)
    counts = Counts()
    assert Languages(config).detect("The mill.", AUDITED_ROW, counts).engine != "exact"
    return {name: number for name, number in counts.totals.items() if name not in BY_LIBRARY}


def english(probability: float) -> Language:
    return Language("en", probability, "test")


@pytest.mark.parametrize(("least", "agreed"), [(0.0, 1), (0.8, 1), (0.99, 0)])
def test_a_text_kept_by_one_and_too_improbable_for_the_other_is_no_agreement(
    monkeypatch: pytest.MonkeyPatch, least: float, agreed: int
) -> None:
    said = {"langdetect prefilter": english(1.0), "langdetect exact": english(0.857)}
    totals = audited(monkeypatch, CleanConfig(min_language_probability=least), said)
    assert totals == {AUDITED: 1, AGREED: agreed}
    totals = audited(monkeypatch, CleanConfig(min_language_probability=least, languages=()), said)
    assert totals == {AUDITED: 1, AGREED: agreed}


def test_where_every_language_is_kept_the_language_itself_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"langdetect prefilter": english(1.0), "langdetect exact": Language("de", 1.0, "test")}
    assert audited(monkeypatch, CleanConfig(languages=()), said) == {AUDITED: 1, AGREED: 0}
    assert audited(monkeypatch, CleanConfig(languages=("en", "de")), said) == {AUDITED: 1, AGREED: 1}


def test_other_engines_are_audited_by_their_own_exact_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    glot = Language("eng_Latn", 0.9, "fasttext")
    said = {"fasttext prefilter": glot, "fasttext exact": glot}
    config = CleanConfig(language_engine="fasttext", language_mode="prefilter", languages=("eng_Latn",))
    assert audited(monkeypatch, config, said) == {AUDITED: 1, AGREED: 1}


@pytest.mark.parametrize("engine", ["langdetect", "resiliparse"])
def test_nothing_is_audited_where_the_mode_is_exact(engine: str) -> None:
    config = CleanConfig(language_engine=engine, language_mode="exact")  # type: ignore[arg-type]
    counts = Counts()
    Languages(config).detect("The mill turned at dawn.", AUDITED_ROW, counts)
    assert counts.totals == (BY_LIBRARY if engine == "langdetect" else {})


@pytest.mark.parametrize("mode", ["exact", "prefilter"])
def test_the_library_itself_reads_the_first_text_of_a_shard_and_a_share_of_the_others(mode: str) -> None:
    config = CleanConfig(language_mode=mode, languages=())  # type: ignore[arg-type]
    languages, counts = Languages(config), Counts()
    for number in range(9000):
        row = {"doc_id": number.to_bytes(16, "big"), "url": None}
        languages.detect("12345", row, counts)  # no letter, so that it is quick
    assert 1 < counts.totals["checked_by_langdetect"] < 9
    assert counts.totals["different_from_langdetect"] == 0


def test_a_verdict_that_is_not_the_librarys_ends_the_run_with_the_document(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(langdetect, "most_probable", lambda text, seed: ("en", 0.9999))
    with pytest.raises(
        UserError, match=rf"document {AUDITED_ID.hex()} \(http://mill.test/\): .* langdetect 1.0.9 gives"
    ):
        Languages(CleanConfig()).detect("Das Rad der Mühle dreht sich.", AUDITED_ROW, Counts())
