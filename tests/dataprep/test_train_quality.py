"""`train_quality`: the same bytes from the same documents, honest measures, one line for examples that do not do."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dataprep.quality.model import MODEL_FILE, QualityModel
from dataprep.train_quality import HELD_OUT_FILE
from pipelines.command import StageSpec
from pipelines.stage import run_command
from tests.dataprep.quality.examples import BAD_WORDS, GOOD_WORDS, texts, write

STAGE = StageSpec.load("dataprep.train_quality")
GOOD, BAD = texts(GOOD_WORDS, 90), texts(BAD_WORDS, 60)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write(Path("good.jsonl"), GOOD)
    write(Path("bad.jsonl"), BAD)
    return tmp_path


def trained(*words: str, good: str = "good.jsonl", bad: str = "bad.jsonl", output: str = "quality") -> dict[str, bytes]:
    """The files that the stage publishes."""
    assert run_command(STAGE, [good, bad, output, "--bits", "12", "--stats", f"{output}.json", *words]) == 0
    return {name: Path(output, name).read_bytes() for name in (MODEL_FILE, HELD_OUT_FILE)}


def stats(output: str = "quality") -> dict[str, Any]:
    return json.loads(Path(f"{output}.json").read_text())


def test_it_tells_documents_that_it_was_not_trained_on() -> None:
    trained()
    measured = stats()
    assert (measured["in"], measured["trained_good"], measured["good"], measured["bad"]) == (150, 81, 9, 6)
    assert (measured["accuracy"], measured["auc"]) == (1.0, 1.0)
    model = QualityModel.load(Path("quality", MODEL_FILE))
    assert model.quality("The miller ground grain in the valley.") > 0.6
    assert model.quality("Subscribe to our newsletter, or log in.") < 0.4
    assert model.trained["held_out"] == {"good": 9, "bad": 6, "accuracy": 1.0, "auc": 1.0}


def test_held_out_measures_are_those_of_documents_set_aside() -> None:
    """With random labels the classifier knows its own examples, and must not be measured on them."""
    mixed = [f"{text} {number}" for number, text in enumerate(texts(GOOD_WORDS, 400))]
    random.Random(7).shuffle(mixed)
    write(Path("a.jsonl"), mixed[:200])
    write(Path("b.jsonl"), mixed[200:])
    trained("--held-out", "0.5", "--l2", "1e-6", good="a.jsonl", bad="b.jsonl", output="chance")
    assert 0.35 < stats("chance")["auc"] < 0.65


def test_every_threshold_says_what_it_would_keep() -> None:
    held_out = json.loads(trained()[HELD_OUT_FILE])
    kept = [(row["good_kept"], row["bad_kept"]) for row in held_out["thresholds"]]
    assert kept == sorted(kept, reverse=True)
    assert dict(zip([row["min_quality"] for row in held_out["thresholds"]], kept, strict=True))[0.5] == (9, 0)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_order_files_and_workers_do_not_matter(workers: str) -> None:
    expected = trained(output="one")
    shuffled = random.Random(3).sample(GOOD, len(GOOD))
    Path("goods").mkdir()
    for number in range(3):
        write(Path(f"goods/{number}.jsonl"), shuffled[number::3])
    assert trained("--workers", workers, good="goods", output="other") == expected


def test_numpy_trains_the_same_bytes_as_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained("--workers", "1", output="one")
    for module in ("dataprep.dedup.shingles", "dataprep.text.folding"):
        monkeypatch.setattr(f"{module}.kernel", lambda: None)
    assert trained("--workers", "1", output="other") == expected


def test_a_seed_sets_other_documents_aside() -> None:
    assert trained(output="one")[MODEL_FILE] != trained("--seed", "7", output="other")[MODEL_FILE]


def test_repeated_documents_count_once_and_those_of_both_classes_not_at_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = trained(output="one")
    write(Path("good.jsonl"), [*GOOD, GOOD[0].upper(), "of both classes", "", "?!"])
    write(Path("bad.jsonl"), [*BAD, *BAD[:3], "Of  both classes"])
    capsys.readouterr()
    assert trained(output="other") == expected
    assert (stats("other")["repeated"], stats("other")["in_both_classes"], stats("other")["no_words"]) == (5, 1, 2)
    assert "1 document is both good and bad, and left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        ([], BAD, "good.jsonl: holds no document"),
        (["", "..."] * 20, BAD, "0 different good documents with words; it takes at least 10"),
        (GOOD, BAD[:9], "9 different bad documents with words; it takes at least 10"),
        (GOOD, GOOD, "0 different good documents with words that are not also of the other class"),
        ([GOOD[0]] * 50, BAD, "1 different good documents"),
    ],
)
def test_too_few_examples_are_refused(
    good: list[str], bad: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(Path("good.jsonl"), good)
    write(Path("bad.jsonl"), bad)
    assert run_command(STAGE, ["good.jsonl", "bad.jsonl", "quality", "--bits", "12"]) == 1
    error = capsys.readouterr().err
    assert message in " ".join(error.split())
    assert not Path("quality").exists()


def test_ten_of_each_are_trained_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("good.jsonl"), GOOD[:10])
    write(Path("bad.jsonl"), BAD[:10])
    trained()
    assert "only 10 good documents, so the measures are uncertain" in capsys.readouterr().err


def test_a_training_cut_short_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    trained("--max-steps", "2")
    assert "not at its end after 2 steps" in capsys.readouterr().err


def test_broken_lines_among_the_examples_are_passed_over_and_a_broken_file_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = trained(output="one")
    with Path("good.jsonl").open("a") as file:
        file.write('{"text": 3}\nnot JSON\n')
    assert trained(output="other") == expected
    Path("bad.jsonl").write_bytes(b"\x00\x01\x02")
    assert run_command(STAGE, ["good.jsonl", "bad.jsonl", "third"]) == 1
    assert "bad.jsonl: its only line is no document" in capsys.readouterr().err
