"""Section `clean`: what a good document is. Its presets are in `configs/clean/`.

Thresholds come in families of rules, one field per rule; None switches a rule off, and all rules are off by default.
A rule's name is `<family>_<field>`. "Marks" are words of punctuation alone, as in datatrove (`rules/measures.py`); a
ratio whose denominator is zero is 0.

Sources: Gopher = Rae et al. 2021, arXiv:2112.11446, appendix A.1.1 and table A1; C4 = Raffel et al. 2020, JMLR 21/140,
section 2.2, and tensorflow/datasets, text/c4_utils.py; FineWeb = Penedo et al. 2024, arXiv:2406.17557, section 3.5;
all as implemented in huggingface/datatrove, src/datatrove/pipeline/filters/ (0.10); Megatron's scripts =
NVIDIA/Megatron-LM, tools/openwebtext/cleanup_dataset.py and cleanup_fix_dataset.py. The family `seeds` holds the rules
of the latter.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from dataprep.text.ftfy_switches import FtfySwitches
from pipelines.config import (
    Count,
    Fraction,
    FunctionNames,
    NonNegative,
    Positive,
    SourceFile,
    TokenizerPath,
    to_plain,
)

Masked = Literal["email", "ip", "phone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRules:
    """Megatron's rules on short documents, applied to the text as read, before any edit."""

    remove_512: Count | None = None
    """Fewest characters of a document (Megatron: 512)."""
    remove_256_javascript: Count | None = None
    """Fewest characters of a document that contains "javascript" in any case (Megatron: 256)."""
    remove_512_non_english: Count | None = None
    """Fewest characters of a document in another language than English (Megatron: 512). The characters are counted in
    the text as read; the language is that of the text after all edits, or, with compat, that of the text as read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GopherRules:
    """Quality and repetition rules of Gopher, as datatrove counts them."""

    min_words: NonNegative | None = None
    """Fewest words, marks not counted (Gopher: 50)."""
    max_words: Count | None = None
    """Most words, marks not counted (Gopher: 100,000)."""
    min_mean_word_length: Positive | None = None
    """Smallest mean length of a word, in characters, marks not counted (Gopher: 3)."""
    max_mean_word_length: Positive | None = None
    """Largest mean length of a word, in characters, marks not counted (Gopher: 10)."""
    max_hash_ratio: Fraction | None = None
    """Most `#` per word or mark (Gopher: 0.1)."""
    max_ellipsis_ratio: Fraction | None = None
    """Most ellipses, of one character or three, per word or mark (Gopher: 0.1)."""
    max_bullet_lines: Fraction | None = None
    """Largest share of lines that begin with a bullet or hyphen (Gopher: 0.9)."""
    max_ellipsis_lines: Fraction | None = None
    """Largest share of lines that end with an ellipsis (Gopher: 0.3)."""
    min_alphabetic_words: Fraction | None = None
    """Smallest share of words with a letter among all words and marks (Gopher: 0.8)."""
    min_stop_words: NonNegative | None = None
    """Fewest of these words in lower case, each counted once: the be to of and that have with (Gopher: 2)."""
    max_duplicate_lines: Fraction | None = None
    """Largest share of lines that repeat an earlier line (Gopher: 0.3)."""
    max_duplicate_paragraphs: Fraction | None = None
    """Largest share of paragraphs that repeat an earlier one; blank lines separate paragraphs (Gopher: 0.3)."""
    max_duplicate_line_characters: Fraction | None = None
    """Largest share of characters in lines that repeat an earlier line (Gopher: 0.2)."""
    max_duplicate_paragraph_characters: Fraction | None = None
    """Largest share of characters in paragraphs that repeat an earlier one (Gopher: 0.2)."""
    max_top_2_gram: Fraction | None = None
    """Largest share of characters in the most frequent 2-gram of words and marks (Gopher: 0.20)."""
    max_top_3_gram: Fraction | None = None
    """Largest share of characters in the most frequent 3-gram of words and marks (Gopher: 0.18)."""
    max_top_4_gram: Fraction | None = None
    """Largest share of characters in the most frequent 4-gram of words and marks (Gopher: 0.16)."""
    max_duplicate_5_grams: Fraction | None = None
    """Largest share of characters in 5-grams of words and marks that repeat an earlier one (Gopher: 0.15)."""
    max_duplicate_6_grams: Fraction | None = None
    """Largest share of characters in 6-grams of words and marks that repeat an earlier one (Gopher: 0.14)."""
    max_duplicate_7_grams: Fraction | None = None
    """Largest share of characters in 7-grams of words and marks that repeat an earlier one (Gopher: 0.13)."""
    max_duplicate_8_grams: Fraction | None = None
    """Largest share of characters in 8-grams of words and marks that repeat an earlier one (Gopher: 0.12)."""
    max_duplicate_9_grams: Fraction | None = None
    """Largest share of characters in 9-grams of words and marks that repeat an earlier one (Gopher: 0.11)."""
    max_duplicate_10_grams: Fraction | None = None
    """Largest share of characters in 10-grams of words and marks that repeat an earlier one (Gopher: 0.10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class C4Lines:
    """C4's edits: the lines that are removed from a document before the rules judge it."""

    max_word_length: Count | None = None
    """Remove lines with a whitespace-separated word of more characters than this (datatrove: 1,000)."""
    citations: bool = False
    """Remove [3], [edit] and [citation needed] from the lines."""
    terminal_punctuation: bool = False
    """Remove lines that do not end with . ? ! or a straight quote, and those that end with three dots."""
    min_words: Count | None = None
    """Remove lines of fewer whitespace-separated words than this, blank lines included (datatrove: 3)."""
    javascript: bool = False
    """Remove lines that contain "javascript" in any case."""
    policies: bool = False
    """Remove lines with a phrase of cookie banners and terms of use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class C4Rules:
    """Rules of C4 on whole documents, after its lines are removed."""

    lines: C4Lines = C4Lines()
    """C4's edits: the lines that are removed from a document before the rules judge it."""
    max_lorem_ipsum: NonNegative | None = None
    """Most occurrences of "lorem ipsum" in any case (C4: 0)."""
    max_curly_brackets: NonNegative | None = None
    """Most opening curly brackets (C4: 0)."""
    min_sentences: NonNegative | None = None
    """Fewest sentences, counted line by line (C4: 5)."""
    max_bad_words: NonNegative | None = None
    """Most words of the list `bad_words` (C4: 0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineWebRules:
    """Rules that FineWeb adds to those of Gopher and C4; its lines end at line feeds, and blank ones do not count."""

    min_punctuated_lines: Fraction | None = None
    """Smallest share of lines whose last character ends a sentence (FineWeb: 0.12)."""
    max_short_lines: Fraction | None = None
    """Largest share of lines of at most 30 characters (FineWeb: 0.67)."""
    max_duplicate_line_characters: Fraction | None = None
    """Largest share of characters in lines that repeat an earlier line (FineWeb's paper: 0.1; its pipeline: 0.01)."""
    max_line_feeds_per_word: Fraction | None = None
    """Most line feeds per word or mark (FineWeb: 0.3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanConfig:
    """What a good document is. A rule that is None is off."""

    min_tokens: NonNegative = 128
    """Fewest tokens of a document, end-of-text not counted (Megatron: 128); 0: any number."""
    tokenizer: TokenizerPath = ""
    """Tokenizer file or folder that counts the tokens. Without one, GPT-2's pre-tokens are counted, a lower bound of
    its tokens, and rejected rows say so."""
    languages: tuple[str, ...] = ("en",)
    """Languages to keep, as the engine's codes (ISO 639-1). An empty list keeps every language, which is then detected
    only for other rules that are on, such as min_language_probability."""
    min_language_probability: Fraction = 0.0
    """Lowest probability of a kept document's language, 0 to 1. Where prefilter decides, the probability is 1; for
    English with at least 0.99, that agrees with the engine on 99.97 % of real texts."""
    language_mode: Literal["exact", "prefilter"] = "prefilter"
    """exact: the engine reads the whole text; prefilter: resiliparse decides the sure cases."""
    language_engine: Literal["langdetect", "resiliparse", "fasttext", "lingua"] = "langdetect"
    """Library that detects languages; fasttext needs language_model, fasttext and lingua need an extra of the
    installation."""
    language_model: SourceFile = ""
    """Model file of the engine fasttext, such as lid.176.bin; other engines need none."""
    language_seed: NonNegative = 0
    """Seed of langdetect, set anew for each document."""
    repair: bool = True
    """Repair mojibake, entities, widths and control characters with ftfy."""
    uncurl_quotes: bool = True
    """Let ftfy turn curly quotes into straight ones, as it does by default."""
    gutenberg: bool = False
    """Keep only the book: remove Project Gutenberg's header, footer and licence, and surplus blank lines."""
    general_cleaning: bool = False
    """Megatron's general_cleaning: runs of spaces, and line breaks after words, become one space."""
    stories: bool = False
    """Megatron's cleaning of the stories data set: remove spaces before `' ! . ?` and around `-` and `@`."""
    realnews: bool = False
    """Megatron's cleaning of the RealNews data set: double every line break."""
    bad_words: SourceFile = ""
    """File of the words and phrases that c4.max_bad_words counts, one a line."""
    quality: SourceFile = ""
    """Model file of `train_quality`, which judges a document by its words; without one it is not judged so."""
    min_quality: Fraction = 0.5
    """Lowest quality of a document by that model, 0 to 1; 0: any. Where good and bad examples are as likely, a quality
    above 0.5 says that a document is rather like the good ones."""
    mask: tuple[Masked, ...] = ()
    """Personal data to mask in the text, after all other edits: email; ip, public addresses only; phone, numbers of
    North America and international ones with a +."""
    compat: bool = False
    """Decide exactly as Megatron's scripts do: the floor applies only to texts below 8 characters per token of it and
    counts end-of-text; general_cleaning is skipped after ftfy; seeds.remove_512_non_english uses the language before
    ftfy. Needs tokenizer and language_mode exact."""
    annotate: bool = False
    """Drop nothing: apply the edits, and add what every rule measures as columns."""
    from_annotations: bool = False
    """The input is a folder made with `annotate`: judge its columns by these thresholds, without measuring again."""
    rules: FunctionNames = ()
    """Rules of your own, which judge a document that all others keep: functions of one Python file, FILE:FUNCTION."""
    rejected_text: bool = True
    """Keep the text of rejected documents in rejected/, as read (from annotations: after the edits)."""
    ftfy: FtfySwitches = field(default_factory=FtfySwitches)
    """Switches of the repair."""
    seeds: MegatronRules = field(default_factory=MegatronRules)
    """Lengths of Megatron's cleanup_fix_dataset."""
    gopher: GopherRules = field(default_factory=GopherRules)
    """Gopher's rules of quality and repetition."""
    c4: C4Rules = field(default_factory=C4Rules)
    """C4's rules."""
    fineweb: FineWebRules = field(default_factory=FineWebRules)
    """FineWeb's rules."""

    @property
    def language_of_original(self) -> bool:
        """Whether languages are detected before the edits, as Megatron's cleanup_fix_dataset does."""
        return self.compat and self.seeds.remove_512_non_english is not None

    def shaping(self) -> dict[str, Any]:
        """Return the settings that determine texts and measured values, but not which documents are kept."""
        plain = to_plain(self)
        prefilter = self.language_mode == "prefilter"  # which cases it decides depends on the wanted languages
        names = [*_SHAPING, *(["languages"] if prefilter else [])]
        return {
            **{name: plain[name] for name in names},
            "seeds.remove_512_non_english": "on, with compat" if self.language_of_original else "any",
            "c4.lines": plain["c4"]["lines"],
        }


_SHAPING = (
    "language_mode",
    "language_engine",
    "language_seed",
    "repair",
    "uncurl_quotes",
    "ftfy",
    "general_cleaning",
    "stories",
    "realnews",
    "gutenberg",
    "mask",
    "compat",
)
