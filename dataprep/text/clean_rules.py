"""Repairs and rules of the stage `clean`: pure functions of a text.

A rule gives the value it saw and whether the document passes; `clean` lists them in the order applied,
cheap first.
"""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ftfy
import regex
from langdetect.detector_factory import PROFILES_DIRECTORY, DetectorFactory
from langdetect.lang_detect_exception import LangDetectException

from pipelines import store

# GPT-2's pre-tokenizer (openai/gpt-2, src/encoder.py). BPE never merges across its pieces and gives each
# at least one token, so their number is a lower bound of the number of tokens.
_PRE_TOKEN = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
# ftfy changes a text only by what it finds in it: characters beyond ASCII, control characters and line
# ends (\r, escapes), or HTML entities. Without any, its answer is the text itself (tested against ftfy).
_FTFY_MAY_CHANGE = re.compile(r"[^\n\t\x20-\x25\x27-\x7e]")
UNDETERMINED = "und"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule saw in a document, and whether the document passes."""

    passed: bool
    value: str


def repair(text: str, *, uncurl_quotes: bool) -> str:
    """`ftfy.fix_text`: mojibake, entities, control characters, widths; curly quotes only when asked."""
    if not _FTFY_MAY_CHANGE.search(text):
        return text
    return ftfy.fix_text(text, ftfy.TextFixerConfig(uncurl_quotes=uncurl_quotes, explain=False))


def count_pre_tokens(text: str, enough: int) -> int:
    """GPT-2's pre-tokens in `text`, counted up to `enough`."""
    count = 0
    for _ in _PRE_TOKEN.finditer(text):
        count += 1
        if count == enough:
            break
    return count


def enough_tokens(text: str, *, minimum: int, count_tokens: Callable[[str], int] | None) -> Verdict:
    """Passes from `minimum` tokens on, by `count_tokens` or by the lower bound of pre-tokens."""
    count = count_tokens(text) if count_tokens else count_pre_tokens(text, minimum)
    return Verdict(count >= minimum, str(count))


def wanted_language(text: str, *, languages: Sequence[str], seed: int) -> Verdict:
    """Passes when the most probable language by langdetect is one of `languages` (ISO 639-1)."""
    language, probability = detect_language(text, seed)
    return Verdict(language in languages, f"{language} {probability:.4f}")


def known_languages() -> list[str]:
    """The codes that langdetect can give."""
    return sorted(file.name for file in Path(PROFILES_DIRECTORY).iterdir())


def detect_language(text: str, seed: int) -> tuple[str, float]:
    """Most probable language and its probability; `und` where langdetect finds no features.

    The same verdict for a text in any order, process or machine: langdetect draws random n-grams, so it
    is seeded for each document, and its profiles are loaded in order of name, not of the filesystem.
    """
    detector = _language_factory(seed).create()
    detector.append(text)
    try:
        best = detector.get_probabilities()
    except LangDetectException:
        return UNDETERMINED, 0.0
    return (best[0].lang, best[0].prob) if best else (UNDETERMINED, 0.0)


@functools.cache
def _language_factory(seed: int) -> DetectorFactory:
    factory = DetectorFactory()
    factory.seed = seed
    factory.load_json_profile([file.read_text("utf-8") for file in store.list_files(Path(PROFILES_DIRECTORY))])
    return factory
