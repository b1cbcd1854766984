"""Runs a stage: scratch -> shard receipts -> atomic publish -> manifest, stats, provenance.

A stage works in `<parent of its first output>/.work/<name>-<fingerprint>/`, under a lock. The
fingerprint hashes the contents of its inputs, its parameters, its VERSION and the versions of the
libraries that shape its output, so scratch is resumed only by the very same work. Each shard is
written to a temporary folder, brought to disk, renamed, and then a receipt is written; a shard whose
receipt matches is not done again. Only a complete output is swapped in, so a kill at any moment
costs at most one shard, and bad input never costs good output.
"""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import re
import signal
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines import documents as documents_format
from pipelines import engine, log, store
from pipelines.command import Documents, Invocation, Output, Part, Source, StageSpec, parse
from pipelines.config import given, to_plain
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import MANIFEST, Counts, FileEntry, Manifest, content_hash, load_checked, manifest_path
from pipelines.progress import track

logger = logging.getLogger(__name__)

WORK = ".work"
PREEMPTED = 75
"""Exit status after SIGTERM (EX_TEMPFAIL): run the same command again to go on."""
INTERRUPTED = 130


ShardFunction = Callable[..., Counts]


class StageRun:
    """What the runner offers a stage function: shards to map over, scratch, stats."""

    def __init__(self, spec: StageSpec, call: Invocation, scratch: Path, fingerprint: str) -> None:
        self.name = spec.name
        self.scratch = scratch
        self.fingerprint = fingerprint
        self.workers = call.options.workers or engine.default_workers()
        self.memory_budget = parse_memory(call.options.memory_budget)
        self.engine = engine.make_engine(call.options.engine, self.workers)
        self.stats: dict[str, Any] = {}
        self.outputs = {name: Output(scratch / "outputs" / name, final) for name, final in call.outputs.items()}
        self._digests: dict[Path, str] = {}

    def map(self, function: ShardFunction, parts: Sequence[Part], *arguments: Any, into: Output | str) -> Counts:
        """Call `function(part, folder, *arguments)` for every part that has no matching receipt.

        `function` is a module-level function that reads `part.files`, writes any files into `folder`,
        and returns Counts. Its files land in `into`: an output, or the name of a folder in scratch.
        `arguments` must follow from the stage's inputs and parameters. Returns the summed counts.
        """
        target = into if isinstance(into, Output) else Output(self.scratch / into, Path(into))
        tasks = [
            ShardTask(
                part,
                {str(file): self.sha256(file) for file in part.files},
                target.folder,
                self._receipt(target, part),
                function.__qualname__,
            )
            for part in parts
        ]
        for leftover in target.folder.glob(".*.tmp"):
            store.remove(leftover)
        done = {task.receipt: receipt for task in tasks if (receipt := task.finished()) is not None}
        todo = [task for task in tasks if task.receipt not in done]
        if done:
            logger.info("%s: %d of %d shards are already done", self.name, len(done), len(tasks))
        results = self.engine.map(functools.partial(do_shard, function, arguments), todo)
        label = f"{self.name}: {function.__name__}"
        for task, receipt in zip(todo, track(results, what=label, total=len(tasks), done=len(done)), strict=True):
            done[task.receipt] = receipt
        counts = Counts()
        for task in tasks:
            receipt = done[task.receipt]
            counts.add(Counts.from_json(receipt["counts"]))
            for name, entry in receipt["files"].items():
                target.files[name] = FileEntry(**entry)
                self._digests[target.folder / name] = entry["sha256"]
        target.counts.add(counts)
        return counts

    def step(
        self, function: ShardFunction, name: str, files: Sequence[Path], *arguments: Any, into: Output | str
    ) -> Counts:
        """A whole step as one shard: resumed or done again as a whole."""
        return self.map(function, [Part(name, tuple(files))], *arguments, into=into)

    def adopt(self, output: Output, counts: Counts) -> None:
        """Declare every file that now lies in `output.folder`, for stages that write there themselves."""
        for file in store.list_files(output.folder):
            store.sync_file(file)
            name = file.relative_to(output.folder).as_posix()
            rows = documents_format.count_rows(file)
            output.files[name] = FileEntry(rows, file.stat().st_size, store.sha256(file))
        output.counts.add(counts)

    def sha256(self, file: Path) -> str:
        """Digest of an input or of a file made by an earlier step; hashed at most once."""
        if file not in self._digests:
            self._digests[file] = store.sha256(file) if file.is_file() else content_hash(file)
        return self._digests[file]

    def know(self, folder: Path, manifest: Manifest) -> None:
        """Take the digests of an input's files from its manifest instead of hashing them."""
        self._digests.update({folder / name: entry.sha256 for name, entry in manifest.files.items()})

    def _receipt(self, target: Output, part: Part) -> Path:
        return self.scratch / "receipts" / target.folder.relative_to(self.scratch) / f"{part.name}.json"


