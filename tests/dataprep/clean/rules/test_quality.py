"""The rule `quality` of `clean`: off without a model, and with one a rule as others are."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from dataprep.clean.config import CleanConfig
from dataprep.clean.decide import check_annotations
from dataprep.clean.rules.table import active, make_checks
from dataprep.clean.stage import clean_part
from dataprep.clean.token_floor import TokenFloor
from dataprep.ledger.rows import number_of
from pipelines.command import Part, StageSpec
from pipelines.documents import read_schema
from pipelines.errors import ConfigError, UserError
from pipelines.fingerprint import fingerprint, stage_identity
from pipelines.project.graph import load_stages
from pipelines.project.profiles import compose
from pipelines.stage import parse, run_command
from tests.dataprep.clean.documents import clean_shard, shard
from tests.dataprep.quality.examples import BAD_WORDS, GOOD_WORDS, texts, write

ROOT = Path(__file__).parents[4]
CLEAN = StageSpec.load("dataprep.clean")
PLAIN = CleanConfig(min_tokens=0, languages=())
TEXTS = {
    "good": "The miller ground grain for bread, and the river turned its wheel.",
    "bad": "Subscribe to our newsletter! Contact us. Privacy policy.",
    "empty": "",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    write(folder / "good.jsonl", texts(GOOD_WORDS, 60))
    write(folder / "bad.jsonl", texts(BAD_WORDS, 60))
    stage = StageSpec.load("dataprep.train_quality")
    words = [str(folder / name) for name in ("good.jsonl", "bad.jsonl", "quality")]
    assert run_command(stage, [*words, "--bits", "14"]) == 0
    return str(folder / "quality" / "model.arrow")


def judged(folder: Path, config: CleanConfig) -> tuple[list[str], dict[str, Any]]:
    """URLs that are kept, and the rejected rows by URL."""
    folder.mkdir(exist_ok=True)
    _, kept, rejected = clean_shard(shard(folder, TEXTS), folder / "out", config)
    return [row["url"] for row in kept], {row["url"]: row for row in rejected}


def test_a_document_below_the_threshold_is_rejected_with_its_words(tmp_path: Path, model: str) -> None:
    kept, rejected = judged(tmp_path, dataclasses.replace(PLAIN, quality=model))
    assert kept == ["good"]
    row = rejected["bad"]
    assert (row["rule"], row["threshold"]) == ("quality", "at least 0.5")
    value, _, against = row["value"].partition(", against it: ")
    assert 0 < float(value) < 0.5
    assert len(against.split(", ")) == 5
    assert {*against.replace(",", "").split()} <= {*re.findall("[a-z]+", TEXTS["bad"].lower())}
    assert number_of(row["value"]) == float(value)
    assert rejected["empty"]["value"] == "0.0000"


@pytest.mark.parametrize(("minimum", "kept"), [(0.0, ["good", "bad", "empty"]), (0.01, ["good", "bad"]), (1.0, [])])
def test_the_threshold_decides(tmp_path: Path, model: str, minimum: float, kept: list[str]) -> None:
    assert judged(tmp_path, dataclasses.replace(PLAIN, quality=model, min_quality=minimum))[0] == kept


def test_without_a_model_there_is_neither_a_check_nor_a_column_nor_another_setting(tmp_path: Path) -> None:
    names = [check.name for check in make_checks(PLAIN, TokenFloor(None))]
    assert "quality" not in names
    config = dataclasses.replace(PLAIN, annotate=True)
    clean_part(Part("part-00000", (shard(tmp_path, TEXTS),)), tmp_path / "out", config)
    schema = read_schema(tmp_path / "out" / "part-00000.parquet")
    assert "rule_quality" not in schema.names
    assert "quality" not in json.loads(schema.field("repairs").metadata[b"clean"])


def test_annotations_give_the_rows_of_a_direct_run(tmp_path: Path, model: str) -> None:
    config = dataclasses.replace(PLAIN, quality=model)
    direct = judged(tmp_path / "direct", config)
    (tmp_path / "a").mkdir()
    clean_shard(shard(tmp_path / "a", TEXTS), tmp_path / "annotated", dataclasses.replace(config, annotate=True))
    file = tmp_path / "annotated" / "part-00000.parquet"
    config = dataclasses.replace(config, from_annotations=True)
    check_annotations(config, file, active(make_checks(config, TokenFloor(None))))
    _, kept, rejected = clean_shard(file, tmp_path / "judged", config)
    assert ([row["url"] for row in kept], {row["url"]: row for row in rejected}) == direct


def test_annotations_of_another_model_or_of_none_are_refused(tmp_path: Path, model: str) -> None:
    for name, quality in (("without", ""), ("with", model)):
        (tmp_path / name).mkdir()
        annotated = dataclasses.replace(PLAIN, annotate=True, quality=quality)
        clean_shard(shard(tmp_path / name, TEXTS), tmp_path / name / "out", annotated)
    config = dataclasses.replace(PLAIN, quality=model, from_annotations=True)
    checks = active(make_checks(config, TokenFloor(None)))
    with pytest.raises(ConfigError, match="has no column rule_quality; annotate again"):
        check_annotations(config, tmp_path / "without" / "out" / "part-00000.parquet", checks)
    other = tmp_path / "other.arrow"
    other.write_bytes(Path(model).read_bytes() + b"x")
    changed = dataclasses.replace(config, quality=str(other))
    with pytest.raises(ConfigError, match=r"clean\.quality: the annotations were made with another file"):
        check_annotations(changed, tmp_path / "with" / "out" / "part-00000.parquet", checks)


def test_the_command_gives_the_same_with_any_number_of_workers_and_counts_in_the_waterfall(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        write(Path(f"{name}.jsonl"), [*texts(GOOD_WORDS, 20), *texts(BAD_WORDS, 10)])
    made: list[bytes] = []
    for workers in ("1", "2"):
        words = ["a.jsonl", "b.jsonl", f"{workers}.jsonl", "--min-tokens", "0", "--languages", "--quality", model]
        assert run_command(CLEAN, [*words, "--workers", workers, "--stats", "s.json"]) == 0
        made.append(Path(f"{workers}.jsonl").read_bytes() + Path(f"{workers}.rejected.jsonl").read_bytes())
    assert made[0] == made[1]
    (row,) = json.loads(Path("s.json").read_text())["waterfall"]
    assert (row["rule"], row["threshold"], row["in"], row["rejected"]) == ("quality", "at least 0.5", 60, 20)


def test_a_file_that_is_no_model_ends_the_run_before_a_document_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("raw.jsonl"), ["The mill."])
    Path("model.arrow").write_bytes(b"ARROW1 and no more")
    assert run_command(CLEAN, ["raw.jsonl", "out", "--quality", "model.arrow"]) == 1
    assert "model.arrow: not a quality model, or a damaged one" in capsys.readouterr().err
    assert run_command(CLEAN, ["raw.jsonl", "out", "--quality", "none.arrow"]) == 2
    assert "clean.quality: none.arrow: no such file or folder" in capsys.readouterr().err


def test_a_model_without_a_threshold_is_said_to_be_unused(
    tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("raw.jsonl"), ["The mill."])
    words = ["raw.jsonl", "out", "--quality", model, "--min-quality", "0", "--min-tokens", "0"]
    assert run_command(CLEAN, words) == 0
    assert "clean.quality: not used, since clean.min_quality is 0" in capsys.readouterr().err


def test_the_models_content_is_part_of_the_stages_identity(tmp_path: Path, model: str) -> None:
    write(tmp_path / "raw.jsonl", ["The mill."])
    copy = tmp_path / "model.arrow"
    prints: list[str] = []
    for content in (Path(model).read_bytes(), b"another"):
        copy.write_bytes(content)
        call = parse(CLEAN, [str(tmp_path / "raw.jsonl"), str(tmp_path / "out"), "--quality", str(copy)])
        prints.append(fingerprint(stage_identity(CLEAN, call)))
    assert prints[0] != prints[1]


def test_the_graph_watches_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    stages = {stage.name: stage for stage in load_stages(compose("sample", ["clean.quality=inputs/model.arrow"]))}
    assert Path("inputs/model.arrow") in stages["clean"].deps


def test_a_worker_that_finds_no_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        judged(tmp_path, dataclasses.replace(PLAIN, quality=str(tmp_path / "none")))
