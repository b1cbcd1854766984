"""What a run may replace: nothing without `--overwrite`, and with it only what a stage made.

A stage made a folder if its manifest names every file in it, and a JSONL file if the manifest beside it names it; files
beside it that a run would write are checked in the same way. While a run publishes, a JSONL file lacks its manifest for
a moment: `staged.json` in scratch then says that it is ours.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from pipelines import store
from pipelines.addresses import address_of
from pipelines.command import Documents, Invocation, StageSpec
from pipelines.config import SourceKind, named_sources
from pipelines.documents import is_jsonl
from pipelines.errors import UserError
from pipelines.manifest import MANIFEST, SCRATCH, STORED, WORK, Manifest, is_published, manifest_path
from pipelines.outputs import provenance_path, rejected_path

_SCRATCH_END = re.compile(rf"(?:-[0-9a-f]{{16}}|{SCRATCH}|\.lock)$")
STAGED = "staged.json"
"""In scratch once every output is complete: an output that exists from then on belongs to this run."""


def scratch_folders(output: Path) -> list[Path]:
    """Return all scratch folders of an output, whatever their fingerprints."""
    work = output.parent / WORK
    pattern = re.compile(re.escape(output.name) + "-[0-9a-f]{16}")
    return sorted(path for path in work.iterdir() if pattern.fullmatch(path.name)) if work.is_dir() else []


def output_of(path: Path) -> Path:
    """Return the output that a path in scratch is for, which its user knows by name; any other path as it is."""
    if WORK not in path.parts:
        return path
    above = path.parts.index(WORK)
    return Path(*path.parts[:above], *(_SCRATCH_END.sub("", name) for name in path.parts[above + 1 : above + 2]))


def is_half_published(output: Path) -> bool:
    """Return whether a run was stopped while it published this output."""
    return any((scratch / STAGED).exists() for scratch in scratch_folders(output))


def written_paths(output: Path) -> list[Path]:
    """Return the paths that publishing an output writes: a folder, or a JSONL file and its companions."""
    return [output, rejected_path(output), manifest_path(output)] if is_jsonl(output) else [output]


def check_outputs(call: Invocation, *, resuming: bool) -> None:
    """Raise UserError for an output or stats file that this run may not write.

    `resuming`: this same run crashed while publishing, so that what exists may be its own.
    """
    outputs = [(path, store.real_path(path)) for path in call.outputs.values()]
    check_apart(call, outputs)
    for path, output in outputs:
        if is_jsonl(path) != is_jsonl(output) or (is_jsonl(path) and path.suffix != output.suffix):
            raise UserError(f"{path}: a link to {output}, whose name ends otherwise; name that path itself")
        for above in output.parents:
            if _manifest(above / MANIFEST):
                raise inside_published(path, above)
        if call.options.overwrite or resuming:
            _check_is_ours(path, output)
            continue
        # A stopped run may have left companions; they are replaced together with the output.
        paths = [output] if is_half_published(output) else written_paths(output)
        for existing in (written for written in paths if os.path.lexists(written)):
            named = path if existing == output else existing
            raise UserError(f"{named}: exists already; choose another output, or replace it with --overwrite")
    _check_stats(call)


def check_apart(call: Invocation, outputs: Sequence[tuple[Path, Path]]) -> None:
    """Raise UserError if an output would replace an input, also one that an option names, or another output."""
    inputs = [path for paths in call.inputs.values() for path in paths]
    inputs += [path for section in call.sections.values() for _, path, _ in named_sources(section)]
    owners: dict[Path, Path] = {}
    for path, output in outputs:
        for target in (written.resolve() for written in written_paths(output)):
            for source in inputs:
                real = Path(os.path.realpath(source))  # of a link that leads to itself, too, which resolve refuses
                if target == real or target in real.parents:
                    raise replaces_input(path, source)
            if target in owners:
                raise UserError(f"{path}: two outputs have the same path; choose two different ones")
            owners[target] = path
    for target, path in owners.items():
        for other in (owners[parent] for parent in target.parents if parent in owners):
            raise UserError(f"{path}: inside the output {other}, which is replaced as a whole; choose another path")


def check_not_read_again(spec: StageSpec, call: Invocation) -> None:
    """Raise UserError if an output lies in a folder of the input where the next run of this command would read it.

    Of a folder of documents the JSONL files directly in it are read, so another folder may be made there. Of a folder
    that an option names everything counts, unless only files of some names are read. A published folder is read by its
    manifest alone, and takes no output (`check_outputs`).
    """
    given = [(name, path) for name, paths in call.inputs.items() for path in paths]
    below = [path for name, path in given if name in spec.read_below]
    named = [each for section in call.sections.values() for each in named_sources(section)]
    below += [path for _, path, kind in named if not (kind.names or kind.by_name)]
    beside = [path for name, path in given if spec.inputs[name][0] is Documents]
    for output in call.outputs.values():
        target = Path(os.path.realpath(output))
        read = [path for path in below if Path(os.path.realpath(path)) in target.parents]
        if is_jsonl(output):
            read += [path for path in beside if Path(os.path.realpath(path)) == target.parent]
        for source in (path for path in read if not is_published(path)):
            raise UserError(
                f"{output}: inside the input {source}, so the next run would read it as input too; choose an output "
                "outside of it"
            )


def check_stats_apart(spec: StageSpec, call: Invocation) -> None:
    """Raise UserError if stats or their provenance would be written into an output, an input or a published folder.

    They are written after the outputs, so they would replace what the run has just made; in a folder of the input the
    next run would find them.
    """
    targets = {
        Path(os.path.realpath(target)): output for output in call.outputs.values() for target in written_paths(output)
    }
    inputs = [
        (name, SourceKind(by_name=name not in spec.read_below), path)
        for name, paths in call.inputs.items()
        for path in paths
    ]
    inputs += [("", kind, path) for section in call.sections.values() for _, path, kind in named_sources(section)]
    for file in _stats_files(call):
        what = f"{file}: what --stats writes"
        if address := address_of(file):
            raise UserError(f"{address}: --stats writes a file of this machine; name one")
        real = Path(os.path.realpath(file))
        if real in targets:
            raise UserError(f"{what} would replace the output {targets[real]}; choose another file")
        for target, output in targets.items():
            if target in real.parents:
                raise UserError(f"{what} would be inside the output {output}; choose a file outside of it")
            if real in target.parents:
                raise UserError(f"{what} is a file, and the output {output} would be inside it; choose another file")
        if real.is_dir():
            raise UserError(f"{what} is a file, and this is a folder; name a file, such as {file / 'stats.json'}")
        for above in real.parents:
            if above.exists() and not above.is_dir():
                raise UserError(f"{what} cannot be inside {above}, which is a file; choose another file")
            if _manifest(above / MANIFEST):
                raise UserError(
                    f"{what} would be inside {above}, which a stage published as a whole; choose a file outside of it"
                )
        for name, kind, source in inputs:
            folder = Path(os.path.realpath(source))
            if real == folder:
                raise UserError(f"{what} would replace the input {source}; choose another file")
            if name and spec.inputs[name][0] is Documents:
                is_read = folder == real.parent and is_jsonl(real)
            elif kind.names:
                is_read = folder == real.parent and any(fnmatchcase(real.name, each) for each in kind.names)
            else:
                is_read = not kind.by_name and folder in real.parents
            if is_read:
                raise UserError(
                    f"{what} would be inside the input {source}, so the next run would read it as input too; choose a "
                    "file outside of it"
                )
        if real.name == MANIFEST or real.name.endswith(f".{MANIFEST}"):
            raise UserError(f"{what} would have the name of an output's manifest; choose another name")


def replaces_input(output: object, source: object) -> UserError:
    """Return what is said of an output that would take the place of an input."""
    return UserError(f"{output}: the output would replace the input {source}; choose another output")


def inside_published(output: object, above: object) -> UserError:
    """Return what is said of an output in a folder that a stage published, whose manifest would not name it."""
    return UserError(f"{output}: inside {above}, which a stage published as a whole; choose another output")


def _check_is_ours(path: Path, output: Path) -> None:
    """Raise UserError if something in the place of an output was not made by a stage."""
    if os.path.ismount(output):
        raise UserError(f"{path}: a mount point, which cannot be replaced as a whole; name a folder in it")
    if is_jsonl(output):
        if is_half_published(output):
            return
        manifest = _manifest(manifest_path(output))
        ours = {*manifest.files, manifest_path(output).name} if manifest and output.name in manifest.files else set()
        for existing in (written for written in written_paths(output) if os.path.lexists(written)):
            if existing.name not in ours or existing.is_dir():
                raise _not_ours(path if existing == output else existing, manifest_path(output).name)
    elif output.is_dir():
        files = list(_everything_in(output))
        manifest = _manifest(output / MANIFEST)
        if manifest is None and files:
            raise _not_ours(path, MANIFEST)
        named = {*manifest.files, MANIFEST, STORED} if manifest else set[str]()
        for file in files:
            if file.relative_to(output).as_posix() not in named:
                raise UserError(
                    f"{path / file.relative_to(output)}: no stage made it (the folder's {MANIFEST} does not name it), "
                    "so --overwrite does not replace the folder; move it away, or choose another output"
                )
    elif os.path.lexists(output):
        raise _not_ours(path, MANIFEST)


def _not_ours(path: Path, manifest: str) -> UserError:
    return UserError(
        f"{path}: no stage made it (no {manifest} of ours names it), so --overwrite does not replace it; choose "
        "another output, or remove it yourself"
    )


def _manifest(path: Path) -> Manifest | None:
    """Return the manifest of a stage at `path`; None if there is none that can be read."""
    try:
        return Manifest.load(path) if path.is_file() else None
    except UserError:
        return None


def _everything_in(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder but folders, in order; a link to a folder is not followed."""
    for child in sorted(folder.iterdir()):
        if child.is_dir() and not child.is_symlink():
            yield from _everything_in(child)
        else:
            yield child


def _stats_files(call: Invocation) -> list[Path]:
    """Return the files of stats and provenance that a call writes."""
    return [call.options.stats, provenance_path(call.options.stats)] if call.options.stats else []


def _check_stats(call: Invocation) -> None:
    """Raise UserError if the path of stats or provenance has something that no stage wrote."""
    for path, key in zip(_stats_files(call), ("outputs", "fingerprint"), strict=False):
        file = store.real_path(path)
        if not os.path.lexists(file):
            continue
        try:
            value = json.loads(file.read_bytes())
        except (OSError, ValueError):
            value = None
        if not isinstance(value, dict) or key not in cast(dict[str, Any], value):
            raise UserError(f"{path}: no stage wrote it, so --stats does not replace it; choose another file")
