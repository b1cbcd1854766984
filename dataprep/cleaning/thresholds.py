"""Thresholds of the families of rules, a field per rule; None switches a rule off, and all are off by default.

A rule's name is `<family>_<field>`. The presets in configs/clean/ hold the published numbers. "Marks" are words of
punctuation alone, as datatrove has it (`text_counts.py`); a share of nothing is 0.

Sources: Gopher = Rae et al. 2021, arXiv:2112.11446, appendix A.1.1 and table A1; C4 = Raffel et al. 2020, JMLR 21/140,
section 2.2, and tensorflow/datasets, text/c4_utils.py; FineWeb = Penedo et al. 2024, arXiv:2406.17557, section 3.5;
all as huggingface/datatrove has them in src/datatrove/pipeline/filters/ (0.10); the seeds = NVIDIA/Megatron-LM,
tools/openwebtext/cleanup_fix_dataset.py.
"""

from dataclasses import dataclass

from pipelines.config import Count, NonNegative, Positive, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedRules:
    """The seeds' rules on short documents, as they come and before any edit."""

    remove_512: Count | None = None
    """Fewest characters of a document (the seeds: 512)."""
    remove_256_javascript: Count | None = None
    """Fewest characters of a document that says "javascript" in any case (the seeds: 256)."""
    remove_512_non_english: Count | None = None
    """Fewest characters of a document in another language than English (the seeds: 512). The characters are those of
    the text as it came; the language is that of the text after all edits, with compat of the text as it came, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GopherRules:
    """Quality and repetition rules of Gopher, as datatrove counts them."""

    min_words: NonNegative | None = None
    """Fewest words, marks not counted (Gopher: 50)."""
    max_words: Count | None = None
    """Most words, marks not counted (Gopher: 100,000)."""
    min_mean_word_length: Positive | None = None
    """Least mean length of a word, in characters, marks not counted (Gopher: 3)."""
    max_mean_word_length: Positive | None = None
    """Greatest mean length of a word, in characters, marks not counted (Gopher: 10)."""
    max_hash_ratio: Share | None = None
    """Most `#` per word or mark (Gopher: 0.1)."""
    max_ellipsis_ratio: Share | None = None
    """Most ellipses, of one character or three, per word or mark (Gopher: 0.1)."""
    max_bullet_lines: Share | None = None
    """Largest share of lines that begin with a bullet or hyphen (Gopher: 0.9)."""
    max_ellipsis_lines: Share | None = None
    """Largest share of lines that end with an ellipsis (Gopher: 0.3)."""
    min_alphabetic_words: Share | None = None
    """Least share of words with a letter among all words and marks (Gopher: 0.8)."""
    min_stop_words: NonNegative | None = None
    """Fewest of these words in lower case, each counted once: the be to of and that have with (Gopher: 2)."""
    max_duplicate_lines: Share | None = None
    """Largest share of lines that stood before (Gopher: 0.3)."""
    max_duplicate_paragraphs: Share | None = None
    """Largest share of paragraphs that stood before; blank lines end a paragraph (Gopher: 0.3)."""
    max_duplicate_line_characters: Share | None = None
    """Largest share of characters in lines that stood before (Gopher: 0.2)."""
    max_duplicate_paragraph_characters: Share | None = None
    """Largest share of characters in paragraphs that stood before (Gopher: 0.2)."""
    max_top_2_gram: Share | None = None
    """Largest share of characters in the most frequent run of 2 words and marks (Gopher: 0.20)."""
    max_top_3_gram: Share | None = None
    """Largest share of characters in the most frequent run of 3 words and marks (Gopher: 0.18)."""
    max_top_4_gram: Share | None = None
    """Largest share of characters in the most frequent run of 4 words and marks (Gopher: 0.16)."""
    max_duplicate_5_grams: Share | None = None
    """Largest share of characters in runs of 5 words and marks that stood before (Gopher: 0.15)."""
    max_duplicate_6_grams: Share | None = None
    """Largest share of characters in runs of 6 words and marks that stood before (Gopher: 0.14)."""
    max_duplicate_7_grams: Share | None = None
    """Largest share of characters in runs of 7 words and marks that stood before (Gopher: 0.13)."""
    max_duplicate_8_grams: Share | None = None
    """Largest share of characters in runs of 8 words and marks that stood before (Gopher: 0.12)."""
    max_duplicate_9_grams: Share | None = None
    """Largest share of characters in runs of 9 words and marks that stood before (Gopher: 0.11)."""
    max_duplicate_10_grams: Share | None = None
    """Largest share of characters in runs of 10 words and marks that stood before (Gopher: 0.10)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class C4Lines:
    """C4's edits: which lines are taken out of a document before the rules judge it."""

    max_word_length: Count | None = None
    """Take out lines with a piece longer than so many characters between white space (datatrove: 1,000)."""
    citations: bool = False
    """Take [3], [edit] and [citation needed] out of the lines."""
    terminal_punctuation: bool = False
    """Take out lines that do not end with . ? ! or a straight quote, and those that end with three dots."""
    min_words: Count | None = None
    """Take out lines of fewer pieces between white space, blank ones among them (datatrove: 3)."""
    javascript: bool = False
    """Take out lines that say "javascript" in any case."""
    policies: bool = False
    """Take out lines with a phrase of cookie banners and terms of use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class C4Rules:
    """Rules of C4 on whole documents, after its lines are taken out."""

    lines: C4Lines = C4Lines()
    """C4's edits: which lines are taken out of a document before the rules judge it."""
    max_lorem_ipsum: NonNegative | None = None
    """Most times of "lorem ipsum" in any case (C4: 0)."""
    max_curly_brackets: NonNegative | None = None
    """Most opening curly brackets (C4: 0)."""
    min_sentences: NonNegative | None = None
    """Fewest sentences, each line counted by itself (C4: 5)."""
    max_bad_words: NonNegative | None = None
    """Most words of the list `bad_words` (C4: 0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FineWebRules:
    """Rules that FineWeb adds to those of Gopher and C4; its lines end at line feeds, and blank ones do not count."""

    min_punctuated_lines: Share | None = None
    """Least share of lines whose last character ends a sentence (FineWeb: 0.12)."""
    max_short_lines: Share | None = None
    """Largest share of lines of at most 30 characters (FineWeb: 0.67)."""
    max_duplicate_line_characters: Share | None = None
    """Largest share of characters in lines that stood before (FineWeb's paper: 0.1; its pipeline: 0.01)."""
    max_line_feeds_per_word: Share | None = None
    """Most line feeds per word or mark (FineWeb: 0.3)."""
