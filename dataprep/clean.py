"""Stage `clean`: repair each document and keep the good ones, with a reason for every other.

documents -> documents (text repaired by ftfy, column `repaired`), rejected/ with rule and value.
Rules, in order: `too_few_tokens` (the token floor), `language` (langdetect, seeded per document).

    python -m dataprep.clean raw.jsonl clean.jsonl --min-tokens 128
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pipelines.command import Documents, Part, Table
from pipelines.config import NonNegative, SourcePath, given
from pipelines.documents import ShardWriter, read_rows
from pipelines.errors import ConfigError, did_you_mean
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("ftfy", "langdetect", "regex", "tokenizers", "pyarrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanConfig:
    """What a good document is."""

    min_tokens: NonNegative = 128
    """Fewest tokens of a document, end-of-text not counted (the seeds' 128)."""
    tokenizer: SourcePath = ""
    """Tokenizer file or folder that counts the tokens; without one, GPT-2's pre-tokens, a lower bound of its tokens."""
    languages: tuple[str, ...] = ("en",)
    """Languages to keep, ISO 639-1; none keeps every language and skips the detection."""
    language_seed: NonNegative = 0
    """Seed of langdetect, set anew for each document."""
    repair: bool = True
    """Repair mojibake, entities and control characters with ftfy."""
    uncurl_quotes: bool = True
    """Let ftfy turn curly quotes into straight ones, as it does by default."""


def clean(config: CleanConfig, run: StageRun, documents: Documents, output: Table) -> None:
    """Clean every shard by itself."""
    from dataprep.text.clean_rules import known_languages

    for language in config.languages:
        if language not in known_languages():
            raise ConfigError(
                f"clean.languages: langdetect knows no {language!r}.{did_you_mean(language, known_languages())}"
            )
    run.map(clean_part, documents.parts, config, into=output)


def clean_part(part: Part, folder: Path, config: CleanConfig) -> Counts:
    """Repair the documents of one shard and apply the rules."""
    from dataprep.text.clean_rules import enough_tokens, repair, wanted_language

    count_tokens = _token_counter(config)
    with ShardWriter(folder, part.name, [pa.field("repaired", pa.bool_())]) as shard:
        for row in read_rows(part.file):
            text = repair(row["text"], uncurl_quotes=config.uncurl_quotes) if config.repair else row["text"]
            tokens = enough_tokens(text, minimum=config.min_tokens, count_tokens=count_tokens)
            if not tokens.passed:
                shard.reject(row, "too_few_tokens", tokens.value)
                continue
            language = (
                wanted_language(text, languages=config.languages, seed=config.language_seed)
                if config.languages
                else None
            )
            if language and not language.passed:
                shard.reject(row, "language", language.value)
                continue
            repaired = text != row["text"]
            shard.keep({**row, "text": text, "repaired": repaired})
            shard.counts.total("repaired", int(repaired))
    return shard.counts


def _token_counter(config: CleanConfig):
    from dataprep.text.bpe import TextEncoder

    path = given(config.tokenizer)
    return TextEncoder.load(path).count if path else None


if __name__ == "__main__":
    stage_main("dataprep.clean")
