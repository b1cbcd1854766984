"""A stage's command line follows from its signature; flags override the parameter file."""

import dataclasses
from pathlib import Path

import pytest
import yaml

from pipelines.command import Invocation, StageSpec, parse
from pipelines.config import to_plain
from pipelines.errors import ConfigError
from pipelines.stage import run_command

CLEAN = StageSpec.load("dataprep.clean")


def parsed(module: str, *arguments: str) -> Invocation:
    return parse(StageSpec.load(module), list(arguments))


def params_file(folder: Path, **sections: dict[str, object]) -> Path:
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(sections))
    return path


def clean_section(**changes: object) -> dict[str, object]:
    (_, cls), *_ = CLEAN.sections.values()
    return {**to_plain(cls()), **changes}


def test_the_last_paths_are_outputs_and_the_others_inputs() -> None:
    call = parsed("dataprep.clean", "a.jsonl", "b.jsonl", "out")
    assert call.inputs == {"documents": (Path("a.jsonl"), Path("b.jsonl"))}
    assert call.outputs == {"output": Path("out")}
    call = parsed("dataprep.split", "docs", "train", "val")
    assert call.outputs == {"train": Path("train"), "val": Path("val")}
    call = parsed("dataprep.remove_duplicates", "docs.jsonl", "groups", "out")
    assert call.inputs == {"documents": (Path("docs.jsonl"),), "groups": (Path("groups"),)}


def test_optional_inputs_and_outputs_are_options() -> None:
    call = parsed("dataprep.download", "urls", "out")
    assert call.outputs == {"output": Path("out")}
    assert call.inputs["documents"] == ()
    call = parsed("dataprep.download", "urls", "out", "--fetch-log", "log", "--documents", "docs.jsonl")
    assert call.outputs == {"output": Path("out"), "fetch_log": Path("log")}
    assert call.inputs["documents"] == (Path("docs.jsonl"),)


def test_words_stand_before_the_paths() -> None:
    assert parsed("dataprep.glue_download", "sst2", "mrpc", "out").words == {"tasks": ("sst2", "mrpc")}
    assert parsed("dataprep.glue_download", "out").words == {"tasks": ()}
    assert parsed("dataprep.glue_tokenize", "mrpc", "glue", "tokenizer", "out").words == {"task": "mrpc"}


def test_params_give_the_section_and_flags_override_it(tmp_path: Path) -> None:
    file = params_file(tmp_path, clean=clean_section(min_tokens=7, languages=["de"]))
    call = parsed("dataprep.clean", "a", "b", "--params", str(file), "--min-tokens", "9")
    assert (call.sections["config"].min_tokens, call.sections["config"].languages) == (9, ("de",))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"min_token": 3}, "clean.min_token: unknown key. Did you mean 'min_tokens'?"),
        ({"min_tokens": "3"}, "clean.min_tokens: expected a valid integer, got '3'"),
        ({"min_tokens": -1}, "clean.min_tokens: expected greater than or equal to 0, got -1"),
    ],
)
def test_a_wrong_parameter_file_names_file_and_key(tmp_path: Path, section: dict[str, object], message: str) -> None:
    file = params_file(tmp_path, clean=clean_section(**section))
    with pytest.raises(ConfigError) as caught:
        parsed("dataprep.clean", "a", "b", "--params", str(file))
    assert str(caught.value) == f"{file}: {message}"


def test_a_parameter_file_must_spell_out_every_key(tmp_path: Path) -> None:
    section = clean_section()
    del section["repair"]
    file = params_file(tmp_path, clean=section)
    with pytest.raises(ConfigError, match=r"clean\.repair: missing; expected bool"):
        parsed("dataprep.clean", "a", "b", "--params", str(file))


def test_values_on_the_command_line_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"expected less than or equal to 1, got 1\.5"):
        parsed("dataprep.split", "a", "b", "c", "--val-share", "1.5")
    with pytest.raises(ConfigError, match=r"expected DOCUMENTS\.\.\. OUTPUT, got 1 argument"):
        parsed("dataprep.clean", "a")


def test_a_mistyped_flag_names_the_nearest_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed("dataprep.clean", "a", "b", "--min-token", "3")
    assert caught.value.code == 2
    assert "--min-tokens" in capsys.readouterr().err


def test_environment_variables_set_how_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_WORKERS", "3")
    monkeypatch.setenv("MILLRACE_MEMORY_BUDGET", "1GB")
    call = parsed("dataprep.clean", "a", "b")
    assert (call.options.workers, call.options.memory_budget) == (3, "1GB")
    assert parsed("dataprep.clean", "a", "b", "--workers", "5").options.workers == 5
    monkeypatch.setenv("MILLRACE_WORKERS", "many")
    with pytest.raises(ConfigError, match="MILLRACE_WORKERS=many"):
        parsed("dataprep.clean", "a", "b")


def test_run_options_never_shape_an_output() -> None:
    from pipelines.fingerprint import stage_identity

    call = parsed("dataprep.clean", "dvc.yaml", "out")
    busy = dataclasses.replace(call, options=dataclasses.replace(call.options, workers=7, memory_budget="1GB"))
    assert stage_identity(CLEAN, call) == stage_identity(CLEAN, busy)


def test_options_of_the_run_are_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"run\.workers: expected greater than or equal to 0, got -3"):
        parsed("dataprep.clean", "a", "b", "--workers", "-3")


def test_a_stage_that_publishes_no_table_refuses_a_jsonl_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("{}\n")
    assert run_command(StageSpec.load("dataprep.tokenizer"), [str(source), str(tmp_path / "t.jsonl")]) == 1
    assert "t.jsonl: tokenizer publishes a folder here" in capsys.readouterr().err


def test_the_introduction_of_help_fits_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("dataprep.clean", "--help")
    introduction = capsys.readouterr().out.partition("positional arguments")[0].splitlines()
    assert all(len(line) <= 80 for line in introduction[:-1] if not line.startswith("    python"))
    assert any(line.startswith("    python -m dataprep.clean raw.jsonl") for line in introduction)
