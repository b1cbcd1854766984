"""`explain --token`: from a token's number to its document, URL and place in the text."""

import json
from pathlib import Path

import pytest

from pipelines.errors import ConfigError, UserError
from pipelines.explain_token import explain_token, find_token, parse_key
from pipelines.graph import GraphStage
from pipelines.tokens import open_tokens
from tests.dataprep.corpora import run
from tests.pipelines.test_explain import command

TEXTS = [f"The wheel of mill {i} turns, déjà vu, 日本語, 🙂!\n" for i in range(60)] + ["", "<|endoftext|> is text"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of split, tokenizer and tokenize, published."""
    base = tmp_path_factory.mktemp("project")
    lines = (json.dumps({"url": f"http://mill.test/{i}", "text": text}) for i, text in enumerate(TEXTS))
    (base / "raw.jsonl").write_text("".join(f"{line}\n" for line in lines))
    split = ("--val-share", 0.2, "--documents-per-shard", 20)
    assert run("dataprep.split", base / "raw.jsonl", base / "split/train", base / "split/val", *split) == 0
    assert run("dataprep.tokenizer", base / "split/train", base / "tokenizer", "--vocab-size", 280) == 0
    small = ("--tokens-per-shard", 1000)
    for side in ("train", "val"):
        assert (
            run("dataprep.tokenize", base / "split" / side, base / "tokenizer", base / "tokenize" / side, *small) == 0
        )
    outs = {
        "split": ["split/train", "split/val"],
        "tokenizer": ["tokenizer"],
        "tokenize": ["tokenize/train", "tokenize/val"],
    }
    graph = {name: {"cmd": f"python -m dataprep.{name}", "outs": paths} for name, paths in outs.items()}
    (base / "dvc.yaml").write_text(json.dumps({"stages": graph}))
    (base / "params.yaml").write_text("{}\n")
    return base


@pytest.fixture
def stages(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[GraphStage]:
    from pipelines.graph import load_stages

    monkeypatch.chdir(project)
    return load_stages({})


def test_every_token_of_a_document_leads_to_its_place_in_the_text(stages: list[GraphStage]) -> None:
    """The marked pieces, put together, are the text; characters of several tokens are marked by each of them."""
    for row in (0, 3):
        shard = open_tokens(Path("tokenize/val"))[0]
        start, stop = shard.offsets[row : row + 2].tolist()
        reached = 0
        for index in range(start, stop):
            facts = dict(explain_token(f"val:{index}", stages))
            assert facts["token"].startswith(f"{shard.tokens[index]} at val/{shard.path.name}: document {row}, ")
            text = TEXTS[int(facts["url"].split()[0].rpartition("/")[2])]
            piece = facts["text"].partition(">>>")[2].partition("<<<")[0]
            if index == stop - 1:
                assert "end-of-text: the end of the document" in facts["text"]
                assert (piece, reached) == ("", len(text))
            else:
                place = facts["text"].rpartition("(characters ")[2].split(" of ")[0].split(" to ")
                first, last = map(int, place)
                assert json.loads(f'"{piece}"') == text[first:last]
                assert first <= reached <= last
                reached = last


def test_indexes_count_on_over_shards_and_back_from_the_end(stages: list[GraphStage]) -> None:
    shards = open_tokens(Path("tokenize/train"))
    assert len(shards) > 1
    first = len(shards[0].tokens)
    total = sum(len(shard.tokens) for shard in shards)
    assert find_token(Path("tokenize/train"), first).shard.path == shards[1].path
    assert find_token(Path("tokenize/train"), first).before == first
    last = find_token(Path("tokenize/train"), first - 1)
    assert (last.shard.path, last.row) == (shards[0].path, len(shards[0]) - 1)
    assert find_token(Path("tokenize/train"), -total).index == 0
    end = dict(explain_token("train:-1", stages))
    assert end == dict(explain_token(f"train:{total - 1}", stages)) == dict(explain_token("tokenize/train:-1", stages))


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("train", ConfigError, "expected SPLIT:INDEX"),
        ("train:x", ConfigError, "expected SPLIT:INDEX"),
        (":3", ConfigError, "expected SPLIT:INDEX"),
        ("trian:3", UserError, "no such split or folder. Did you mean 'train'?"),
        ("split/val:3", UserError, "has no token shards"),
        ("val:999999", UserError, "has no token 999999: it has .* -1 from the end"),
        ("val:-999999", UserError, "has no token -999999"),
    ],
)
def test_a_wrong_key_is_one_clear_line(
    stages: list[GraphStage], key: str, error: type[UserError], message: str
) -> None:
    with pytest.raises(error, match=message):
        list(explain_token(key, stages))


def test_a_split_that_is_not_there_yet_is_named(stages: list[GraphStage]) -> None:
    later = GraphStage("tokenize", ("python -m dataprep.tokenize",), (), (), (Path("later/test"),), ())
    with pytest.raises(UserError, match="later/test: not there yet; run tokenize first"):
        parse_key("test:0", [later])


def test_shards_of_a_tokenizer_that_is_not_here_have_everything_but_the_text(stages: list[GraphStage]) -> None:
    facts = dict(explain_token("val:0", [stage for stage in stages if stage.name != "tokenizer"]))
    assert facts["url"].startswith("http://mill.test/")
    assert facts["text"].startswith("not shown: no stage")


def test_the_command_prints_the_token_and_every_stages_verdict(project: Path) -> None:
    result = command(project, "explain", "--token", "val:0")
    assert result.returncode == 0, result.stderr
    words = [line.split()[0] for line in result.stdout.splitlines()]
    assert words == ["token", "document", "url", "text", "split", "tokenize"]
    both = command(project, "explain", "--token", "val:0", "http://mill.test/1")
    assert both.returncode == 2
    assert "not allowed with argument" in both.stderr
