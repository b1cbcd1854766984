"""Profiles: one for every kind of source; `use` refuses what cannot work before anything is written."""

import shutil
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import yaml

from pipelines.__main__ import main
from pipelines.config import check, given
from pipelines.errors import ConfigError
from pipelines.project.profiles import SourceConfig, compose, profiles
from tests.test_structure import TEST_PATHS
from trainer.checks import check_pretrain
from trainer.config import ModelConfig, ParallelConfig, PretrainConfig

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_profile_exists_for_each_kind_of_source() -> None:
    kinds = {compose(name, TEST_PATHS.get(name, []))["corpus"]["source"]["kind"] for name in profiles()}
    assert kinds == {*get_args(get_type_hints(SourceConfig)["kind"])}


@pytest.mark.parametrize("profile", [path.stem for path in sorted((ROOT / "configs" / "profile").glob("*.yaml"))])
def test_a_profile_says_the_command_that_uses_it(profile: str) -> None:
    """The command in its comment composes, whatever paths it names."""
    text = (ROOT / "configs" / "profile" / f"{profile}.yaml").read_text()
    commands = [line for line in text.splitlines() if line.startswith("#   python -m pipelines use ")]
    if profile == "sample":
        assert commands == []
        return
    (command,) = commands
    name, *overrides = command.removeprefix("#   python -m pipelines use ").split()
    assert name == profile
    compose(name, overrides)


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_the_commands_of_the_pages_compose(page: str) -> None:
    """And the trainer takes what they compose, which it checks later, when it starts."""
    lines = (ROOT / page).read_text().splitlines()
    commands = [
        line.partition("#")[0].partition("&&")[0] for line in lines if line.startswith("python -m pipelines use ")
    ]
    whole = [command.split()[4:] for command in commands if "..." not in command]
    assert len(whole) > 2
    for profile, *overrides in whole:
        params = compose(profile, overrides)
        model = check(ModelConfig, params["model"], "model", page)
        parallel = check(ParallelConfig, params["parallel"], "parallel", page)
        check_pretrain(check(PretrainConfig, params["pretrain"], "pretrain", page), model, parallel)


@pytest.mark.parametrize("profile", [path.stem for path in sorted((ROOT / "configs" / "profile").glob("*.yaml"))])
def test_sources_that_a_profile_has_not_are_empty_files(profile: str) -> None:
    """DVC needs every dependency to be there, in every profile."""
    params = compose(profile, TEST_PATHS.get(profile, []))
    sections = {
        "corpus": ("urls", "documents"),
        "urls": ("blacklists", "blacklist"),
        "download": ("local_site", "replay"),
        "extract": ("tokenizer",),
    }
    for section, keys in sections.items():
        for key in keys:
            path = params[section][key]
            assert path, f"{section}.{key}"
            assert given(path) or path.startswith("configs/none/")


@pytest.mark.parametrize(
    ("profile", "overrides", "message"),
    [
        ("openwebtext", ["corpus.urls=configs/none/urls"], "corpus.urls: corpus.source.kind is 'urls', so give"),
        ("jsonl", ["corpus.documents=configs"], "corpus.documents, of kind 'jsonl': configs: contains no source"),
        ("openwebtext_hub", ["download.hub_revision=main"], "download.hub_revision: expected a commit"),
        ("jsonl", ["corpus.documents=a", "corpus.source.kind=json"], "corpus.source.kind"),
        ("sample", ["clean=gofer"], "clean=gofer: clean has no choice 'gofer'. Did you mean 'gopher'?"),
        ("sample", ["clean.gopher.min_word=3"], "clean.gopher has no key 'min_word'. Did you mean 'min_words'?"),
        ("sample", ["clean.c4.lines.min_word=3"], "clean.c4.lines has no key 'min_word'. Did you mean 'min_words'?"),
        ("sample", ["clean.gopher=3"], "clean.gopher=3: clean.gopher holds keys of its own"),
    ],
)
def test_a_combination_that_cannot_work_is_refused(profile: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        compose(profile, overrides)
    assert "\n" not in str(caught.value)


def test_use_writes_nothing_when_it_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("dvc.yaml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.tar").write_bytes(b"a tar by its name")

    assert main(["use", "jsonl", "corpus.documents=corpus"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: corpus.documents, of kind 'jsonl': corpus: contains no source of a known kind")
    assert not (tmp_path / "params.yaml").exists()
    assert main(["use", "openwebtext_tar", "corpus.documents=corpus"]) == 0
    written = yaml.safe_load((tmp_path / "params.yaml").read_text())
    assert written["download"]["source"] == "tar"


def test_a_task_that_is_only_scored_is_tokenized_and_scored_with_another_ones_model() -> None:
    from pipelines.project.graph import load_stages

    stages = {stage.name: stage for stage in load_stages(compose("openwebtext", TEST_PATHS["openwebtext"]))}
    run = Path("runs/openwebtext-gpt2-dp")
    scored = stages["glue_score@ax"]
    assert run / "finetune/mnli" in scored.deps
    assert scored.outs == (run / "glue_score/ax",)
    assert "glue_tokenize@ax" in stages
    assert "finetune@ax" not in stages
    assert sum(name.startswith("finetune@") for name in stages) == 9
    sample = [stage.name for stage in load_stages(compose("sample", []))]
    assert not any(name.startswith("glue_score") for name in sample)


def test_some_tasks_of_the_hub_can_be_chosen_and_nothing_else_is_downloaded() -> None:
    study = compose("mrpc_study", [])
    assert (study["glue"]["tasks"], study["glue"]["scored"], study["glue_download"]["tasks"]) == (
        ["mrpc"],
        {},
        ["mrpc"],
    )
    some = compose("openwebtext_hub", ["glue=hub", "glue.tasks=[rte,mrpc]"])
    assert (some["glue_download"]["tasks"], some["glue_download"]["source"]) == (["rte", "mrpc"], "hub")
    with pytest.raises(ConfigError, match=r"glue.scored: ax: mnli: .* with glue=hub nothing is scored besides them"):
        compose("openwebtext_hub", ["glue.tasks=[mrpc]"])


def test_of_a_base_model_from_elsewhere_no_contamination_is_known() -> None:
    from pipelines.project.graph import load_stages

    params = compose("openwebtext_hub", ["base=huggingface", "base.model=inputs/gpt2-model"])
    stages = [stage for stage in load_stages(params) if stage.name.startswith(("finetune@", "glue_score@"))]
    assert len(stages) == 10
    for stage in stages:
        assert Path("configs/none/contamination") in stage.deps, stage.name
        assert not [path for path in stage.deps if path.name == "contamination" and path.parts[0] == "data"]
        assert stage.name == "glue_score@ax" or Path("inputs/gpt2-model") in stage.deps
