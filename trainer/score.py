"""Command `score`: score a model on tasks, from request files and without a network.

model + request files (`dataprep.score_requests`) -> scores.json; scores.md, a table of them beside GPT-2's published
ones; and rows/TASK.jsonl, what the model said to each

    python -m trainer.score runs/gpt2/export requests/ scores/
    python -m trainer.score runs/gpt2/pretrain requests/ scores/ --tokenizer data/openwebtext/tokenizer --parallel.tp 2
    torchrun --nproc-per-node 8 -m trainer.score ...             (or srun)

The model is a Hugging Face folder, a checkpoint of any layout (step-*), or a folder with such checkpoints, of which the
newest is scored; a checkpoint has no tokenizer, so name its folder. It runs in the layout of --parallel.

Scores are those of lm-evaluation-harness: the same windows of tokens, cut off on the left where a request is longer
than the model takes, and the same arithmetic (docs/explanation/scores.md). With --contamination, the folder that
`decontaminate` wrote about these request files, the documents that are in no training document are also scored apart.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipelines import store
from pipelines.command import Limit, Output, Source, StageSpec
from pipelines.config import Count
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import Counts
from pipelines.progress import waiting
from pipelines.run import StageRun
from pipelines.stage import stage_main
from pipelines.task_requests import TaskRequest, request_files
from pipelines.unchanged import require_unchanged
from trainer.checks import check_parallel, check_portable
from trainer.config import ParallelConfig
from trainer.processes import launch, portable
from trainer.processes.process import Process
from trainer.scoring import metrics
from trainer.scoring.table import SUBSETS, table
from trainer.scoring.tasks import encode_tasks
from trainer.scoring.windows import Encoded, Encoder
from trainer.weights.exported import CONFIG, check_weights
from trainer.weights.records import newest_checkpoint, read_record

if TYPE_CHECKING:
    from trainer.parallel import ParallelModel
    from trainer.parallel.mesh import Mesh

VERSION = 1
SHAPED_BY = ("torch", "tokenizers", "numpy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreConfig:
    """How to score."""

    batch_tokens: Count = 8192
    """Tokens per forward pass, with padding. At most as many logits are in memory, 4 bytes for each token of the
    vocabulary; with tp they always are."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Of the matrix products; bf16 is faster on GPUs and can decide close answers otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreJob:
    """What each scoring process needs to know."""

    config: ScoreConfig
    parallel: ParallelConfig
    model: Path
    """A Hugging Face folder or a checkpoint."""
    scratch: Path

    @property
    def windows(self) -> Path:
        """The folder of the windows to score."""
        return self.scratch / "windows"

    @property
    def values(self) -> Path:
        """The file of what the model said to them."""
        return self.scratch / "values.npy"


def score(
    config: ScoreConfig,
    parallel: ParallelConfig,
    run: StageRun,
    model: Source,
    requests: Source,
    tokenizer: Source | None,
    contamination: Source | None,
    output: Output,
) -> dict[str, Any]:
    """Encode all requests, let the processes of the layout score them, and write scores and rows."""
    check_portable(parallel)
    portable.require(parallel)
    files = request_files(requests.path)
    with waiting(f"score: encoding {requests.path}"):
        folder, encoder = open_encoder(model, tokenizer, parallel)
        tasks = encode_tasks(files, encoder, run.limit)
        if contamination is not None:
            require_same_requests(contamination.path, dict(zip(tasks, files, strict=True)))
        job = ScoreJob(config=config, parallel=parallel, model=folder, scratch=run.scratch)
        encoder.windows().save(job.windows)
    launch.launch(score_in_process, parallel, job)
    scores = write_scores(tasks, job.values, contamination, output.folder)
    run.summary = "; ".join(f"{name} {_headline(each)}" for name, each in scores["tasks"].items())
    run.register_outputs(output, count_documents(tasks))
    return {"tasks": {name: _numbers(each) for name, each in scores["tasks"].items()}}


