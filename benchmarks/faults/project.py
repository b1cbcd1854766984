"""The project that is disturbed: the stages of the sample's graph over several shards, each run once undisturbed."""

import contextlib
import json
import random
import shlex
import shutil
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.faults.running import MODULES, Running, preload
from pipelines import store
from pipelines.manifest import MANIFEST, WORK, load_checked
from pipelines.project.graph import GraphStage, load_stages
from pipelines.project.profiles import compose, write_params

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "dataprep/sample"
PARAMETERS = {
    "corpus": "local",
    "corpus.urls": "inputs/urls.txt",
    "download.local_site": "inputs/site",
    "corpus.documents": "inputs/documents",
    "glue.folder": "inputs/glue",
    "glue.tasks": "[mrpc]",
    "download.urls_per_segment": 15,
    "urls.rows_per_part": 40,
    "clean.min_tokens": 20,
    "clean.languages": "[]",
    "split.documents_per_shard": 30,
    "tokenizer.vocab_size": 600,
    "tokenize.tokens_per_shard": 5_000,
    "glue_tokenize.max_length": 32,
    "parallel.determinism": "exact",  # forks and torchrun cannot start themselves again, as portable does
    "model.n_layer": 2,
    "model.n_head": 2,
    "model.n_embd": 32,
    "model.n_positions": 32,
    "model.dropout": 0.1,
    "pretrain.sequence_length": 32,
    "evaluate.sequence_length": 0,
    "pretrain.global_batch_size": 8,
    "pretrain.steps": 80,
    "pretrain.warmup_steps": 5,
    "pretrain.validate_every": 20,
    "pretrain.validation_samples": 32,
    "pretrain.checkpoint_every": 5,
    "parallel.pp": 1,
    "parallel.dp_replicate": 1,
}
"""Of the sample's profile, with more shards and a smaller model."""
LAYOUTS = {
    "1 process": "",
    "pp2": "--parallel.pp 2",
    "tp2": "--parallel.tp 2",
    "dp2": "--parallel.dp-replicate 2",
    "zero3": "--parallel.dp-shard 2 --parallel.zero 3",
    "dp2, torchrun": "--parallel.dp-replicate 2",
}
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
UNREPEATABLE = ("download", "fetch_log")
"""Outputs that hold times, so that only their counts are compared."""


@dataclass(frozen=True)
class Job:
    """A command of the project, and what it must publish."""

    name: str
    words: tuple[str, ...]
    """After the interpreter, with the project as working directory."""
    project: Path
    outputs: tuple[Path, ...]

    @property
    def under_torchrun(self) -> bool:
        """Whether torchrun starts the processes; it has tracebacks and exit statuses of its own."""
        return "torch.distributed.run" in self.words

    def digests(self) -> dict[str, str]:
        """A digest of each output: of its manifest, which has that of every file, after each file was compared.

        Raises UserError or OSError for an output that is missing or damaged.
        """
        found: dict[str, str] = {}
        for output in self.outputs:
            folder = self.project / output
            manifest = load_checked(folder)
            damaged = [name for name, entry in manifest.files.items() if entry.sha256 != store.sha256(folder / name)]
            if damaged:
                raise OSError(5, f"{', '.join(damaged)}: other bytes than the manifest's", str(folder))
            found[str(output)] = store.sha256(folder / MANIFEST)
            if output.name in UNREPEATABLE:
                counts = manifest.counts
                found[str(output)] = json.dumps([counts.rows_in, counts.rows_out, counts.rejected], sort_keys=True)
        return found

    def at(self, project: Path) -> "Job":
        """The same command in another copy of the project."""
        return Job(self.name, self.words, project, self.outputs)

    def clear(self) -> None:
        """Remove the outputs, and all that unfinished runs of this command left."""
        for output in self.outputs:
            store.remove(self.project / output)
            for folder in (self.project / output).parent.glob(f"{WORK}/{output.name}-*"):
                store.remove(folder)

    def saved(self, output: Path) -> bool:
        """Whether an interrupted swap holds the old output, which the next run puts back."""
        return any((self.project / output).parent.glob(f"{WORK}/{output.name}-*/previous-*/{MANIFEST}"))


@dataclass
class Reference:
    """A job whose undisturbed run is known."""

    job: Job
    digests: dict[str, str]
    seconds: dict["Start", float]
    """How long a whole run takes, by the way it is started."""

    def timed(self, start: "Start") -> float:
        """The seconds of a run that is started so, measured once; the stages are compared with the first run too."""
        if start not in self.seconds:
            self.seconds[start] = _run(self.job, start)
            if self.job.digests() != self.digests:
                raise SystemExit(f"{self.job.name}: undisturbed, {start} gives other bytes")
        return self.seconds[start]


@dataclass(frozen=True)
class Start:
    """How a command is started: forked or as a user does it, and with how many workers."""

    forked: bool
    workers: int

    def begin(self, job: Job, *flags: str, **changes: str) -> Running:
        """Start the command."""
        words = [*job.words, *flags]
        return Running(words, job.project, {"MILLRACE_WORKERS": str(self.workers), **changes}, forked=self.forked)


STARTS = (Start(True, 1), Start(True, 2), Start(False, 2))


