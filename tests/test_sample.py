"""The sample profile from `dvc repro` to the report: the funnel page by page, losses, scores."""

import json
import math
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from pipelines.documents import part_files, read_rows
from pipelines.identity import canonical_url
from pipelines.manifest import MANIFEST
from pipelines.project import status
from pipelines.project.explain import explain
from tests.sample_project import PARAMS, ROOT, RUN, STAGES, losses, repro, run_once, stats

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


def test_every_stage_of_the_graph_published_its_outputs(sample: Path) -> None:
    for stage in STAGES:
        for out in stage.outs:
            assert (sample / out / MANIFEST).exists(), out
        for file in stage.stats:
            assert (sample / file).exists(), file


def test_a_second_repro_says_up_to_date(sample: Path) -> None:
    result = repro(sample)
    assert result.returncode == 0
    assert "Data and pipelines are up to date." in result.stdout


def test_status_knows_each_output_of_the_graph_the_report_too(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sample)
    states = [line.split()[:2] for line in list(status.table(STAGES, 300))[1:]]
    assert ["report", "matches"] in states
    assert {state for _, state in states} == {"matches"}


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


def test_the_ledger_has_every_line_once_and_says_the_same(sample: Path) -> None:
    rows = [row for file in part_files(sample / PARAMS["data"] / "ledger") for row in read_rows(file)]
    assert len(rows) == stats(sample, f"{PARAMS['corpus']['name']}/urls.json")["in"]
    rejected = Counter((row["stage"], row["rule"]) for row in rows if row["fate"] == "rejected")
    assert rejected == Counter((page["stage"], page["rule"]) for page in expected_pages() if page["stage"] != "kept")


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


def test_training_falls_and_perplexity_is_well_below_the_untrained_one(sample: Path) -> None:
    curve = losses(sample / "runs" / RUN / "pretrain" / "curve.csv")
    assert len(curve) == PARAMS["pretrain"]["steps"]
    assert fmean(curve[-20:]) < fmean(curve[:20]) - 1.0
    untrained = math.exp(stats(sample, f"{RUN}/pretrain.json")["untrained_val_loss"])
    assert stats(sample, f"{RUN}/evaluate.json")["perplexity"] < 0.25 * untrained
    texts = json.loads((sample / "runs" / RUN / "evaluate" / "texts.json").read_text())
    assert len(texts) >= 3


def test_fine_tuning_falls_and_its_scores_are_reported_as_they_are(sample: Path) -> None:
    for task in PARAMS["glue"]["tasks"]:
        curve = losses(sample / "runs" / RUN / "finetune" / task / "curve.csv")
        assert fmean(curve[-20:]) < fmean(curve[:20])
        scores = stats(sample, f"{RUN}/finetune_{task}.json")["validation"]
        assert scores["rows"] == 300
        assert scores["accuracy"] > scores["majority"] + 0.1
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


@pytest.mark.nightly
def test_fine_tuning_a_model_of_real_text_equals_a_plain_transformers_loop(
    workers: Any, sample: Path, tmp_path: Path
) -> None:
    """The model that the sample pretrained on its articles, 100 steps on its MRPC, then the validation rows."""
    import numpy as np

    from tests.trainer import small
    from tests.trainer.test_finetune import TUNING, ours, plain_transformers
    from trainer.config import ParallelConfig
    from trainer.finetune import FinetuneJob
    from trainer.glue.metrics import predict, score
    from trainer.glue.table import GlueTable
    from trainer.weights.base_model import BaseModel

    base, glue = sample / f"runs/{RUN}/export", sample / f"data/{PARAMS['corpus']['name']}/glue_tokenize/mrpc"
    job = FinetuneJob(
        config=TUNING,
        parallel=ParallelConfig(device="cpu"),
        plan=small.PLAN,
        task="mrpc",
        base=BaseModel(folder=base, tokenizer=base),
        glue=glue,
        scratch=tmp_path,
    )
    found = workers.run(1, ours, job, 100)[0]
    losses, logits = plain_transformers(job, found["head"], 100)
    np.testing.assert_allclose(found["losses"], losses, atol=1e-5, rtol=0)
    labels = GlueTable(glue / "validation.arrow").table["label"].to_pylist()
    first, second = (score("mrpc", labels, predict(each, 2), 2) for each in (found["logits"], logits))
    assert first == second


def test_of_several_processes_the_first_runs_the_sample_and_the_others_wait_for_it(tmp_path: Path) -> None:
    """As the workers of pytest-xdist do; an error of the first is the error of each."""
    started = threading.Barrier(3)
    runs: list[Path] = []

    def work(folder: Path) -> str:
        runs.append(folder)
        time.sleep(0.1)
        (folder / "whole").touch()
        return ""

    def worker(_: int) -> bool:
        started.wait()
        return (run_once(tmp_path, work) / "whole").exists()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(worker, range(3))) == [True] * 3
    assert runs == [tmp_path / "sample"]
    (tmp_path / "sample.outcome").write_text("extract failed")
    with pytest.raises(AssertionError, match="extract failed"):
        run_once(tmp_path, work)