def open_encoder(model: Source, tokenizer: Source | None, parallel: ParallelConfig) -> tuple[Path, Encoder]:
    """Return the folder of the model, and what encodes requests for it. Raises UserError if either is unsuitable."""
    from trainer.weights.huggingface import end_of_text_id, open_tokenizer, require_same_tokenizer
    from trainer.weights.records import tokenizer_of

    if (model.path / CONFIG).exists():
        if model.manifest:
            require_unchanged(model.path, ".safetensors")
        folder, sizes, end = model.path, check_weights(model.path), end_of_text_id(model.path)
        source = tokenizer.path if tokenizer else folder
    else:
        folder = newest_checkpoint(model.path)
        record = read_record(folder)
        meta, sizes = tokenizer_of(folder, record), record["model"]
        if sizes["num_labels"]:
            raise UserError(f"{folder}: a checkpoint of a classifier; name one of `trainer.pretrain`")
        if tokenizer is None:
            raise ConfigError(f"{folder}: a checkpoint has no tokenizer; name its folder with --tokenizer")
        require_same_tokenizer(tokenizer.path, meta, folder)
        source, end = tokenizer.path, meta.end_of_text
    check_parallel(parallel, sizes["n_layer"], sizes["n_head"], n_embd=sizes["n_embd"])
    opened = open_tokenizer(source)
    if opened.get_vocab_size() > sizes["vocab_size"]:
        raise UserError(
            f"{source}: its tokenizer has {opened.get_vocab_size()} tokens, the model {sizes['vocab_size']}; name the "
            "model's own with --tokenizer"
        )
    return folder, Encoder(opened, end, sizes["n_positions"])


def count_documents(tasks: Mapping[str, Encoded]) -> Counts:
    """Return how many documents were scored, and why the others were not."""
    counts = Counts()
    for encoded in tasks.values():
        counts.rows_out += len(encoded.requests)
        for reason, count in encoded.skipped.items():
            counts.reject(reason, count)
    counts.rows_in = counts.rows_out + sum(counts.rejected.values())
    return counts


def score_in_process(process: Process, job: ScoreJob) -> None:
    """Score all windows as one of the processes; the first writes the values."""
    import numpy as np

    from trainer.loop.validation import likelihoods
    from trainer.parallel.mesh import Mesh
    from trainer.scoring.forward import forward_at
    from trainer.scoring.windows import Windows

    with Mesh(job.parallel, process.device) as mesh:
        model = open_parallel(job, mesh)
        windows = Windows.load(job.windows)
        values = likelihoods(forward_at(model), mesh.device, windows, job.config.batch_tokens, mesh)
        if mesh.is_first:
            np.save(job.values, values)


def open_parallel(job: ScoreJob, mesh: "Mesh") -> "ParallelModel[Any]":
    """Return the model in the layout of the job, with the weights of its folder."""
    from trainer.loop.precision import DTYPES
    from trainer.model import Architecture, LanguageModel
    from trainer.parallel import parallelize
    from trainer.weights import checkpoint, huggingface

    exported = (job.model / CONFIG).exists()
    sizes = check_weights(job.model) if exported else read_record(job.model)["model"]
    shape = Architecture(**sizes)
    model = parallelize(
        lambda stage: LanguageModel(shape, stage),
        shape,
        mesh,
        job.parallel,
        compute_dtype=DTYPES[job.config.precision],
    )
    if exported:
        huggingface.fill(model.weights, huggingface.read_weights(job.model), job.model)
    else:
        checkpoint.require_whole(job.model)
        tensors = checkpoint.model_tensors(model.weights, shape.vocab_size)
        checkpoint.load(job.model, tensors)
        checkpoint.give_embedding(tensors, model.weights, {})
    model.train(mode=False)
    return model


