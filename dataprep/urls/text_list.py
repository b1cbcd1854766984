"""`urls LISTS clean_urls.txt`: the list as a text file, one URL per line, as Megatron's blacklist_urls.py writes it.

The stage runs as ever, with all of its flags; its URLs then go to the text file in their order, the lines that it
rejected to clean_urls.rejected.jsonl, and a manifest beside them says that both are ours.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipelines import exits, store
from pipelines.command import StageSpec
from pipelines.errors import UserError
from pipelines.manifest import WORK, FileEntry, Manifest, manifest_path
from pipelines.outputs import rejected_name
from pipelines.stage import run_command
from pipelines.terminal import print_error

SUFFIX = ".txt"
_PLACE = 2
"""The paths come first, before all flags: LISTS and the output."""


def write_text_list(arguments: Sequence[str]) -> int | None:
    """Run the stage and write a text file; return the exit status, None if the output is not named as one.

    A folder of that name, which the stage once made, stays an output of the stage.
    """
    if len(arguments) < _PLACE or any(word.startswith("-") for word in arguments[:_PLACE]):
        return None
    lists, output = (Path(word) for word in arguments[:_PLACE])
    if output.suffix != SUFFIX or output.is_dir():
        return None
    exits.unwind_on_signals()
    try:
        return _run(lists, output, arguments[_PLACE:])
    except UserError as error:
        print_error(error)
        return 1


def _run(lists: Path, output: Path, flags: Sequence[str]) -> int:
    refuse_output_among_lists(lists, output)
    final = store.real_path(output)
    rejected, manifest = final.with_name(f"{final.stem}.rejected.jsonl"), manifest_path(final)
    _check_free([final, rejected, manifest], overwrite="--overwrite" in flags)
    work = final.parent / WORK
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{final.name}-", dir=work) as folder:
        rows = Path(folder, "urls.jsonl")
        if status := run_command(StageSpec.load("dataprep.urls"), [str(lists), str(rows), *flags]):
            return status
        if not rows.exists():  # --help, and the like
            return status
        made = Manifest.load(manifest_path(rows))
        text = rows.with_suffix(SUFFIX)
        with store.create(text) as file:
            for line in store.read_lines(rows):
                file.write(json.loads(line)["url"].encode() + b"\n")
        files = {final.name: FileEntry(made.files[rows.name].rows, text.stat().st_size, store.sha256(text))}
        renames = [(text, final)]
        lines = rows.with_name(rejected_name(rows))
        if lines.exists():
            files[rejected.name] = made.files[lines.name]
            renames.insert(0, (lines, rejected))
        Manifest(files, made.counts).save(rows.with_name("manifest.json"))
        for old in (manifest, rejected):  # so that a manifest never describes other files
            store.remove(old)
        for source, target in [*renames, (rows.with_name("manifest.json"), manifest)]:
            store.rename(source, target)
    return 0


def refuse_output_among_lists(lists: Path, output: Path) -> None:
    """Raise UserError if the output lies among the lists: the next run would read it as a list."""
    if lists.is_dir() and lists.resolve() in output.resolve().parents:
        raise UserError(f"{output}: is inside the folder of the lists, {lists}; choose another output")
    if output.resolve() == lists.resolve():
        raise UserError(f"{output}: the output would replace the input {lists}; choose another output")


def _check_free(paths: Sequence[Path], *, overwrite: bool) -> None:
    """Raise UserError if a file to write exists and may not be replaced: only what the last, the manifest, names."""
    ours: set[str] = set()
    if paths[-1].is_file():
        with contextlib.suppress(UserError):
            ours = {*Manifest.load(paths[-1]).files, paths[-1].name}
    for path in filter(os.path.lexists, paths):
        if not overwrite:
            raise UserError(f"{path}: exists already; choose another output, or replace it with --overwrite")
        if path.name not in ours or not path.is_file():
            raise UserError(
                f"{path}: no stage made it (no {paths[-1].name} of ours names it), so --overwrite does not replace it; "
                "choose another output, or remove it yourself"
            )
