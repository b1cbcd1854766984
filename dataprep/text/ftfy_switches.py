"""ftfy's switches as parameters, in a module that does not load ftfy, so that `--help` stays fast."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class FtfySwitches:
    """ftfy's switches except `uncurl_quotes`, with its names and defaults."""

    unescape_html: Literal["auto", "always", "never"] = "auto"
    """Replace HTML entities; auto: only up to the first line with a `<`."""
    remove_terminal_escapes: bool = True
    """Remove ANSI escapes such as colours."""
    fix_encoding: bool = True
    """Decode mojibake, text read in a wrong encoding; the next three switches and fix_c1_controls refine it."""
    restore_byte_a0: bool = True
    """Read a space as the byte A0 where that makes mojibake decodable."""
    replace_lossy_sequences: bool = True
    """Decode mojibake whose lost bytes became U+FFFD or `?`; the lost characters become U+FFFD."""
    decode_inconsistent_utf8: bool = True
    """Decode stretches of mojibake in a line that is otherwise sound."""
    fix_c1_controls: bool = True
    """Read C1 controls (U+0080 to U+009F) as Windows-1252."""
    fix_latin_ligatures: bool = True
    """Write ligatures and digraphs as separate letters."""
    fix_character_width: bool = True
    """Write fullwidth and halfwidth forms in their ordinary width."""
    fix_line_breaks: bool = True
    """Write every kind of line break as a line feed."""
    fix_surrogates: bool = True
    """Join surrogate pairs; a lone surrogate becomes U+FFFD."""
    remove_control_chars: bool = True
    """Remove control characters that mean nothing in text, and byte order marks."""
    normalization: Literal["NFC", "NFD", "NFKC", "NFKD", "none"] = "NFC"
    """Unicode normalization form."""