@dataclasses.dataclass(frozen=True, slots=True)
class ShardTask:
    """One part on its way to its receipt."""

    part: Part
    inputs: dict[str, str]
    folder: Path
    receipt: Path
    step: str

    def finished(self) -> dict[str, Any] | None:
        """The receipt, if it is of this very work and its files are still there; else None."""
        if not self.receipt.exists():
            return None
        receipt = json.loads(self.receipt.read_bytes())
        if receipt["inputs"] != self.inputs or receipt["step"] != self.step:
            return None
        for name, entry in receipt["files"].items():
            file = self.folder / name
            if not file.exists() or file.stat().st_size != entry["bytes"]:
                return None
        return receipt


def do_shard(function: ShardFunction, arguments: tuple[Any, ...], task: ShardTask) -> dict[str, Any]:
    """Do one shard, in a worker: temporary folder, fsync, rename, receipt. Returns the receipt."""
    temporary = task.folder / f".{task.part.name}.{os.getpid()}.tmp"
    store.remove(temporary)
    temporary.mkdir(parents=True)
    counts = function(task.part, temporary, *arguments)
    files: dict[str, Any] = {}
    for file in store.list_files(temporary):
        name = file.relative_to(temporary).as_posix()
        store.sync_file(file)
        rows = documents_format.count_rows(file)
        files[name] = FileEntry(rows, file.stat().st_size, store.sha256(file)).to_json()
        target = task.folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        store.rename(file, target)
    store.remove(temporary)
    receipt = {"inputs": task.inputs, "step": task.step, "counts": counts.to_json(), "files": files}
    store.write_json(task.receipt, receipt)
    return receipt


def stage_main(module_name: str) -> None:
    """`if __name__ == "__main__"` of a stage module, by its real name so that workers find its classes."""
    sys.exit(run_command(StageSpec.load(module_name), sys.argv[1:]))


def run_command(spec: StageSpec, arguments: Sequence[str]) -> int:
    """The whole command of a stage; returns the exit status and prints one line per user error."""
    try:
        call = parse(spec, arguments)
        log.configure(call.options.log_level)
        signal.signal(signal.SIGTERM, _preempted)
        run_stage(spec, call)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print("interrupted: finished shards are kept; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"error: {where}{error.strerror or error}; nothing was published and finished shards are "
            "kept: mend the cause (free space, rights) and run the same command again",
            file=sys.stderr,
        )
        return 1
    return 0


def _preempted(_signum: int, _frame: types.FrameType | None) -> None:
    print("stopped by SIGTERM: run the same command again to go on", file=sys.stderr)
    raise SystemExit(PREEMPTED)


def run_stage(spec: StageSpec, call: Invocation) -> None:
    """Run one stage on checked parameters and paths, and publish its outputs."""
    import filelock

    started = time.time()
    _check_paths(call)
    identity = stage_identity(spec, call)
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    work = next(iter(call.outputs.values())).parent / WORK
    work.mkdir(parents=True, exist_ok=True)
    output_name = next(iter(call.outputs.values())).name
    lock = filelock.FileLock(work / f"{output_name}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UserError(
            f"{work / output_name}.lock: another process is making {output_name}; wait for it or end it"
        ) from None
    with lock:
        scratch = work / f"{output_name}-{fingerprint}"
        scratch.mkdir(exist_ok=True)
        store.write_json(scratch / "identity.json", identity)
        run = StageRun(spec, call, scratch, fingerprint)
        for name, output in run.outputs.items():
            for leftover in work.glob(f"{output_name}-*/previous-{name}"):
                store.restore(output.final, leftover)
            output.folder.mkdir(parents=True, exist_ok=True)
        result = spec.function(*_arguments(spec, call, run))
        if isinstance(result, Mapping):
            run.stats.update(result)
        for name, output in run.outputs.items():
            publish(output, scratch / f"staged-{name}", scratch / f"previous-{name}")
        _report(spec, call, run, identity, time.time() - started)
        store.remove(scratch)


