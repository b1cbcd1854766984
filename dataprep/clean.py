"""Stage `clean`: edit each document, keep the good ones, and give a reason for every other.

documents -> documents (column `repairs`: what changed the text), rejected/ with rule, value, threshold and text.
Edits in order: ftfy's repair, the seeds' cleanings, C4's lines, masking. Then the rules in the order of
`dataprep/cleaning/table.py`: the first that fails is the reason. Presets: openwebtext (the defaults), megatron,
megatron-fix, gopher, c4, fineweb.

    python -m dataprep.clean raw.jsonl clean.jsonl --min-tokens 128
    python -m dataprep.clean raw.jsonl clean/ --preset gopher --gopher.min-words 40 --sample-rejected 5
    python -m dataprep.clean raw.jsonl annotated/ --preset fineweb --annotate
    python -m dataprep.clean annotated/ clean/ --preset fineweb --from-annotations --gopher.min-words 100
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataprep.cleaning.config import CleanConfig
from pipelines.command import Documents, Part, Table
from pipelines.config import check, given
from pipelines.documents import ShardWriter, is_jsonl, read_rows
from pipelines.errors import ConfigError, did_you_mean
from pipelines.graph import PARAMS_YAML
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

if TYPE_CHECKING:
    from dataprep.cleaning.decisions import Decider

logger = logging.getLogger(__name__)

VERSION = 2
SHAPED_BY = ("ftfy", "langdetect", "numpy", "pyarrow", "regex", "resiliparse", "tokenizers", "xxhash")


def clean(config: CleanConfig, run: StageRun, documents: Documents, output: Table) -> dict[str, Any]:
    """Clean every shard by itself; the waterfall and the audit of languages go to the stats."""
    from dataprep.cleaning import waterfall
    from dataprep.cleaning.annotations import check_annotations
    from dataprep.cleaning.checks import make_checks
    from dataprep.cleaning.decisions import active
    from dataprep.cleaning.token_floor import TokenFloor

    _warn(config, output.final)
    checks = active(make_checks(config, TokenFloor(None)))
    for part in documents.parts if config.from_annotations else ():
        check_annotations(config, part.file, checks)
    counts = run.map(clean_part, documents.parts, config, into=output)
    _warn_of_pre_tokens(config, counts)
    rules = [] if config.annotate else waterfall.rules(checks, output.counts)
    stats = {"waterfall": rules, "edits": waterfall.edits(counts), "language_audit": waterfall.audit(counts)}
    run.rejections_shown = waterfall.show(stats, output.counts.rows_in)
    return stats


def clean_part(part: Part, folder: Path, config: CleanConfig) -> Counts:
    """Edit and judge the documents of one shard."""
    from dataprep.cleaning.decisions import rejected_fields

    decider = _decider(config)
    with ShardWriter(folder, part.name, decider.fields, rejected_fields(config)) as shard:
        for row in read_rows(part.file):
            decider.decide(row, shard)
    return shard.counts


def _decider(config: CleanConfig) -> "Decider":
    from dataprep.cleaning.annotations import AnnotationJudge, Annotator
    from dataprep.cleaning.decisions import Cleaner

    if config.from_annotations:
        return AnnotationJudge(config)
    return Annotator(config) if config.annotate else Cleaner(config)


def check_parameters(params: Mapping[str, Any]) -> None:
    """Refuse, when parameters are composed, what `check_config` would refuse of the command."""
    check_config(check(CleanConfig, params["clean"], "clean", str(PARAMS_YAML)))


def check_config(config: CleanConfig) -> None:
    """ConfigError for what cannot work together, or for a language that the engine does not know."""
    if config.annotate and config.from_annotations:
        raise ConfigError("clean.annotate: not together with from_annotations, which judges what was annotated")
    if config.c4.max_bad_words is not None and not given(config.bad_words):
        raise ConfigError("clean.c4.max_bad_words: needs a list of words; give clean.bad_words=FILE, one word a line")
    _check_limits(config)
    _check_compat(config)
    _check_languages(config)


def _check_limits(config: CleanConfig) -> None:
    """ConfigError for limits that no document can keep to."""
    for limit in ("words", "mean_word_length"):
        least, most = (getattr(config.gopher, f"{end}_{limit}") for end in ("min", "max"))
        if least is not None and most is not None and least > most:
            raise ConfigError(
                f"clean.gopher.min_{limit}: {least} is above clean.gopher.max_{limit}, {most}; no document is both"
            )


def _warn(config: CleanConfig, output: Path) -> None:
    """Name what is given and of no use."""
    if given(config.bad_words) and config.c4.max_bad_words is None:
        logger.warning("clean.bad_words: is not used, since clean.c4.max_bad_words is off; set it, for C4's rule to 0")
    if given(config.language_model) and config.language_engine != "fasttext":
        logger.warning("clean.language_model: %s has none, so it is not used", config.language_engine)
    if config.annotate and is_jsonl(output):
        logger.warning("clean.annotate: %s is for reading; from_annotations takes a folder only", output)


def _warn_of_pre_tokens(config: CleanConfig, counts: Counts) -> None:
    """Say that documents were rejected by a lower bound of their tokens."""
    from dataprep.cleaning.table import TOO_FEW_TOKENS

    rejected = counts.rejected.get(TOO_FEW_TOKENS, 0)
    if rejected and not given(config.tokenizer):
        logger.warning(
            "clean.tokenizer: without one, %s documents have too few of GPT-2's pre-tokens, which are fewer than "
            "tokens; give clean.tokenizer=FILE_OR_FOLDER where there is one to count tokens",
            f"{rejected:,}",
        )


def _check_compat(config: CleanConfig) -> None:
    if not config.compat:
        return
    if config.min_tokens and not given(config.tokenizer):
        raise ConfigError("clean.compat: Megatron counts GPT-2's tokens; give clean.tokenizer=FOLDER with its files")
    if (config.language_engine, config.language_mode) != ("langdetect", "exact"):
        raise ConfigError("clean.compat: Megatron gives langdetect the whole text; set clean.language_mode=exact")
    if config.language_of_original and (config.languages or config.min_language_probability):
        raise ConfigError(
            "clean.compat: clean.languages belongs to cleanup_dataset, clean.seeds.remove_512_non_english to "
            "cleanup_fix_dataset, and each reads another text; leave one out (also min_language_probability)"
        )


def _check_languages(config: CleanConfig) -> None:
    """ConfigError for a language that the engine does not know; without its model file nobody can tell."""
    from dataprep.cleaning.seed_rules import ENGLISH
    from dataprep.languages.detection import known_languages
    from dataprep.languages.names import code_of

    wanted = [("languages", language) for language in config.languages]
    if config.seeds.remove_512_non_english is not None:
        wanted.append(("seeds.remove_512_non_english", ENGLISH))
    model = given(config.language_model)
    if not wanted or (model and not model.exists()):
        return
    known = known_languages(config.language_engine, model)
    for key, language in wanted:
        if language not in known:
            raise ConfigError(
                f"clean.{key}: {config.language_engine} knows no {language!r}.{did_you_mean(code_of(language), known)}"
            )


if __name__ == "__main__":
    stage_main("dataprep.clean")
