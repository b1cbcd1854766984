"""Annotated once, judged again with other thresholds: the same documents, reasons and values as in a direct run."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from dataprep.cleaning.annotations import check_annotations
from dataprep.cleaning.checks import make_checks
from dataprep.cleaning.config import CleanConfig, FtfySwitches
from dataprep.cleaning.decisions import active
from dataprep.cleaning.table import ORDER
from dataprep.cleaning.thresholds import C4Lines, C4Rules, GopherRules, SeedRules
from dataprep.cleaning.token_floor import TokenFloor
from pipelines import presets
from pipelines.errors import ConfigError
from tests.dataprep.cleaning.documents import ENGLISH, GERMAN, NAUGHTY, clean_shard, real_texts, shard

MADE_UP = NAUGHTY | {"english": ENGLISH, "german": GERMAN, "cut": ENGLISH[:300], "bullets": "- a mill\n" * 90}


def preset(name: str) -> CleanConfig:
    return presets.load(CleanConfig, "clean", name)


def compared(folder: Path, texts: dict[str, str], annotated_by: CleanConfig, judged_by: CleanConfig) -> None:
    """Judge annotations and texts by the same configuration; everything must agree."""
    source = shard(folder, texts)
    annotate = dataclasses.replace(annotated_by, annotate=True)
    counts, rows, rejected = clean_shard(source, folder / "annotated", annotate)
    assert (len(rows), rejected, counts.rejected) == (len(texts), [], {})
    again = dataclasses.replace(judged_by, from_annotations=True)
    annotations = folder / "annotated" / "part-00000.parquet"
    check_annotations(again, annotations, active(make_checks(again, TokenFloor(None))))
    _, *found = clean_shard(annotations, folder / "again", again)
    _, *direct = clean_shard(source, folder / "direct", judged_by)
    for kept_or_rejected, expected in zip(found, direct, strict=True):
        for row in [*kept_or_rejected, *expected]:
            row.pop("text") if "rule" in row else None
        assert kept_or_rejected == expected
    assert len(direct[0]) + len(direct[1]) == len(texts)


@pytest.mark.parametrize("name", presets.names("clean"))
def test_every_preset_judges_its_annotations_as_the_texts(tmp_path: Path, name: str) -> None:
    compared(tmp_path, MADE_UP, preset(name), preset(name))


@pytest.mark.parametrize("name", ["openwebtext", "fineweb"])
def test_presets_judge_annotations_of_real_text_as_the_texts(tmp_path: Path, name: str) -> None:
    compared(tmp_path, real_texts(40), preset(name), preset(name))


def test_other_thresholds_than_those_of_the_annotation_are_free(tmp_path: Path) -> None:
    annotated = CleanConfig(repair=False, language_mode="exact")
    strict = CleanConfig(
        repair=False,
        language_mode="exact",
        min_tokens=300,
        languages=("de", "he"),
        min_language_probability=0.999,
        seeds=SeedRules(remove_512=900),
        gopher=GopherRules(min_words=150, max_duplicate_lines=0.0, max_mean_word_length=4.5),
    )
    compared(tmp_path, MADE_UP, annotated, strict)


def test_the_compatible_floor_is_told_from_annotations_too(tmp_path: Path, trained_tokenizer: Path) -> None:
    config = CleanConfig(compat=True, language_mode="exact", tokenizer=str(trained_tokenizer), min_tokens=200)
    compared(tmp_path, MADE_UP, config, config)


def test_the_language_of_the_text_as_it_came_is_not_taken_for_that_of_the_edited_one(tmp_path: Path) -> None:
    mojibake = ("Мельница стоит у реки. " * 6).encode().decode("latin-1") + " The old mill stands at the river."
    rules = SeedRules(remove_512_non_english=512)
    config = CleanConfig(compat=True, language_mode="exact", min_tokens=0, languages=(), seeds=rules)
    compared(tmp_path, MADE_UP | {"mojibake": mojibake}, config, config)
    wanted = dataclasses.replace(config, seeds=SeedRules(), languages=("en",), from_annotations=True)
    with pytest.raises(ConfigError, match=r"clean.seeds.remove_512_non_english: the annotations were made with"):
        check_annotations(wanted, tmp_path / "annotated" / "part-00000.parquet", [])


def test_annotations_with_a_tokenizer_are_judged_with_it_only(tmp_path: Path, trained_tokenizer: Path) -> None:
    """Else rows of tokens would be told as pre-tokens; where the floor is off nothing needs it."""
    config = CleanConfig(language_mode="exact", tokenizer=str(trained_tokenizer), min_tokens=200)
    compared(tmp_path, MADE_UP, config, config)
    without = dataclasses.replace(config, tokenizer="", from_annotations=True)
    file = tmp_path / "annotated" / "part-00000.parquet"
    with pytest.raises(ConfigError, match=r"clean\.tokenizer: the annotations were made with .* now there is none"):
        check_annotations(without, file, [])
    check_annotations(dataclasses.replace(without, min_tokens=0), file, [])


@pytest.fixture
def trained_tokenizer(tmp_path: Path) -> Path:
    from dataprep.text.bpe import TOKENIZER_JSON
    from tests.dataprep.cleaning.test_token_floor import TRAINED

    (tmp_path / "tokenizer").mkdir()
    TRAINED["byte level"]().save(str(tmp_path / "tokenizer" / TOKENIZER_JSON))
    return tmp_path / "tokenizer"


def test_every_rule_has_its_column(tmp_path: Path) -> None:
    clean_shard(shard(tmp_path, {"a": GERMAN}), tmp_path / "out", CleanConfig(annotate=True))
    names = pq.read_schema(tmp_path / "out" / "part-00000.parquet").names
    rules = [f"rule_{name}" for name in ORDER if not name.startswith("language")]
    assert {*rules, "language", "language_probability", "language_engine", "repairs", "masked_ip"} <= {*names}
    (row,) = pq.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist()
    assert (row["language"], row["rule_too_few_tokens"], row["rule_gopher_min_words"]) == ("de", 211, 190.0)


def without(columns: list[str]) -> Callable[[Path], None]:
    def drop(file: Path) -> None:
        pq.write_table(pq.read_table(file).drop_columns(columns), file)

    return drop


@pytest.mark.parametrize(
    ("change", "damage", "message"),
    [
        (
            {"gopher": GopherRules(min_words=1)},
            ["rule_gopher_min_words"],
            "has no column rule_gopher_min_words",
        ),
        ({}, ["language"], "has no column language; annotate again"),
        ({}, ["repairs"], "the input has no annotations; give a folder made with --annotate"),
        ({"repair": False}, [], "clean.repair: the annotations were made with true, now it is false; give the same"),
        ({"mask": ("ip",)}, [], "clean.mask: the annotations were made with [], now it is ["),
        (
            {"ftfy": FtfySwitches(normalization="NFKC")},
            [],
            'clean.ftfy: the annotations were made with {"normalization": "NFC"}, now it is {"normalization": "NFKC"};',
        ),
        (
            {"c4": C4Rules(lines=C4Lines(min_words=3))},
            [],
            'clean.c4.lines: the annotations were made with {"min_words": null}, now it is {"min_words": 3}; give',
        ),
        ({"languages": ("de",)}, [], 'clean.languages: the annotations were made with ["en"], now it is ["de"]'),
        ({"language_seed": 3}, [], "clean.language_seed: the annotations were made with 0, now it is 3"),
        (
            {"bad_words": __file__},
            [],
            f"clean.bad_words: the annotations were made without a file, now it is {__file__} (sha256 ",
        ),
    ],
)
def test_what_annotations_cannot_tell_is_refused(
    tmp_path: Path, change: dict[str, object], damage: list[str], message: str
) -> None:
    clean_shard(shard(tmp_path, {"a": ENGLISH}), tmp_path / "out", CleanConfig(annotate=True))
    file = tmp_path / "out" / "part-00000.parquet"
    without(damage)(file)
    config = dataclasses.replace(CleanConfig(from_annotations=True), **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        check_annotations(config, file, active(make_checks(config, TokenFloor(None))))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_rules_that_are_off_need_no_column(tmp_path: Path) -> None:
    clean_shard(shard(tmp_path, {"a": ENGLISH}), tmp_path / "out", CleanConfig(annotate=True))
    file = tmp_path / "out" / "part-00000.parquet"
    without(["rule_gopher_min_words", "language_engine"])(file)
    config = CleanConfig(from_annotations=True, languages=())
    check_annotations(config, file, active(make_checks(config, TokenFloor(None))))


def test_annotations_are_json_as_well(tmp_path: Path) -> None:
    from pipelines.command import StageSpec
    from pipelines.stage import run_command

    (tmp_path / "raw.jsonl").write_text(json.dumps({"text": GERMAN}) + "\n")
    arguments = [str(tmp_path / "raw.jsonl"), str(tmp_path / "out.jsonl"), "--annotate", "--log-level", "error"]
    assert run_command(StageSpec.load("dataprep.clean"), arguments) == 0
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert (row["language"], row["rule_gopher_min_words"], row["repairs"]) == ("de", 190.0, [])


def test_another_tokenizer_is_named_with_the_contents_of_both(tmp_path: Path, trained_tokenizer: Path) -> None:
    made = CleanConfig(annotate=True, tokenizer=str(trained_tokenizer))
    clean_shard(shard(tmp_path, {"a": ENGLISH}), tmp_path / "out", made)
    file = tmp_path / "out" / "part-00000.parquet"
    again = dataclasses.replace(made, annotate=False, from_annotations=True)
    check_annotations(again, file, [])
    other = trained_tokenizer / "tokenizer.json"
    other.write_text(other.read_text() + " ")
    with pytest.raises(
        ConfigError, match=r"with another file \(sha256 \w{8}\.\.\.\), now it is \S+ \(sha256 \w{8}\.\.\.\)"
    ):
        check_annotations(again, file, [])
