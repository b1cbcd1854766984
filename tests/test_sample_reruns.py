"""What runs again on the sample's data: its stages in another clone, another layout of the trainer, the notebook."""

import json
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipelines.project.graph import load_stages
from tests.sample_project import (
    PARAMS,
    ROOT,
    RUN,
    STAGES,
    clone,
    environment,
    losses,
    manifests,
    run_stages,
    run_stages_with_kills,
)

DATA_STAGES = [
    stage for stage in STAGES if stage.module.startswith("dataprep.") and stage.name not in ("urls", "download")
]
"""From `extract` on: the part that promises equal bytes."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.mark.nightly
def test_one_archive_gives_the_same_manifests_with_one_worker_another_hash_seed_less_memory_and_kills(
    sample: Path, tmp_path: Path
) -> None:
    """Each stage is killed with SIGKILL once it has finished a shard, and run again."""
    other = clone(tmp_path)
    for name in ("urls", "download", "fetch_log"):  # what the stages that are left out made
        shutil.copytree(sample / "data" / "sample" / name, other / "data" / "sample" / name)
    changes = {"MILLRACE_WORKERS": "1", "PYTHONHASHSEED": "12345", "MILLRACE_MEMORY_BUDGET": "64MB"}
    resumed = run_stages_with_kills(other, DATA_STAGES, **changes)
    assert manifests(other, DATA_STAGES) == manifests(sample, DATA_STAGES)
    assert set(resumed) == {stage.name for stage in DATA_STAGES}


@pytest.mark.nightly
def test_the_profile_with_tensor_parallelism_trains_the_model_of_two_replicas(sample: Path, tmp_path: Path) -> None:
    other = clone(tmp_path / "tensor")
    shutil.copytree(sample / "data", other / "data")
    use = [sys.executable, "-m", "pipelines", "use", "sample_tp"]
    subprocess.run(use, cwd=other, env=environment(), capture_output=True, check=True)
    params = yaml.safe_load((other / "params.yaml").read_text())
    assert (PARAMS["parallel"]["dp_replicate"], PARAMS["parallel"]["tp"], params["parallel"]["tp"]) == (2, 1, 2)
    trained = [stage for stage in load_stages(params, other / "dvc.yaml") if stage.name in ("pretrain", "export")]
    run_stages(other, trained)
    replicas, tensor = (
        losses(folder / "runs" / run / "pretrain" / "curve.csv")
        for folder, run in ((sample, RUN), (other, params["run"]))
    )
    assert tensor[:20] == pytest.approx(replicas[:20], rel=1e-5)
    assert statistics.fmean(tensor[-20:]) == pytest.approx(statistics.fmean(replicas[-20:]), rel=1e-2)
    assert (other / "runs" / params["run"] / "export" / "model.safetensors").exists()


@pytest.mark.nightly
def test_the_notebook_runs_from_top_to_bottom(sample: Path) -> None:
    """On what the graph made; its three settings train, and transformers gives what the trainer predicted."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(ROOT / "notebooks" / "finetune_mrpc.ipynb", as_version=4)
    kernel = {"env": environment(), "cwd": str(sample / "notebooks")}
    client = NotebookClient(notebook, timeout=3000, kernel_name="python3")  # of a cell, only to end a hang
    with client.setup_kernel(**kernel):
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert sum("image/svg+xml" in output.get("data", {}) for output in outputs) == 2
    assert len(list((sample / "runs/notebook").glob("*/scores.json"))) == 3


def test_the_committed_notebook_was_run_from_top_to_bottom_without_an_error() -> None:
    """Readers on the web see what each cell gives; its paths are those of the project."""
    import nbformat

    notebook = nbformat.read(ROOT / "notebooks" / "finetune_mrpc.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert [cell.execution_count for cell in cells if not cell.outputs] == [1], "only imports show nothing"
    outputs = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in outputs} == {"stream", "execute_result"}
    assert {output.name for output in outputs if output.output_type == "stream"} == {"stdout"}
    assert sum("image/svg+xml" in output.get("data", {}) for output in outputs) == 2
    assert not [text for text in ("/home/", "/tmp/", "/root/", str(ROOT)) if text in json.dumps(outputs)]