def _check_paths(call: Invocation) -> None:
    for paths in call.inputs.values():
        for path in paths:
            if not path.exists():
                raise UserError(f"{path}: no such file or folder; check the path, or run the stage that makes it")
    outputs = list(call.outputs.values())
    for output in outputs:
        if output.exists() and not call.options.overwrite:
            raise UserError(f"{output}: exists already; choose another output, or replace it with --overwrite")
        for path in [path for paths in call.inputs.values() for path in paths]:
            if output.resolve() == path.resolve() or output.resolve() in path.resolve().parents:
                raise UserError(f"{output}: the output would replace the input {path}; choose another output")
    if len({output.resolve() for output in outputs}) < len(outputs):
        raise UserError(f"{outputs[0]}: two outputs have the same path; give each its own")


def stage_identity(spec: StageSpec, call: Invocation) -> dict[str, Any]:
    """All that shapes the output. A section may narrow itself down with an `identity()` method."""
    sections = {
        name: section.identity() if hasattr(section, "identity") else to_plain(section)
        for name, section in call.sections.items()
    }
    return {
        "stage": spec.name,
        "version": spec.version,
        "libraries": {library: importlib.metadata.version(library) for library in spec.shaped_by},
        "parameters": sections,
        "inputs": {name: [content_hash(path) for path in paths] for name, paths in call.inputs.items()},
        "sources": {
            path: content_hash(Path(path))
            for path in sorted(_paths_in(sections))
            if given(path) and Path(path).exists()
        },
        "words": call.words,
        "outputs": {name: "".join(path.suffixes) for name, path in call.outputs.items()},
    }


def _paths_in(value: Any) -> set[str]:
    """Values of parameters that are paths of files: their contents shape the output too."""
    if isinstance(value, Mapping):
        return {path for item in value.values() for path in _paths_in(item)}  # pyright: ignore
    if isinstance(value, list):
        return {path for item in value for path in _paths_in(item)}  # pyright: ignore
    return {value} if isinstance(value, str) and ("/" in value or Path(value).exists()) else set()


def _arguments(spec: StageSpec, call: Invocation, run: StageRun) -> list[Any]:
    """The stage function's arguments, in its own order."""
    values: dict[str, Any] = {"run": run, **call.sections, **call.words, **dict.fromkeys(spec.outputs), **run.outputs}
    for name, (kind, _) in spec.inputs.items():
        paths = call.inputs[name]
        if kind is Documents:
            values[name] = _open_documents(run, name, paths) if paths else None
        else:
            values[name] = _open_folder(run, paths[0]) if paths else None
    order = spec.function.__code__.co_varnames[: spec.function.__code__.co_argcount]
    return [values[name] for name in order]


def _open_folder(run: StageRun, path: Path) -> Source:
    manifest = load_checked(path) if (path / MANIFEST).exists() else None
    if manifest:
        run.know(path, manifest)
    return Source(path, manifest)


def _open_documents(run: StageRun, name: str, paths: Sequence[Path]) -> Documents:
    """Shards of all `paths` in order; JSONL is converted in scratch first, its broken lines counted."""
    files: list[Path] = []
    for number, path in enumerate(paths):
        if path.is_dir() and documents_format.part_files(path):
            run.know(path, load_checked(path))
            files += documents_format.part_files(path)
            continue
        sources = documents_format.jsonl_files(path) if path.is_dir() else [path]
        if path.is_file() and not documents_format.is_jsonl(path) and path.stat().st_size:
            raise UserError(f"{path}: not JSON lines by its name (.jsonl, .json or .ndjson, also .gz, .zst, .xz)")
        if not sources:
            raise UserError(f"{path}: holds neither document shards (part-*.parquet) nor JSONL files")
        files += _ingest(run, f"{name}-{number}", sources)
    return Documents(tuple(Part(f"part-{i:05d}", (file,)) for i, file in enumerate(files)))


def _ingest(run: StageRun, folder: str, sources: Sequence[Path]) -> list[Path]:
    target = Output(run.scratch / folder, Path(folder))
    parts = [Part(f"file-{i:05d}", (source,)) for i, source in enumerate(sources)]
    counts = run.map(ingest_part, parts, into=target)
    first_output = next(iter(run.outputs.values()))
    for rule, number in counts.rejected.items():
        logger.warning("%s: %d broken input lines (%s)", run.name, number, rule)
        first_output.counts.rows_in += number
        first_output.counts.reject(rule, number)
    for file, entry in target.files.items():
        if file.startswith(documents_format.REJECTED):
            name = f"{documents_format.REJECTED}/input-{folder}-{Path(file).name}"
            store.link_or_copy(target.folder / file, first_output.folder / name)
            first_output.files[name] = entry
    return sorted(target.folder / file for file in target.files if "/" not in file)


