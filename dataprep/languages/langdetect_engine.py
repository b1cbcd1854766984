"""Engine `langdetect`: the library's verdict, seeded anew for each text, at a fraction of its cost."""

from dataclasses import dataclass

from dataprep.languages.langdetect_exact import most_probable
from dataprep.languages.langdetect_profiles import profile_files
from dataprep.languages.language import UNDETERMINED, Language

NAME = "langdetect"


@dataclass(frozen=True, slots=True)
class LangdetectDetector:
    """Reads the profiles when the first text comes."""

    seed: int

    def detect(self, text: str) -> Language:
        """As the library's `Detector` with this seed; `und` with probability 0 where that has no answer."""
        return Language(*(most_probable(text, self.seed) or (UNDETERMINED, 0.0)), NAME)

    def known_languages(self) -> list[str]:
        """The codes of the installed profiles."""
        return sorted(file.name for file in profile_files())
