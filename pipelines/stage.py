"""Runs a stage: scratch -> shard receipts -> atomic publish -> manifest, stats, provenance.

A stage works in `<parent of its first output>/.work/<name>-<fingerprint>/`, under a lock. The
fingerprint hashes the contents of its inputs, its parameters, its VERSION and the versions of the
libraries that shape its output, so scratch is resumed only by the very same work. Only a complete
output is swapped in, so bad input never costs good output.
"""

import contextlib
import gc
import logging
import os
import re
import signal
import sys
import time
import types
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines import log, store
from pipelines.command import Documents, Invocation, StageSpec, parse
from pipelines.config import check_sources
from pipelines.documents import is_jsonl
from pipelines.errors import ConfigError, UserError
from pipelines.fingerprint import fingerprint, stage_identity
from pipelines.inputs import open_documents, open_source
from pipelines.manifest import WORK
from pipelines.outputs import publish, report, stage_output
from pipelines.rejected import show_rejected
from pipelines.run import StageRun

logger = logging.getLogger(__name__)

PREEMPTED = 75
"""Exit status after SIGTERM (EX_TEMPFAIL): run the same command again to go on."""
INTERRUPTED = 130
STAGED = "staged.json"
"""In scratch, once every output is whole: what exists from then on is this run's own."""


def stage_main(module_name: str) -> None:
    """`if __name__ == "__main__"` of a stage module, by its real name so that workers find its classes."""
    # Workers would import the command's module a second time, as __mp_main__, and warn about it.
    main: Any = sys.modules["__main__"]
    main.__spec__ = main.__file__ = None
    status = run_command(StageSpec.load(module_name), sys.argv[1:])
    gc.freeze()  # what the libraries hold need not be searched for garbage before the end: 0.1 s
    sys.exit(status)


def run_command(spec: StageSpec, arguments: Sequence[str]) -> int:
    """The whole command of a stage; returns the exit status and prints one line per user error."""
    try:
        _handle_signals()
        call = parse(spec, arguments)
        log.configure(call.options.log_level)
        run_stage(spec, call)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt as stopped:
        _ignore_signals()
        if stopped.args == (signal.SIGTERM,):
            print("stopped by SIGTERM: run the same command again to go on", file=sys.stderr)
            return PREEMPTED
        print("interrupted: finished shards are kept; run the same command again to go on", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # whoever reads what is printed wanted no more of it: `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"error: {where}{error.strerror or error}; finished shards are kept and no output is "
            "half written: mend the cause (free space, rights) and run the same command again",
            file=sys.stderr,
        )
        return 1
    return 0


def _handle_signals() -> None:
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as for a command in the background of a script
        signal.signal(signal.SIGINT, _stop)


def _stop(signum: int, _frame: types.FrameType | None) -> None:
    """Unwind the stage; a second signal breaks off what its function does to end in good order (training does)."""
    raise KeyboardInterrupt(signum)


def _ignore_signals() -> None:
    """From here on the ending is short, and whoever presses Ctrl-C again does not interrupt it."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)


def run_stage(spec: StageSpec, call: Invocation) -> None:
    """Run one stage on checked parameters and paths, and publish its outputs."""
    started = time.time()
    first = next(iter(call.outputs.values()))
    work = first.parent / WORK
    if call.options.sample_rejected and first.exists() and not call.options.overwrite:
        show_rejected(first, call.options.sample_rejected)
        logger.info("%s exists: these are its rejected rows, nothing was run (--overwrite makes it anew)", first)
        return
    _check_sections(spec, call)
    _check_inputs(spec, call)
    for name in call.outputs.keys() - spec.tables:
        if is_jsonl(call.outputs[name]):
            raise UserError(
                f"{call.outputs[name]}: {spec.name} publishes a folder here, not a JSONL file; name a folder"
            )
    _check_outputs(call, resuming=any((scratch / STAGED).exists() for scratch in scratch_folders(work, first.name)))
    identity = stage_identity(spec, call)
    with _locked(work, first.name):
        scratch = work / f"{first.name}-{fingerprint(identity)}"
        _check_outputs(call, resuming=(scratch / STAGED).exists())
        scratch.mkdir(exist_ok=True)
        store.write_json(scratch / "identity.json", identity)
        run = StageRun(spec.name, spec.function.__module__, call, scratch, fingerprint(identity))
        for name, output in run.outputs.items():
            for leftover in scratch_folders(work, first.name):
                store.restore(output.final, leftover / f"previous-{name}")
            output.folder.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.closing(run.engine):
                result = _work(spec, call, run)
        except UserError:
            if not (scratch / "receipts").exists():
                store.remove(scratch)  # nothing was begun that could be gone on with
            raise
        run.stats.update(result if isinstance(result, Mapping) else {})
        _publish_all(run)
        report(call, run, identity, time.time() - started)
        store.remove(scratch)
    if call.options.sample_rejected:
        show_rejected(first, call.options.sample_rejected)


def _work(spec: StageSpec, call: Invocation, run: StageRun) -> object:
    """Call the stage's function and stage its outputs; on Ctrl-C and SIGTERM nothing that has begun is waited for."""
    try:
        result = spec.function(*_arguments(spec, call, run))
        for name, output in run.outputs.items():
            stage_output(output, run.scratch / f"staged-{name}", run.engine)
        return result
    except KeyboardInterrupt:
        _ignore_signals()
        run.engine.stop()
        raise


