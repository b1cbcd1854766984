"""The options and the result of extracting a page, shared by the parent process and its child."""

from dataclasses import dataclass
from typing import Literal

ExtractorName = Literal["routed", "trafilatura", "precision", "resiliparse"]

OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """How to extract the text of a page, how large a page may be, and how long it may take."""

    extractor: ExtractorName
    fallback_chars: int
    """A text with fewer characters is compared with other readings of the page."""
    max_elements: int
    max_depth: int
    tables: bool
    """Keep the text of tables."""
    seconds: float
    """CPU time of a page before its process is killed."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """The text of a page and the library that extracted it, or the rule that the page breaks and the value seen."""

    text: str = ""
    extractor: str = ""
    rule: str = ""
    value: str = ""
