"""The language of a document, and a check of one in a hundred against the same engine on the whole text."""

import functools

from dataprep.cleaning.config import CleanConfig
from dataprep.languages.detection import Detector, Language, is_audited, make_detector
from pipelines.config import given
from pipelines.documents import Row
from pipelines.manifest import Counts

AUDITED = "language_audited"
AGREED = "language_agreed"


class Languages:
    """Finds languages as configured; counts how often the exact way decides alike on the audited documents."""

    def __init__(self, config: CleanConfig) -> None:
        self._config = config

    @functools.cached_property
    def _detector(self) -> Detector:
        return _make_detector(self._config, self._config.language_mode)

    @functools.cached_property
    def _auditor(self) -> Detector | None:
        """The engine's exact mode; None where that is the configured one and leaves nothing to audit."""
        return None if self._config.language_mode == "exact" else _make_detector(self._config, "exact")

    def find(self, text: str, row: Row, counts: Counts) -> Language:
        """The language of `text`, the one of the document `row` that the rules ask about."""
        found = self._detector.detect(text)
        if self._auditor and is_audited(row["doc_id"]):
            exact = self._auditor.detect(text)
            counts.total(AUDITED, 1)
            counts.total(AGREED, int(self._decision(found) == self._decision(exact)))
        return found

    def _decision(self, found: Language) -> tuple[bool, str]:
        """Kept or not by both rules, and the language itself where every one is wanted."""
        wanted = self._config.languages
        kept = (not wanted or found.code in wanted) and found.probability >= self._config.min_language_probability
        return kept, "" if wanted else found.code


def _make_detector(config: CleanConfig, mode: str) -> Detector:
    return make_detector(
        engine=config.language_engine,
        mode=mode,
        model=given(config.language_model),
        seed=config.language_seed,
        languages=config.languages,
    )
