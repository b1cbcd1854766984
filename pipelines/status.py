"""The state of the stages: what is published, whether it matches the parameters, and leftover scratch."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from pipelines import store
from pipelines.command import StageSpec, parse
from pipelines.errors import UserError
from pipelines.fingerprint import stage_identity
from pipelines.graph import GraphStage
from pipelines.manifest import WORK, Manifest, manifest_path
from pipelines.outputs import provenance_path


def table(stages: list[GraphStage]) -> Iterator[str]:
    """Lines of a table: stage, output, state, rows, bytes."""
    yield f"{'stage':20} {'state':34} {'rows':>10} {'MB':>9}  output"
    for stage in stages:
        states = [_state(stage, command) for command in stage.commands]
        for index, out in enumerate(stage.outs):
            state = states[min(index, len(states) - 1)]
            path = manifest_path(out)
            if not path.exists():
                yield f"{stage.name:20} {'not there':34} {'':>10} {'':>9}  {out}"
                continue
            manifest = Manifest.load(path)
            yield f"{stage.name:20} {state:34} {manifest.rows:>10,} {manifest.bytes / 1e6:>9.2f}  {out}"


def _state(stage: GraphStage, command: str) -> str:
    """Compare the recorded identity of the published run with today's parameters and inputs."""
    words = shlex.split(command)[3:]
    spec = StageSpec.load(stage.module)
    try:
        call = parse(spec, [*words])
        if not call.options.stats or not provenance_path(call.options.stats).exists():
            return "published, origin unknown"
        provenance = store.read_json(provenance_path(call.options.stats))
        current = stage_identity(spec, call)
    except UserError as error:
        return f"inputs: {str(error)[:26]}"
    published = {name: manifest_path(output) for name, output in call.outputs.items()}
    found = {name: store.sha256(path) for name, path in published.items() if path.exists()}
    if found != provenance.get("manifests"):
        return "published from the DVC cache"
    changed = [key for key, value in current.items() if provenance["identity"].get(key) != value]
    return f"changed: {', '.join(changed)}; dvc repro" if changed else "matches"


def scratch_folders(parents: set[Path]) -> list[tuple[Path, int, str]]:
    """(folder, bytes, `in use` or `left by an unfinished run`) of every scratch folder beside outputs in `parents`."""
    import filelock

    found: list[tuple[Path, int, str]] = []
    for work in sorted(parent / WORK for parent in parents):
        for folder in sorted(path for path in work.glob("*") if path.is_dir()) if work.exists() else []:
            lock = filelock.FileLock(work / f"{folder.name.rpartition('-')[0]}.lock")
            try:
                with lock.acquire(timeout=0):
                    state = "left by an unfinished run"
            except filelock.Timeout:
                state = "in use"
            size = sum(file.stat().st_size for file in store.list_files(folder))
            found.append((folder, size, state))
    return found