def ingest_part(part: Part, folder: Path) -> Counts:
    """One JSONL file as document shards."""
    return documents_format.ingest_jsonl(part.file, folder, part.name)


def publish(output: Output, staged: Path, previous: Path) -> None:
    """Make the output whole beside its place (hard links, manifest), then swap it in.

    The scratch keeps its own links until the very end, so a crash here costs nothing.
    """
    store.remove(staged)
    manifest = Manifest(dict(sorted(output.files.items())), output.counts)
    if documents_format.is_jsonl(output.final):
        _publish_jsonl(output, manifest)
        return
    staged.mkdir(parents=True)
    for name in manifest.files:
        store.link_or_copy(output.folder / name, staged / name)
    manifest.save(staged / MANIFEST)
    for folder in [staged, *(path for path in staged.rglob("*") if path.is_dir())]:
        store.sync_folder(folder)
    store.publish(staged, output.final, previous)


def _publish_jsonl(output: Output, manifest: Manifest) -> None:
    """The output as one JSONL file; rejected rows, if any, as a second one beside it."""
    names = sorted(manifest.files)
    base = re.sub(r"\.(jsonl|json|ndjson)(\.\w+)?$", "", output.final.name)
    targets = {output.final: [output.folder / name for name in names if "/" not in name]}
    rejected = [output.folder / name for name in names if name.startswith(f"{documents_format.REJECTED}/")]
    if rejected:
        targets[output.final.with_name(output.final.name.replace(base, f"{base}.rejected", 1))] = rejected
    entries: dict[str, FileEntry] = {}
    for target, parts in targets.items():
        documents_format.write_jsonl(parts, target)
        rows = sum(manifest.files[part.relative_to(output.folder).as_posix()].rows or 0 for part in parts)
        entries[target.name] = FileEntry(rows, target.stat().st_size, store.sha256(target))
    Manifest(entries, manifest.counts).save(manifest_path(output.final))


def _report(spec: StageSpec, call: Invocation, run: StageRun, identity: dict[str, Any], seconds: float) -> None:
    """Stats (deterministic) and provenance (everything else) of a finished run, and the last line."""
    counts = next(iter(run.outputs.values())).counts
    if call.options.stats:
        stats: dict[str, Any] = {**counts.to_json(), **run.stats}
        stats["outputs"] = {
            name: {
                "rows": sum(e.rows or 0 for f, e in o.files.items() if "/" not in f),
                "bytes": sum(e.bytes for e in o.files.values()),
            }
            for name, o in run.outputs.items()
        }
        store.write_json(call.options.stats, stats)
        provenance = {
            "identity": identity,
            "fingerprint": run.fingerprint,
            "seconds": round(seconds, 3),
            "rows_per_second": round(counts.rows_in / seconds, 1),
            "workers": run.workers,
            "python": platform.python_version(),
            "machine": platform.machine(),
        }
        store.write_json(provenance_path(call.options.stats), provenance)
    rejected = ", ".join(f"{rule} {number:,}" for rule, number in sorted(counts.rejected.items()))
    logger.info(
        "%s: %s in, %s out%s in %.1f s -> %s",
        spec.name,
        f"{counts.rows_in:,}",
        f"{counts.rows_out:,}",
        f" ({rejected})" if rejected else "",
        seconds,
        ", ".join(str(path) for path in call.outputs.values()),
    )


def provenance_path(stats: Path) -> Path:
    """`stats/web/clean.json` -> `provenance/web/clean.json`; elsewhere `x.json` -> `x.provenance.json`."""
    parts = stats.parts
    if "stats" in parts:
        index = parts.index("stats")
        return Path(*parts[:index], "provenance", *parts[index + 1 :])
    return stats.with_suffix(".provenance.json")


def parse_memory(text: str) -> int:
    """`2GB`, `500MB`, `1GiB` or a share of RAM such as `50%`, in bytes."""
    units = {
        "": 1,
        "B": 1,
        "KB": 10**3,
        "MB": 10**6,
        "GB": 10**9,
        "KIB": 2**10,
        "MIB": 2**20,
        "GIB": 2**30,
        "TB": 10**12,
    }
    match = re.fullmatch(r"\s*([0-9.]+)\s*(%|[A-Za-z]*)\s*", text)
    if match and match[2] == "%":
        return int(float(match[1]) / 100 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if not match or match[2].upper() not in units:
        raise ConfigError(f"--memory-budget {text}: expected bytes such as 2GB, or a share of RAM such as 50%")
    return int(float(match[1]) * units[match[2].upper()])
