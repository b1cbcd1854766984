"""Generated text: seeded, within the model's positions, ended by end-of-text."""

import io
from pathlib import Path

import pytest
import torch

from tests.trainer.small import Road
from trainer import generate
from trainer.config import SamplingConfig
from trainer.generate import continue_text, draw, main, open_model
from trainer.weights.huggingface import end_of_text_id


def test_the_likeliest_token_is_drawn_at_temperature_0_or_from_the_top_1() -> None:
    logits = torch.tensor([0.0, 3.0, 1.0])
    generator = torch.Generator().manual_seed(0)
    assert draw(logits, SamplingConfig(temperature=0.0), generator) == 1
    assert {draw(logits, SamplingConfig(top_k=1), generator) for _ in range(20)} == {1}


def test_draws_follow_the_models_probabilities() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0])
    generator = torch.Generator().manual_seed(0)
    config = SamplingConfig(temperature=1.0, top_k=0)
    drawn = torch.tensor([draw(logits, config, generator) for _ in range(4000)])
    torch.testing.assert_close(torch.bincount(drawn) / 4000, torch.softmax(logits, 0), atol=0.02, rtol=0)


def test_texts_may_grow_beyond_the_models_positions_and_do_not_depend_on_each_other(road: Road) -> None:
    model, tokenizer = open_model(road.export)
    ids = tokenizer.encode("the mill race").ids
    config = SamplingConfig(new_tokens=50, seed=3)
    first = continue_text(model, ids, -1, config, number=1)
    assert len(first) == 50
    assert continue_text(model, ids, -1, config, number=1) == first
    assert continue_text(model, ids, -1, config, number=2) != first
    ended = continue_text(model, ids, first[5], config, number=1)
    assert ended == first[: first.index(first[5])]


def test_the_command_prints_a_text_and_refuses_a_folder_without_model(
    road: Road, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(road.export), "the mill", "--new-tokens", "5", "--temperature", "0"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("the mill")
    assert len(text.strip()) > len("the mill")
    assert main([str(tmp_path), "x"]) == 1
    said = f"{tmp_path}: holds no model (config.json is missing); name a folder that export wrote"
    assert capsys.readouterr().err == f"error: {said}\n"


def test_without_a_prompt_it_says_so_and_an_empty_text_has_its_reason(
    road: Road, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = "note: no PROMPT, so the model begins a text of its own\n"
    assert main([str(road.export), "--temperature", "0", "--new-tokens", "5"]) == 0
    assert capsys.readouterr().err == begun
    monkeypatch.setattr(generate, "draw", lambda *_: end_of_text_id(road.export))
    assert main([str(road.export)]) == 0
    ended = "note: the model added nothing: it drew end-of-text first; try another --seed, or another PROMPT\n"
    assert capsys.readouterr() == ("\n", begun + ended)
    assert main([str(road.export), "the mill"]) == 0
    assert capsys.readouterr() == ("the mill\n", ended)


@pytest.mark.parametrize("value", ["-1", "1.5"])
def test_wrong_options_are_refused(road: Road, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(road.export), "x", "--top-k", value]) == 2
    assert capsys.readouterr().err == f"error: --top-k {value}: expected a whole number of at least 0\n"


def test_the_prompt_can_come_from_standard_input(
    road: Road, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(road.export), "the mill", "--new-tokens", "3"]) == 0
    expected = capsys.readouterr()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the mill\n")))
    assert main([str(road.export), "-", "--new-tokens", "3"]) == 0
    assert capsys.readouterr() == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"the \xff")))
    assert main([str(road.export), "-"]) == 2
    assert capsys.readouterr().err == "error: generate: standard input is not UTF-8 (byte 4); convert it\n"


def test_a_prompt_without_an_export_is_told_that_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """No note that there was no PROMPT, since it is the EXPORT that is missing."""
    assert main(["hello"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: hello: no such folder, where EXPORT is expected: ")