def _run(job: Job, start: Start) -> float:
    """Run a job undisturbed and return the seconds; raises SystemExit if it fails."""
    started = time.monotonic()
    names = job.project / "modules"
    end = start.begin(job, "--overwrite", **{MODULES: str(names)}).end()
    if end.status:
        raise SystemExit(f"{job.name}: undisturbed, it ended with {end.name}:\n{end.said}")
    seconds = time.monotonic() - started
    if start.forked:
        preload(names)
    return seconds


class Project:
    """A folder with inputs and parameters; stages run in the order of the graph when they are first needed."""

    def __init__(self, folder: Path, seed: int, documents: int = 240) -> None:
        self.folder = folder
        self._seed = seed
        self._documents = documents
        self._references: dict[str, Reference] = {}

    @cached_property
    def stages(self) -> list[GraphStage]:
        """The stages of the graph, after the inputs and parameters have been written."""
        store.remove(self.folder)
        (self.folder / "inputs").mkdir(parents=True)
        shutil.copytree(ROOT / "configs/none", self.folder / "configs/none")
        for name in ("site", "glue"):
            shutil.copytree(SAMPLE / name, self.folder / "inputs" / name)
        shutil.copy(SAMPLE / "site/urls.txt", self.folder / "inputs/urls.txt")
        for name in ("train", "dev", "test"):  # fewer pairs: they are read by many runs
            table = self.folder / "inputs/glue/MRPC" / f"{name}.tsv"
            table.write_text("".join(table.read_text().splitlines(keepends=True)[:61]))
        write_documents(self.folder / "inputs/documents", self._documents, self._seed)
        with contextlib.chdir(ROOT):
            params = compose("sample", [f"{key}={value}" for key, value in PARAMETERS.items()])
            stages = load_stages(params)
        write_params(params, self.folder / "params.yaml")
        return stages

    def jobs(self) -> list[Job]:
        """Each command of the graph in its order, but for the report, which names speeds."""
        jobs: list[Job] = []
        for stage in self.stages:
            for number, command in enumerate(stage.commands):
                outputs = stage.outs if len(stage.commands) == 1 else stage.outs[number : number + 1]
                name = stage.name if len(stage.commands) == 1 else f"{stage.name} {outputs[0].name}"
                if stage.name != "report":
                    jobs.append(Job(name, tuple(shlex.split(command)[1:]), self.folder, outputs))
        return jobs

    def data_jobs(self) -> list[Job]:
        """Each command of the data stages, in the order of the graph."""
        return [job for job in self.jobs() if job.words[1].startswith("dataprep.")]

    def later_jobs(self) -> list[Job]:
        """The commands that need a pretrained model."""
        return [job for job in self.jobs() if job.words[1].startswith("trainer.") and job.name != "pretrain"]

    def training_jobs(self) -> list[Job]:
        """Pretraining in each layout."""
        stage = next(stage for stage in self.stages if stage.name == "pretrain")
        words = shlex.split(stage.commands[0])[1:]
        place = words.index(str(stage.outs[0]))
        jobs: list[Job] = []
        for number, (layout, flags) in enumerate(LAYOUTS.items()):
            output = Path("runs") / f"layout-{number}"
            command = [*words[:place], str(output), "--params", "params.yaml", *flags.split()]
            launcher = TORCHRUN if "torchrun" in layout else []
            jobs.append(Job(layout, (*launcher, *command), self.folder, (output,)))
        return jobs

    def reference(self, job: Job) -> Reference:
        """What the job publishes undisturbed, after what it reads has been made; raises SystemExit if it fails."""
        jobs = self.jobs() if job in self.later_jobs() else self.data_jobs()
        last = next((number for number, each in enumerate(jobs) if each.name == job.name), len(jobs))
        for each in [*jobs[:last], job]:
            if each.name not in self._references:
                start = STARTS[2] if each.under_torchrun else STARTS[0]
                _run(each, start)  # which imports what the stage needs
                digests = each.digests()
                self._references[each.name] = Reference(each, digests, {start: _run(each, start)})
        return self._references[job.name]


WORDS = """the mill race carries water to a wheel and stone grinds grain while river runs on past old town where people
wait for flour with carts or sacks that they bring each morning before frost has left fields near bridge""".split()


def write_documents(folder: Path, number: int, seed: int, files: int = 8, words: int = 60) -> None:
    """Made-up texts in several files, a tenth of them nearly like an earlier one."""
    chance = random.Random(f"{seed}/documents")
    folder.mkdir(parents=True)
    texts: list[list[str]] = []
    for place in range(number):
        if place % 10 == 9:
            text = list(texts[chance.randrange(max(0, len(texts) - 200), len(texts))])
            text[chance.randrange(len(text))] = "edited"
        else:
            text = [f"{chance.choice(WORDS)}{'.' if i % 12 == 11 else ''}" for i in range(words - 3)]
            text += [f"number {place}", f"of {number}", f"{chance.randrange(10**6)}"]
        texts.append(text)
        if len(texts) > 400:
            del texts[:200]
        line = json.dumps({"url": f"http://faults.test/{place}", "text": " ".join(text)})
        with (folder / f"{place * files // number:02d}.jsonl").open("a") as file:
            file.write(f"{line}\n")