def write_scores(
    tasks: Mapping[str, Encoded], values: Path, contamination: Source | None, folder: Path
) -> dict[str, Any]:
    """Write scores.json and the rows of each task; return the scores."""
    import numpy as np

    said, scored = np.load(values), dict[str, Any]()
    for name, encoded in tasks.items():
        answers = metrics.answers(encoded.windows, said)
        rows = [metrics.row_scores(*each) for each in zip(encoded.requests, answers, strict=True)]
        scored[name] = metrics.task_scores(encoded.requests, rows)
        scored[name] |= {"truncated": encoded.truncated, "skipped": encoded.skipped}
        if contamination is not None:
            scored[name] |= clean_scores(name, encoded.requests, rows, contamination.path)
        _write_rows(folder / "rows" / f"{name}.jsonl", encoded.requests, answers, rows)
    scores = {"tasks": scored, "centred_mean": metrics.centred_mean(scored)}
    store.write_json(folder / "scores.json", scores)
    with store.create(folder / "scores.md") as file:
        file.write(table(scores).encode())
    return scores


def clean_scores(
    task: str, requests: Sequence[TaskRequest], rows: Sequence[Mapping[str, float]], contamination: Path
) -> dict[str, Any]:
    """Return the scores of the documents of each of SUBSETS."""
    scores: dict[str, Any] = {}
    for subset in SUBSETS:
        clean = clean_documents(contamination, subset, task)
        chosen = [number for number, request in enumerate(requests) if request.doc in clean]
        scores[subset] = metrics.aggregate([requests[n] for n in chosen], [rows[n] for n in chosen])
    return scores


def _write_rows(
    path: Path,
    requests: Sequence[TaskRequest],
    answers: Sequence[Sequence[metrics.Answer]],
    rows: Sequence[Mapping[str, float]],
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with store.create(path) as file:
        for request, said, row in zip(requests, answers, rows, strict=True):
            line = {
                "doc": request.doc,
                **({"group": request.group} if request.group else {}),
                "log_likelihoods": [round(-answer.loss, 6) for answer in said],
                "greedy": [answer.greedy for answer in said],
                **{name: float(value) for name, value in row.items() if "loss" not in name},
            }
            file.write((json.dumps(line) + "\n").encode())


def _headline(scores: Mapping[str, Any]) -> str:
    name = metrics.headline(scores)
    return f"{name} {scores[name]:.4g}"


def _numbers(scores: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of a task for the stats: of the whole of it."""
    return {name: value for name, value in scores.items() if isinstance(value, (int, float))}


def require_same_requests(contamination: Path, files: Mapping[str, Path]) -> None:
    """Raise UserError for a task's request file that is not the one, to the byte, that `decontaminate` looked for."""
    index = contamination / "index.json"
    described = store.read_json(index) if index.exists() else {}
    looked_for = {(each["task"], each["sha256"]) for each in described.get("sources", []) if not each["is_glue"]}
    for task, file in files.items():
        for subset in SUBSETS:
            clean_documents(contamination, subset, task)
        if (task, store.sha256(file)) not in looked_for:
            raise UserError(f"{file}: changed since decontaminate looked for it ({index}); run decontaminate again")


def clean_documents(contamination: Path, subset: str, task: str) -> set[int]:
    """Return the documents of a task that no document contains, before (clean) or after decontamination (kept_clean).

    Raises UserError if `decontaminate` did not look for them.
    """
    path = contamination / subset / f"{task}.json"
    if not path.exists():
        raise UserError(
            f"{path}: no such file, so decontaminate did not look for {task}; run it with --targets on the "
            "same request files, or leave out --contamination"
        )
    # A target's items are numbered by line, from 1; a request file has a line for each document, in order.
    return {number - 1 for numbers in store.read_json(path).values() for number in numbers}


STAGE = StageSpec.of(
    score,
    VERSION,
    SHAPED_BY,
    sources={
        "model": "a Hugging Face folder, a checkpoint, or the output of pretrain",
        "requests": "a folder of request files, as score_requests writes it, or one of them",
        "tokenizer": "of a checkpoint: the folder of its tokenizer, such as the output of tokenizer",
        "contamination": "what decontaminate --targets wrote about these requests: scores what it did not find apart",
    },
    limit=Limit("documents of each task"),
    environment=portable.environment,
)

if __name__ == "__main__":
    # Under torchrun or Slurm only the first process runs the stage.
    if not launch.served(score_in_process, ScoreJob):
        stage_main("trainer.score")
