"""Runs a stage: scratch -> shard receipts -> atomic publish -> manifest, stats, provenance.

A stage works in `<parent of its first output>/.work/<name>-<fingerprint>/`, under a lock. The
fingerprint hashes the contents of its inputs, its parameters, its VERSION and the versions of the
libraries that shape its output, so only exactly the same work resumes scratch. Only a complete
output is swapped in, so bad input never costs good output.
"""

import contextlib
import gc
import inspect
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
"""Exit status after SIGTERM (EX_TEMPFAIL): the same command resumes the work."""
INTERRUPTED = 130
IDENTITY = "identity.json"
STAGED = "staged.json"
"""In scratch once every output is complete: an output that exists from then on belongs to this run."""


def stage_main(module_name: str) -> None:
    """Run the stage of a module as a command, under its real name so that workers find its classes."""
    # Workers would import the command's module a second time, as __mp_main__, and warn about it.
    main: Any = sys.modules["__main__"]
    main.__spec__ = main.__file__ = None
    spec, arguments = StageSpec.load(module_name), sys.argv[1:]
    status = spec.other_command(arguments) if spec.other_command else None
    if status is None:
        status = run_command(spec, arguments)
    gc.freeze()  # spares a search of the libraries' objects for garbage at exit: 0.1 s
    sys.exit(status)


def run_command(spec: StageSpec, arguments: Sequence[str]) -> int:
    """Run the whole command of a stage; return the exit status, and print one line per user error."""
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
    except BrokenPipeError:  # the reader of standard output has gone: `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"error: {where}{error.strerror or error}; finished shards are kept and no output is "
            "half written: fix the cause (disk space, permissions) and run the same command again",
            file=sys.stderr,
        )
        return 1
    return 0


def _handle_signals() -> None:
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # as for a command in the background of a script
        signal.signal(signal.SIGINT, _stop)


def _stop(signum: int, _frame: types.FrameType | None) -> None:
    """Unwind the stage; a second signal cuts short the orderly end that a stage may make, as training does."""
    raise KeyboardInterrupt(signum)


def _ignore_signals() -> None:
    """Ignore further signals during the short shutdown."""
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)


def run_stage(spec: StageSpec, call: Invocation) -> None:
    """Run one stage on checked parameters and paths, and publish its outputs."""
    started = time.time()
    first = next(iter(call.outputs.values()))
    work = first.parent / WORK
    if call.options.sample_rejected and first.exists() and not call.options.overwrite:
        show_rejected(first, call.options.sample_rejected)
        logger.info("%s exists: these are its rejected rows, nothing was run (--overwrite runs it again)", first)
        return
    if spec.check_config:
        spec.check_config(**call.sections)
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
        _name_other_scratch(work, first.name, scratch, identity)
        scratch.mkdir(exist_ok=True)
        store.write_json(scratch / IDENTITY, identity)
        run = StageRun(spec.name, spec.command, call, scratch, fingerprint(identity))
        for name, output in run.outputs.items():
            for leftover in scratch_folders(work, first.name):
                store.restore(output.final, leftover / f"previous-{name}")
            output.folder.mkdir(parents=True, exist_ok=True)
        try:
            with contextlib.closing(run.engine):
                result = _work(spec, call, run)
        except UserError:
            if not (scratch / "receipts").exists():
                store.remove(scratch)  # nothing was begun that could be resumed
            raise
        run.stats.update(result if isinstance(result, Mapping) else {})
        _publish_all(run)
        report(call, run, identity, time.time() - started)
        store.remove(scratch)
    if call.options.sample_rejected:
        show_rejected(first, call.options.sample_rejected)


def _work(spec: StageSpec, call: Invocation, run: StageRun) -> object:
    """Call the stage's function and stage its outputs; on Ctrl-C and SIGTERM do not wait for running shards."""
    try:
        result = spec.function(**_arguments(spec, call, run))
        for name, output in run.outputs.items():
            stage_output(output, run.scratch / f"staged-{name}", run.engine)
        return result
    except KeyboardInterrupt:
        _ignore_signals()
        run.engine.stop()
        raise


def _publish_all(run: StageRun) -> None:
    """Record that all staged outputs are complete, then swap them in one by one."""
    store.write_json(run.scratch / STAGED, sorted(run.outputs))
    for name, output in run.outputs.items():
        publish(output, run.scratch / f"staged-{name}", run.scratch / f"previous-{name}")


def scratch_folders(work: Path, name: str) -> list[Path]:
    """Return all scratch folders of the output called `name`, whatever their fingerprints."""
    pattern = re.compile(re.escape(name) + "-[0-9a-f]{16}")
    return sorted(path for path in work.iterdir() if pattern.fullmatch(path.name)) if work.is_dir() else []


def _name_other_scratch(work: Path, name: str, scratch: Path, identity: Mapping[str, Any]) -> None:
    """Warn of scratch that an unfinished run of the same output left and that this run cannot go on with."""
    for other in scratch_folders(work, name):
        if other == scratch:
            continue
        try:
            before = store.read_json(other / IDENTITY)
            differs = [key for key, value in identity.items() if before.get(key) != value]
        except (UserError, AttributeError):
            differs = []
        why = f"with different {', '.join(differs)}" if differs else "that cannot be read"
        logger.warning(
            "%s: left by an unfinished run %s; not used here. To remove it: python -m pipelines gc --delete %s",
            other,
            why,
            work.parent,
        )


@contextlib.contextmanager
def _locked(work: Path, name: str) -> Generator[None, None, None]:
    """Hold the lock of an output while its stage works; raise UserError if another process holds it."""
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


def _check_inputs(spec: StageSpec, call: Invocation) -> None:
    if call.options.sample_rejected and not all(
        call.inputs[name] for name, (_, needed) in spec.inputs.items() if needed
    ):
        output = next(iter(call.outputs.values()))
        raise ConfigError(f"{output}: no such output, so no rejected rows to show; to create it, name the input first")
    for parameter, section in call.sections.items():
        check_sources(section, spec.sections[parameter][0])
    for path in [path for paths in call.inputs.values() for path in paths]:
        if not path.exists():
            raise UserError(f"{path}: no such file or folder; check the path, or run the stage that makes it")
        for output in call.outputs.values():
            if output.resolve() == path.resolve() or output.resolve() in path.resolve().parents:
                raise UserError(f"{output}: the output would replace the input {path}; choose another output")


def _check_outputs(call: Invocation, *, resuming: bool) -> None:
    """Refuse existing outputs, unless they may be replaced or this same run crashed while publishing them."""
    outputs = list(call.outputs.values())
    for output in outputs:
        if output.exists() and not call.options.overwrite and not resuming:
            raise UserError(f"{output}: exists already; choose another output, or replace it with --overwrite")
    if len({output.resolve() for output in outputs}) < len(outputs):
        raise UserError(f"{outputs[0]}: two outputs have the same path; choose two different ones")


def _arguments(spec: StageSpec, call: Invocation, run: StageRun) -> dict[str, Any]:
    """Return the arguments of the stage's function by name; inputs are opened in the function's order."""
    values: dict[str, Any] = {"run": run, **call.sections, **call.words, **dict.fromkeys(spec.outputs), **run.outputs}
    for name, (kind, _) in spec.inputs.items():
        paths = call.inputs[name]
        if kind is Documents:
            values[name] = documents = open_documents(run, name, paths) if paths else None
            if documents and len(documents.parts) > 1:
                run.engine.prepare()
        else:
            values[name] = open_source(run, paths[0]) if paths else None
    return {name: values[name] for name in inspect.signature(spec.function).parameters}
