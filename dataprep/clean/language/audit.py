"""The language of a document as configured, and a comparison with the same engine on the whole text, for 1 in 100."""

import functools

from dataprep.clean.config import CleanConfig
from dataprep.clean.language.detector import make_detector
from dataprep.clean.language.language import Detector, Language, is_audited
from pipelines.config import given
from pipelines.documents import Row
from pipelines.manifest import Counts

AUDITED = "language_audited"
AGREED = "language_agreed"


class Languages:
    """Detects languages as configured; counts how often mode exact decides alike on the audited documents."""

    def __init__(self, config: CleanConfig) -> None:
        self._config = config

    @functools.cached_property
    def _detector(self) -> Detector:
        return _make_detector(self._config, self._config.language_mode)

    @functools.cached_property
    def _auditor(self) -> Detector | None:
        """The engine in mode exact; None if that is the configured mode, which leaves nothing to audit."""
        return None if self._config.language_mode == "exact" else _make_detector(self._config, "exact")

    def detect(self, text: str, row: Row, counts: Counts) -> Language:
        """Return the language of `text`, the original or edited text of the document `row`."""
        language = self._detector.detect(text)
        if self._auditor and is_audited(row["doc_id"]):
            exact = self._auditor.detect(text)
            counts.total(AUDITED, 1)
            counts.total(AGREED, int(self._decision(language) == self._decision(exact)))
        return language

    def _decision(self, language: Language) -> tuple[bool, str]:
        """Return whether both rules on languages keep a document, and the language itself if all are wanted."""
        wanted = self._config.languages
        kept = (not wanted or language.code in wanted) and language.probability >= self._config.min_language_probability
        return kept, "" if wanted else language.code


def _make_detector(config: CleanConfig, mode: str) -> Detector:
    return make_detector(
        engine=config.language_engine,
        mode=mode,
        model=given(config.language_model),
        seed=config.language_seed,
        languages=config.languages,
    )
