"""The language of a document as configured, and what checks it.

One document in 100 is also read by mode exact: the stats say how often its decision is the same. Of these and all
others, the library langdetect reads the first whose language is asked for in a shard, and one in LIBRARY_ONE_IN: its
verdict is that of our evaluation, or the run ends (`pipelines.oracle`). The library takes 3.8 ms for a
text of web length, 24 times as much as all of `clean`: if it read one in 100, the stage would take a quarter longer,
and if it read all that the prefilter leaves open (1.8 % of 4,000 web texts), more than a third.
"""

import functools

from dataprep.clean.config import CleanConfig
from dataprep.clean.language.detector import make_detector
from dataprep.clean.language.language import Detector, Language, is_audited
from pipelines import oracle
from pipelines.config import given
from pipelines.documents import Row
from pipelines.manifest import Counts

LIBRARY = "langdetect"
LIBRARY_FIRST, LIBRARY_ONE_IN = 1, 4000
"""Documents that the library reads: the first of a shard, and one in so many."""
AUDITED = "language_audited"
AGREED = "language_agreed"


class Languages:
    """Detects languages as configured; counts how often mode exact decides alike on the audited documents."""

    def __init__(self, config: CleanConfig) -> None:
        self._config = config
        self._sample = oracle.Sample(first=LIBRARY_FIRST, one_in=LIBRARY_ONE_IN)

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
        if self._config.language_engine == LIBRARY and self._sample.takes(row["doc_id"]):
            self._ask_library(text[: oracle.MAX_CHARACTERS], row, counts)
        if self._auditor and is_audited(row["doc_id"]):
            exact = self._auditor.detect(text)
            counts.total(AUDITED, 1)
            counts.total(AGREED, int(self._decision(language) == self._decision(exact)))
        return language

    def _ask_library(self, text: str, row: Row, counts: Counts) -> None:
        """Compare our evaluation of langdetect with the library itself. Raises UserError if they differ."""
        from dataprep.clean.language.langdetect import most_probable
        from dataprep.clean.language.library import library_verdict

        seed = self._config.language_seed
        equal = most_probable(text, seed) == library_verdict(text, seed)
        name = oracle.name_of(row["doc_id"], row["url"])
        oracle.compare(counts, LIBRARY, equal=equal, row=name, what="the language and its probability")

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
