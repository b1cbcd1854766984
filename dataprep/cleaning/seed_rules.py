"""The seeds' rules on short documents: of the text as it came, in characters, before any edit.

NVIDIA/Megatron-LM applies them before its edits and returns at the first that hits, so a document is measured
as it was read.
"""

from dataprep.cleaning.document_text import DocumentText
from dataprep.cleaning.rules import Rule, Threshold

ENGLISH = "en"
SOURCE = "NVIDIA/Megatron-LM: tools/openwebtext/cleanup_fix_dataset.py"


def _characters(document: DocumentText) -> int:
    return len(document.original)


def _characters_with_javascript(document: DocumentText) -> int | None:
    return len(document.original) if "javascript" in document.original.lower() else None


def _characters_not_english(document: DocumentText) -> int | None:
    language = document.language
    return None if language is None or language.code == ENGLISH else len(document.original)


def _long_enough(document: DocumentText, threshold: Threshold) -> bool:
    """Long documents pass in any language, so theirs need not be found."""
    assert not isinstance(threshold, tuple)
    return len(document.original) >= threshold


RULES = (
    Rule("seeds_remove_512", _characters, "at_least", "characters", SOURCE),
    Rule(
        "seeds_remove_256_javascript",
        _characters_with_javascript,
        "at_least",
        "characters, where it says javascript",
        SOURCE,
        _long_enough,
    ),
    Rule(
        "seeds_remove_512_non_english",
        _characters_not_english,
        "at_least",
        "characters, where not English",
        SOURCE,
        _long_enough,
    ),
)
