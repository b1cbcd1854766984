"""`python -m pipelines`: composing, checking, and errors that name the nearest right thing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the graph and the profiles, and the code by PYTHONPATH."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    for name in ("dvc.yaml", "params.yaml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def run(project: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pipelines", *arguments]
    environment = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


def test_use_records_profile_and_overrides_and_check_composes_them_again(project: Path) -> None:
    used = run(project, "use", "sample", "model=gpt2", "clean.min_tokens=64", "seed=5")
    assert used.returncode == 0, used.stderr
    params = yaml.safe_load((project / "params.yaml").read_text())
    assert params["profile"] == "sample"
    assert params["overrides"] == ["model=gpt2", "clean.min_tokens=64", "seed=5"]
    assert params["clean"]["min_tokens"] == 64
    assert params["model"]["n_layer"] == 12
    assert params["split"]["seed"] == 5
    assert params["run"] == "sample-gpt2-pp2"
    assert run(project, "check").returncode == 0


def test_check_names_a_value_edited_by_hand_and_a_key_that_is_wrong(project: Path) -> None:
    file = project / "params.yaml"
    good = file.read_text()
    file.write_text(good.replace("min_tokens: 128", "min_tokens: 12"))
    edited = run(project, "check")
    assert edited.returncode == 1
    assert "clean.min_tokens: 12, composed 128" in edited.stdout
    file.write_text(good.replace("min_tokens: 128", "min_token: 128"))
    wrong = run(project, "check")
    assert wrong.returncode == 2
    assert "clean.min_token: unknown key. Did you mean 'min_tokens'?" in wrong.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["use", "sampel"], "profile 'sampel': there is none. Did you mean 'sample'?"),
        (["use", "sample", "model=gpt2-medum"], "Did you mean 'gpt2-medium'?"),
        (["use", "sample", "clean.min_token=3"], "clean has no key 'min_token'. Did you mean 'min_tokens'?"),
        (["use", "sample", "claen.min_tokens=3"], "unknown key. Did you mean 'clean'?"),
        (["use", "sample", "clean.min_tokens=many"], "clean.min_tokens: expected a valid integer, got 'many'"),
        (["use", "sample", "nonsense"], "expected group=choice or key=value"),
        (["use", "openwebtext"], "corpus.urls"),
        (["explain", "http://nowhere.test/"], "no published output knows this URL"),
        (["report"], "not there yet; make it with dvc repro"),
    ],
)
def test_a_typo_is_one_line_with_the_nearest_name_and_leaves_params_alone(
    project: Path, arguments: list[str], message: str
) -> None:
    before = (project / "params.yaml").read_bytes()
    result = run(project, *arguments)
    assert result.returncode in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert (project / "params.yaml").read_bytes() == before


def test_outside_the_project_the_command_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, "status")
    assert (result.returncode, result.stderr) == (2, "error: dvc.yaml: not here; run this in the project's folder\n")


def test_status_lists_every_output_before_anything_ran(project: Path) -> None:
    result = run(project, "status")
    assert result.returncode == 0, result.stderr
    assert "data/sample/clean" in result.stdout
    assert "not there" in result.stdout


def test_gc_lists_and_deletes_scratch_that_nobody_holds(project: Path) -> None:
    scratch = project / "data" / "sample" / ".work" / "clean-0123456789abcdef"
    scratch.mkdir(parents=True)
    (scratch / "half").write_bytes(bytes(1000))
    listed = run(project, "gc")
    assert "clean-0123456789abcdef" in listed.stdout
    assert scratch.exists()
    assert run(project, "gc", "--delete").returncode == 0
    assert not scratch.exists()
