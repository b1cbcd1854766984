"""The sample profile from `dvc repro` to the report: the funnel page by page, losses, determinism across clones."""

import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines import store
from pipelines.explain import explain
from pipelines.graph import GraphStage, load_stages
from pipelines.identity import canonical_url
from pipelines.manifest import MANIFEST

ROOT = Path(__file__).parents[1]
PARAMS: dict[str, Any] = yaml.safe_load((ROOT / "params.yaml").read_text())
STAGES = load_stages(PARAMS, ROOT / "dvc.yaml")
RUN = PARAMS["run"]
DATA_STAGES = [
    stage for stage in STAGES if stage.module.startswith("dataprep.") and stage.name not in ("urls", "download")
]
"""From `extract` on: the part that promises equal bytes."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def clone(target: Path) -> Path:
    """The project as git has it, with what is not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).exists() and not name.startswith(("tests/", "stats/")) and name != "dvc.lock":
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    subprocess.run(["git", "init", "-q"], cwd=target, check=True)
    return target


def environment(**changes: str) -> dict[str, str]:
    """This interpreter first in PATH, as in an activated virtual environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "DVC_NO_ANALYTICS": "1", **changes}


def repro(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dvc", "repro", *arguments]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone in which the whole road ran once."""
    folder = clone(tmp_path_factory.mktemp("sample"))
    started = time.monotonic()
    result = repro(folder)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    print(f"dvc repro: {time.monotonic() - started:.0f} s")
    return folder


def manifests(folder: Path, stages: list[GraphStage]) -> dict[str, str]:
    return {str(out): store.sha256(folder / out / MANIFEST) for stage in stages for out in stage.outs}


def stats(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "stats" / name).read_text())


def test_every_stage_of_the_graph_published_its_outputs(sample: Path) -> None:
    for stage in STAGES:
        for out in stage.outs:
            assert (sample / out / MANIFEST).exists(), out
        for file in stage.metrics:
            assert (sample / file).exists(), file


def test_a_second_repro_says_up_to_date(sample: Path) -> None:
    result = repro(sample)
    assert result.returncode == 0
    assert "Data and pipelines are up to date." in result.stdout