def _publish_all(run: StageRun) -> None:
    """Note that all staged outputs are whole, then swap them in one by one."""
    store.write_json(run.scratch / STAGED, sorted(run.outputs))
    for name, output in run.outputs.items():
        publish(output, run.scratch / f"staged-{name}", run.scratch / f"previous-{name}")


def scratch_folders(work: Path, name: str) -> list[Path]:
    """All scratch folders of the output called `name`, whatever their fingerprints."""
    pattern = re.compile(re.escape(name) + "-[0-9a-f]{16}")
    return sorted(path for path in work.iterdir() if pattern.fullmatch(path.name)) if work.is_dir() else []


@contextlib.contextmanager
def _locked(work: Path, name: str) -> Generator[None, None, None]:
    """Hold the lock of an output for as long as its stage works; UserError when someone else does."""
    import filelock

    work.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(work / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise UserError(
            f"{work / name}.lock: another process is making {name}; wait for it or end it, then run this again"
        ) from None
    with lock:
        yield


def _check_sections(spec: StageSpec, call: Invocation) -> None:
    """Let a stage refuse its settings before any input is opened: its module's `check_config`, if it has one."""
    if check_config := getattr(sys.modules[spec.function.__module__], "check_config", None):
        check_config(**call.sections)


def _check_inputs(spec: StageSpec, call: Invocation) -> None:
    if call.options.sample_rejected and not all(
        call.inputs[name] for name, (_, needed) in spec.inputs.items() if needed
    ):
        output = next(iter(call.outputs.values()))
        raise ConfigError(f"{output}: no such output to show rejected rows of; to make it, give the input before it")
    for parameter, section in call.sections.items():
        check_sources(section, spec.sections[parameter][0])
    for path in [path for paths in call.inputs.values() for path in paths]:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; check the path, or run the stage that makes it")
        for output in call.outputs.values():
            if output.resolve() == path.resolve() or output.resolve() in path.resolve().parents:
                raise UserError(f"{output}: the output would replace the input {path}; choose another output")


def _check_outputs(call: Invocation, *, resuming: bool) -> None:
    """Refuse what exists, unless it may be replaced or a crash fell into the publishing of this very run."""
    outputs = list(call.outputs.values())
    for output in outputs:
        if output.exists() and not call.options.overwrite and not resuming:
            raise UserError(f"{output}: exists already; choose another output, or replace it with --overwrite")
    if len({output.resolve() for output in outputs}) < len(outputs):
        raise UserError(f"{outputs[0]}: two outputs have the same path; give each its own")


def _arguments(spec: StageSpec, call: Invocation, run: StageRun) -> list[Any]:
    """The stage function's arguments, in its own order."""
    values: dict[str, Any] = {"run": run, **call.sections, **call.words, **dict.fromkeys(spec.outputs), **run.outputs}
    for name, (kind, _) in spec.inputs.items():
        paths = call.inputs[name]
        if kind is Documents:
            values[name] = documents = open_documents(run, name, paths) if paths else None
            if documents and len(documents.parts) > 1:
                run.engine.prepare()
        else:
            values[name] = open_source(run, paths[0]) if paths else None
    order = spec.function.__code__.co_varnames[: spec.function.__code__.co_argcount]
    return [values[name] for name in order]
