"""`show_quality` says which words speak for and against a document."""

from pathlib import Path

import pytest

from dataprep.show_quality import main
from pipelines.command import StageSpec
from pipelines.stage import run_command
from tests.dataprep.clean.documents import shard
from tests.dataprep.quality.examples import BAD_WORDS, GOOD_WORDS, texts, write

GOOD_TEXT, BAD_TEXT = "The miller ground grain, and the river turned.", "Subscribe now and read our newsletter."


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write(Path("good.jsonl"), texts(GOOD_WORDS, 60))
    write(Path("bad.jsonl"), texts(BAD_WORDS, 60))
    stage = StageSpec.load("dataprep.train_quality")
    assert run_command(stage, ["good.jsonl", "bad.jsonl", "quality", "--bits", "14"]) == 0
    write(Path("raw.jsonl"), [GOOD_TEXT, BAD_TEXT, "?!"])
    return "quality/model.arrow"


def test_each_document_is_explained(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main([model, "raw.jsonl", "--words", "3"]) == 0
    good, for_good, _, total, bad, _, against_bad, _, empty, nothing = capsys.readouterr().out.splitlines()
    assert " http://mill.test/0: quality 0.9" in good
    assert "ground +" in for_good
    assert "words and pairs: +" in total
    assert float(bad.split()[-1]) < 0.4
    assert "newsletter -" in against_bad
    assert against_bad.count(",") == 2
    assert empty.endswith("quality 0.0000")
    assert nothing == "  no words"


def test_one_document_is_found_by_url_or_id_in_shards(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("shards").mkdir()
    shard(Path("shards"), {"http://mill.test/a": GOOD_TEXT, "http://mill.test/b": BAD_TEXT})
    capsys.readouterr()
    assert main([model, "shards", "--only", "http://mill.test/b"]) == 0
    by_url = capsys.readouterr().out
    assert by_url.count("quality") == 1
    assert main([model, "shards", "--only", by_url.split()[0]]) == 0
    assert capsys.readouterr().out == by_url
    assert main([model, "shards", "--documents", "1"]) == 0
    assert capsys.readouterr().out.count("quality") == 1


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["raw.jsonl", "raw.jsonl"], 1, "raw.jsonl: not a quality model"),
        (["quality/model.arrow", "none"], 1, "none: no such file or folder"),
        (["quality/model.arrow", "empty"], 1, "empty: holds neither document shards"),
        (["quality/model.arrow", "raw.jsonl", "--only", "x"], 1, "raw.jsonl: no document x"),
        (["quality/model.arrow", "raw.jsonl", "--words", "0"], 2, "--words"),
    ],
)
@pytest.mark.usefixtures("model")
def test_wrong_words_are_one_line(
    words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    Path("empty").mkdir()
    assert main(words) == status
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
