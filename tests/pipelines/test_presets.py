"""Presets: one file for `use` and for stand-alone commands; a typo names file, key and the nearest name."""

from pathlib import Path

import pytest

from pipelines import presets
from pipelines.command import StageSpec, parse
from pipelines.config import load_section, to_plain
from pipelines.errors import ConfigError
from pipelines.project.profiles import compose
from pipelines.stage import run_command

ROOT = Path(__file__).parents[2]
CLEAN = StageSpec.load("dataprep.clean")
(_, CleanConfig), *_ = CLEAN.sections.values()


def section(*arguments: str) -> dict[str, object]:
    return to_plain(parse(CLEAN, ["a.jsonl", "out", *arguments]).sections["config"])


@pytest.mark.parametrize("name", presets.names("clean"))
def test_a_preset_is_the_same_by_command_line_and_by_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    composed = compose("sample", [f"clean={name}"])["clean"]
    used = {key: value for key, value in composed.items() if not str(value).startswith("configs/none/")}
    assert {key: value for key, value in section("--preset", name).items() if key in used} == used
    assert to_plain(load_section(CleanConfig, {"clean": composed}, "clean", "params.yaml")) == composed


def test_flags_override_a_preset_key_by_key() -> None:
    changed = section("--preset", "gopher", "--gopher.min-words", "40", "--gopher.max-words", "None")
    plain = section("--preset", "gopher")
    assert plain["gopher"]["min_words"] == 50  # type: ignore[index]
    assert changed == {**plain, "gopher": {**plain["gopher"], "min_words": 40, "max_words": None}}  # type: ignore[dict-item]


def test_a_preset_works_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(CLEAN, ["no.jsonl", "out", "--preset", "gofer"]) == 2
    assert capsys.readouterr().err == (
        "error: --preset gofer: clean has no such preset, and it is not a .yaml file. Did you mean 'gopher'?\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("min_token: 3", "clean.min_token: unknown key. Did you mean 'min_tokens'?"),
        ("gopher: {min_word: 3}", "clean.gopher.min_word: unknown key. Did you mean 'min_words'?"),
        ("gopher: 5", "clean.gopher: expected keys with values, such as min_words, got 5"),
        ("clean:\n  min_tokens: 3\n", "clean: a preset holds the keys of this section; remove the line `clean:`"),
        ("languages: en", "clean.languages: expected a list, [en], got 'en'"),
        ("min_tokens: 1\nmin_tokens: 2", "not valid YAML: key 'min_tokens' stands twice, also in line 2; keep one"),
        ("gopher: {min_words: many}", "clean.gopher.min_words: expected a valid integer, got 'many'"),
        ("c4: {lines: {min_words: 0}}", "clean.c4.lines.min_words: expected greater than 0, got 0"),
        ("min_tokens: -1", "clean.min_tokens: expected greater than or equal to 0, got -1"),
        ("a: [", "not valid YAML"),
        ("- 1", "expected keys with values (key: value), found a list"),
    ],
)
def test_a_wrong_preset_file_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        section("--preset", str(file))
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "\n" not in str(caught.value)


def test_a_file_of_ones_own_is_laid_over_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("gopher:\n  min_words: 7\nlanguages: [de]\n")
    defaults = section()
    expected = {**defaults, "languages": ["de"], "gopher": {**defaults["gopher"], "min_words": 7}}  # type: ignore[dict-item]
    assert section("--preset", str(file)) == expected
    file.write_text("# nothing differs\n")
    assert section("--preset", str(file)) == defaults


def test_presets_are_no_way_around_the_parameter_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--preset: cannot be combined with --params"):
        section("--preset", "gopher", "--params", str(tmp_path / "params.yaml"))
    with pytest.raises(ConfigError, match=r"own\.yaml: no such file; presets by name: c4, fineweb"):
        section("--preset", "own.yaml")


def test_a_stage_without_presets_has_no_such_flag() -> None:
    assert presets.names("split") == []
    assert presets.names("tokenizer") == [], "that group sets more than its stage's section"
    with pytest.raises(ConfigError, match="--preset: no such option"):
        parse(StageSpec.load("dataprep.split"), ["a", "b", "c", "--preset", "x"])
