"""Section `clean`: what a good document is. Presets of it are in `configs/clean/`."""

from dataclasses import dataclass, field
from typing import Any, Literal

from dataprep.cleaning.thresholds import C4Rules, FineWebRules, GopherRules, SeedRules
from pipelines.config import NonNegative, Share, SourceFile, TokenizerPath, to_plain

Masked = Literal["email", "ip", "phone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FtfySwitches:
    """ftfy's switches beside `uncurl_quotes`, by its names and with its defaults."""

    unescape_html: Literal["auto", "always", "never"] = "auto"
    """Replace HTML entities; auto: only up to the first line with a `<`."""
    remove_terminal_escapes: bool = True
    """Remove ANSI escapes such as colours."""
    fix_encoding: bool = True
    """Decode mojibake, text read in a wrong encoding; the next three and fix_c1_controls refine it."""
    restore_byte_a0: bool = True
    """Read a space as the byte A0 where that makes mojibake decodable."""
    replace_lossy_sequences: bool = True
    """Decode mojibake that lost bytes to U+FFFD or `?` as U+FFFD."""
    decode_inconsistent_utf8: bool = True
    """Decode stretches of mojibake in a line that is otherwise sound."""
    fix_c1_controls: bool = True
    """Read C1 controls (U+0080 to U+009F) as Windows-1252."""
    fix_latin_ligatures: bool = True
    """Write ligatures and digraphs as letters."""
    fix_character_width: bool = True
    """Write fullwidth and halfwidth forms in their ordinary width."""
    fix_line_breaks: bool = True
    """Write every kind of line break as a line feed."""
    fix_surrogates: bool = True
    """Join surrogate pairs; a lone surrogate becomes U+FFFD."""
    remove_control_chars: bool = True
    """Remove control characters without meaning in text, and byte order marks."""
    normalization: Literal["NFC", "NFD", "NFKC", "NFKD", "none"] = "NFC"
    """Unicode normalization form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanConfig:
    """What a good document is. A rule that is None is off."""

    min_tokens: NonNegative = 128
    """Fewest tokens of a document, end-of-text not counted (the seeds' 128); 0: any number."""
    tokenizer: TokenizerPath = ""
    """Tokenizer file or folder that counts the tokens; without one, GPT-2's pre-tokens, a lower bound of its tokens,
    count instead, and rejected rows say so."""
    languages: tuple[str, ...] = ("en",)
    """Languages to keep, as the engine's codes (ISO 639-1); none keeps every language, and detects it only for
    another rule that is on, such as min_language_probability."""
    min_language_probability: Share = 0.0
    """Lowest probability of the language of a document that is kept, 0 to 1; it is 1 where prefilter
    decides, which agrees with the engine on 99.97 % of real texts for English with at least 0.99."""
    language_mode: Literal["exact", "sampled", "prefilter"] = "prefilter"
    """exact: the engine reads the whole text; prefilter: resiliparse decides the sure cases; sampled: three windows,
    the weakest (decides as exact on 99.7 % of real texts, on 94.5 % of mixed ones)."""
    language_engine: Literal["langdetect", "resiliparse", "fasttext", "lingua"] = "langdetect"
    """What tells languages; fasttext needs language_model, and the last two need an extra of the installation."""
    language_model: SourceFile = ""
    """Model file of the engine fasttext, such as lid.176.bin; the others have none."""
    language_seed: NonNegative = 0
    """Seed of langdetect, set anew for each document."""
    repair: bool = True
    """Repair mojibake, entities, widths and control characters with ftfy."""
    uncurl_quotes: bool = True
    """Let ftfy turn curly quotes into straight ones, as it does by default."""
    gutenberg: bool = False
    """Leave the book alone: without Project Gutenberg's header, footer and licence, and without surplus blank lines."""
    general_cleaning: bool = False
    """The seeds' general_cleaning: runs of spaces, and line breaks after words, become one space."""
    stories: bool = False
    """The seeds' cleaning of the stories data set: no spaces before `' ! . ?` and around `-` and `@`."""
    realnews: bool = False
    """The seeds' cleaning of the RealNews data set: every line break is doubled."""
    bad_words: SourceFile = ""
    """File of the words and phrases that c4.max_bad_words counts, one a line."""
    mask: tuple[Masked, ...] = ()
    """Personal data to mask in the text, after all else: email; ip, public addresses only; phone, numbers of North
    America and international ones with a +."""
    compat: bool = False
    """Decide exactly as Megatron's scripts: the floor only for texts below 8 characters per token of it, with
    end-of-text counted; general_cleaning not after ftfy; seeds.remove_512_non_english by the language before ftfy.
    Needs tokenizer and language_mode exact."""
    annotate: bool = False
    """Drop nothing: apply the edits, and add what every rule measures as columns."""
    from_annotations: bool = False
    """The input is a folder made with `annotate`: judge its columns by these thresholds, without measuring again."""
    rejected_text: bool = True
    """Keep the text of rejected documents in rejected/, as it came in (from annotations: after the edits)."""
    ftfy: FtfySwitches = field(default_factory=FtfySwitches)
    """Switches of the repair."""
    seeds: SeedRules = field(default_factory=SeedRules)
    """Lengths of Megatron's cleanup_fix_dataset."""
    gopher: GopherRules = field(default_factory=GopherRules)
    """Gopher's rules of quality and repetition."""
    c4: C4Rules = field(default_factory=C4Rules)
    """C4's rules."""
    fineweb: FineWebRules = field(default_factory=FineWebRules)
    """FineWeb's rules."""

    @property
    def language_of_original(self) -> bool:
        """Whether the language is that of the text as it came: cleanup_fix_dataset asks for it before its edits."""
        return self.compat and self.seeds.remove_512_non_english is not None

    def shaping(self) -> dict[str, Any]:
        """The settings that shape texts and what is measured in them, but not what is kept."""
        plain = to_plain(self)
        prefilter = self.language_mode == "prefilter"  # what it is sure of depends on what is wanted
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
