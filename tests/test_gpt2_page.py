"""Every command of docs/gpt2.md, run for real in a clone of the project: with a small model, corpus and batch."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sample_project import ROOT, clone, environment

PAGE = ROOT / "docs/gpt2.md"
HERE = {
    "openwebtext_hub recipe": "local corpus.documents=inputs/corpus.jsonl recipe",
    "openwebtext_hub": "local",
    "/mnt/shared/store": "../store",
    "--nnodes 2 --nproc-per-node 8": "--nnodes 1 --nproc-per-node 2",
    "HOST:29500": "localhost:0",
    "trainer.plan --write": "trainer.plan --gpus 1 --gpu h100 --write",
}
"""Words of the page -> what stands for them on a machine without a GPU and a network."""
SMALL = (
    *("model.n_layer=2", "model.n_head=2", "model.n_embd=32", "model.n_positions=64", "pretrain.sequence_length=64"),
    *("pretrain.steps=4", "pretrain.warmup_steps=1", "pretrain.global_batch_size=16", "pretrain.checkpoint_every=2"),
    *("pretrain.precision=fp32", "pretrain.compile=false", "pretrain.validate_every=0", "tokenizer.vocab_size=512"),
    *("split.val_share=0.1", "evaluate.sequence_length=64", "clean.min_tokens=16"),
)
"""Set after each `use`, so that a run takes seconds."""
PLANNED = {
    "device": "NVIDIA H100 80GB HBM3",
    "from_step": 0,
    "to_step": 100,
    "layout": {"pp": 1, "tp": 1, "dp_replicate": 8, "dp_shard": 1},
    "planned": {"step_error": -0.1, "memory_error": 0.02},
}
"""A segment as a run on GPUs records it, to learn from; those of CPUs say nothing."""


def commands() -> list[str]:
    blocks = re.findall(r"^```\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def here(command: str) -> str:
    for words, other in HERE.items():
        command = command.replace(words, other)
    return command


def write_corpus(file: Path) -> None:
    """Documents of sentences of the sample's pairs."""
    rows = (ROOT / "dataprep/sample/glue/MRPC/train.tsv").read_text().splitlines()[1:]
    sentences = [row.split("\t")[3] for row in rows]
    documents = [" ".join(sentences[start : start + 20]) for start in range(0, len(sentences), 20)]
    file.parent.mkdir()
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_every_command_of_the_page_does_what_it_says(tmp_path: Path) -> None:
    folder = clone(tmp_path / "project")
    write_corpus(folder / "inputs/corpus.jsonl")
    (folder / "dataprep/native/_kernel.abi3.so").write_bytes((ROOT / "dataprep/native/_kernel.abi3.so").read_bytes())
    variables = environment(PYTHONPATH=str(folder), GLOO_SOCKET_IFNAME="lo")

    def run(command: str) -> "subprocess.CompletedProcess[str]":
        words = re.sub(r"^python ", f"{sys.executable} ", command)
        return subprocess.run(words, shell=True, cwd=folder, env=variables, capture_output=True, text=True, check=False)

    for command in commands():
        if command.startswith("torchrun"):  # in place of the pretraining before it
            shutil.rmtree(folder / "runs/local-gpt2-124m-dp/pretrain")
        if "--learn" in command:
            recorded = folder / "provenance/on-gpus/pretrain.json"
            recorded.parent.mkdir(parents=True)
            recorded.write_text(json.dumps({"segments": [PLANNED]}))
        done = run(here(command))
        assert done.returncode == 0, f"{command}\n{(done.stdout + done.stderr)[-3000:]}"
        if " use " in command:
            small = run(f"python -m pipelines set {' '.join(SMALL)}")
            assert small.returncode == 0, small.stderr
    pages = sorted(page.parent.name for page in (folder / "reports").glob("*/index.html"))
    assert pages == ["local-gpt2-124m-dp", "local-tiny-cpu-dp2"]
    compared = "nanoGPT, 300 B tokens of OpenWebText" in (folder / "reports/local-gpt2-124m-dp/index.html").read_text()
    assert not compared, "the small model that stands for GPT-2 here is not the recipe's"


def test_the_page_shows_the_recipes_that_there_are() -> None:
    named = re.findall(r"^\| `([\w-]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(named) == sorted(
        file.stem for file in (ROOT / "configs/recipe").glob("*.yaml") if file.stem != "none"
    )