def expected_pages() -> list[dict[str, Any]]:
    lines = (ROOT / "dataprep" / "sample" / "site" / "expected.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_the_funnel_is_the_computed_answer_page_by_page(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every URL of the list ends at the stage and by the rule that the site's maker computed."""
    monkeypatch.chdir(sample)
    wrong: list[str] = []
    repeated = Counter(canonical_url(page["url"]) for page in expected_pages() if page["rule"] == "duplicate")
    for page in expected_pages():
        found = verdicts(page["url"])
        expected = (page["stage"], page["rule"])
        if page["stage"] == "kept":
            # What is said of a page is said of each of its spellings, so also that the others repeat it.
            rejections = [("urls", "duplicate")] * repeated[canonical_url(page["url"])]
            if not any(stage == "tokenize" for stage, _ in found) or [f for f in found if f[1]] != rejections:
                wrong.append(f"{page['url']}: expected kept, got {found}")
        elif expected not in found:
            wrong.append(f"{page['url']}: expected {expected}, got {found}")
    assert wrong == []


def verdicts(url: str) -> list[tuple[str, str]]:
    """(stage, rule) of each verdict; rule is empty where the stage let the page pass."""
    result: list[tuple[str, str]] = []
    for stage, verdict in explain(url, STAGES):
        rejected = verdict.startswith("rejected by ")
        result.append((stage, verdict.removeprefix("rejected by ").partition(":")[0] if rejected else ""))
    return result


def test_each_kind_of_rejection_is_in_the_sample_at_least_twice() -> None:
    kinds: dict[tuple[str, str], int] = {}
    for page in expected_pages():
        kinds[page["stage"], page["rule"]] = kinds.get((page["stage"], page["rule"]), 0) + 1
    assert {kind: count for kind, count in kinds.items() if count < 2} == {}
    assert {stage for stage, _ in kinds} >= {
        "urls",
        "download",
        "extract",
        "clean",
        "remove_duplicates",
        "decontaminate",
        "kept",
    }
    assert kinds["kept", ""] >= 60


def losses(curve: Path) -> list[float]:
    with curve.open() as file:
        header, *rows = [line.rstrip("\n").split(",") for line in file]
    column = header.index("loss")
    return [float(row[column]) for row in rows if row[column]]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def test_training_falls_and_perplexity_is_well_below_the_untrained_one(sample: Path) -> None:
    curve = losses(sample / "runs" / RUN / "pretrain" / "curve.csv")
    assert len(curve) == PARAMS["pretrain"]["steps"]
    assert mean(curve[-20:]) < mean(curve[:20]) - 1.0
    untrained = math.exp(stats(sample, f"{RUN}/pretrain.json")["untrained_val_loss"])
    assert stats(sample, f"{RUN}/evaluate.json")["perplexity"] < 0.25 * untrained
    texts = json.loads((sample / "runs" / RUN / "evaluate" / "texts.json").read_text())
    assert len(texts) >= 3


def test_fine_tuning_falls_and_its_scores_are_reported_as_they_are(sample: Path) -> None:
    for task in PARAMS["glue"]["tasks"]:
        curve = losses(sample / "runs" / RUN / "finetune" / task / "curve.csv")
        assert mean(curve[-20:]) < mean(curve[:20])
        scores = stats(sample, f"{RUN}/finetune_{task}.json")["validation"]
        assert scores["rows"] == 300
        page = (sample / "reports" / RUN / "index.html").read_text()
        assert f"{scores['accuracy']:.4f}" in page
        assert f"{scores['f1']:.4f}" in page


def test_the_report_is_one_self_contained_page(sample: Path) -> None:
    page = (sample / "reports" / RUN / "index.html").read_text()
    assert "<svg" in page
    assert "http-equiv" not in page
    assert 'src="http' not in page
    assert "<link" not in page
    for stage in ("extract", "clean", "remove_duplicates"):
        assert stage in page


def run_stage_commands(
    folder: Path, stages: list[GraphStage], kill: random.Random | None = None, **changes: str
) -> None:
    for stage in stages:
        for command in stage.commands:
            words = [sys.executable, *command.split()[1:]]
            if kill:
                process = subprocess.Popen(words, cwd=folder, env=environment(**changes), stderr=subprocess.DEVNULL)
                time.sleep(kill.uniform(0.2, 2.5))
                process.kill()
                process.wait()
                words.append("--overwrite")
            done = subprocess.run(
                words, cwd=folder, env=environment(**changes), capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"


def test_one_archive_gives_the_same_manifests_in_another_clone_with_other_workers_and_hash_seed(
    sample: Path, tmp_path: Path
) -> None:
    other = clone(tmp_path / "other")
    shutil.copytree(sample / "data" / "sample" / "download", other / "data" / "sample" / "download")
    run_stage_commands(other, DATA_STAGES, MILLRACE_WORKERS="1", PYTHONHASHSEED="12345", MILLRACE_MEMORY_BUDGET="64MB")
    assert manifests(other, DATA_STAGES) == manifests(sample, DATA_STAGES)


def test_one_archive_gives_the_same_manifests_after_a_kill_9_in_every_stage(sample: Path, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"random seed: {seed}")
    other = clone(tmp_path / "killed")
    shutil.copytree(sample / "data" / "sample" / "download", other / "data" / "sample" / "download")
    run_stage_commands(other, DATA_STAGES, random.Random(seed), MILLRACE_WORKERS="2", PYTHONHASHSEED="1")
    assert manifests(other, DATA_STAGES) == manifests(sample, DATA_STAGES), f"random seed: {seed}"


def test_the_profile_with_tensor_parallelism_trains_the_model_of_two_pipeline_stages(
    sample: Path, tmp_path: Path
) -> None:
    other = clone(tmp_path / "tensor")
    shutil.copytree(sample / "data", other / "data")
    use = [sys.executable, "-m", "pipelines", "use", "sample_tp"]
    subprocess.run(use, cwd=other, env=environment(), capture_output=True, check=True)
    params = yaml.safe_load((other / "params.yaml").read_text())
    assert (PARAMS["parallel"]["pp"], params["parallel"]["pp"], params["parallel"]["tp"]) == (2, 1, 2)
    trained = [stage for stage in load_stages(params, other / "dvc.yaml") if stage.name in ("pretrain", "export")]
    run_stage_commands(other, trained)
    ours, theirs = (
        losses(folder / "runs" / run / "pretrain" / "curve.csv")
        for folder, run in ((sample, RUN), (other, params["run"]))
    )
    assert theirs[:20] == pytest.approx(ours[:20], rel=1e-5)
    assert mean(theirs[-20:]) == pytest.approx(mean(ours[-20:]), rel=1e-2)
    assert (other / "runs" / params["run"] / "export" / "model.safetensors").exists()


def test_fine_tuning_a_model_of_real_text_equals_a_plain_transformers_loop(
    workers: Any, sample: Path, tmp_path: Path
) -> None:
    """The model that the sample pretrained on its articles, 100 steps on its MRPC, then the validation rows."""
    import numpy as np

    from tests.trainer.test_finetune import RECIPE, ours, plain_transformers
    from trainer.base_model import BaseModel
    from trainer.config import ParallelConfig
    from trainer.finetune import Job
    from trainer.glue_scores import predict, score
    from trainer.glue_table import GlueTable

    base, glue = sample / f"runs/{RUN}/export", sample / f"data/{PARAMS['corpus']['name']}/glue_tokenize/mrpc"
    start = {"base": BaseModel(folder=base, tokenizer=base), "glue": glue, "scratch": tmp_path}
    job = Job(config=RECIPE, parallel=ParallelConfig(device="cpu"), task="mrpc", **start)
    found = workers.run(1, ours, job, 100, timeout=300)[0]
    losses, logits = plain_transformers(job, found["head"], 100)
    np.testing.assert_allclose(found["losses"], losses, atol=1e-5, rtol=0)
    labels = GlueTable(glue / "validation.arrow").table["label"].to_pylist()
    first, second = (score("mrpc", labels, predict(each, 2), 2) for each in (found["logits"], logits))
    assert first == second


def test_the_notebook_runs_from_top_to_bottom(sample: Path) -> None:
    """On what the graph made; its three settings train, and transformers gives what the trainer predicted."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "notebooks" / "finetune_mrpc.ipynb", as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs")], "outputs do not belong into the repository"
    kernel = {"env": environment(), "cwd": str(sample / "notebooks")}
    client = NotebookClient(notebook, timeout=600, kernel_name="python3")
    with client.setup_kernel(**kernel):
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/svg+xml" in output.get("data", {}) for output in outputs) == 2
    assert len(list((sample / "runs/notebook").glob("*/scores.json"))) == 3
