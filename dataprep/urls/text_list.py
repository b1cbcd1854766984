"""`urls LISTS clean_urls.txt`: the list as a text file, one URL per line, as Megatron's blacklist_urls.py writes it.

The stage runs as ever, with all of its flags; its URLs then go to the text file in their order, the lines that it
rejected to clean_urls.rejected.jsonl, and a manifest beside them says that both are ours.
"""

import argparse
import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dataprep.programs import run_program, run_stage, scratch_beside
from pipelines import store
from pipelines.errors import UserError
from pipelines.manifest import FileEntry, Manifest, manifest_path
from pipelines.outputs import rejected_name, rejected_path, shown_as

SUFFIX = ".txt"
_PLACE = 2
"""The paths come first, before all flags: LISTS and the output."""


def write_text_list(arguments: Sequence[str]) -> int | None:
    """Run the stage and write a text file; return the exit status, None if the output is not named as one.

    A folder of that name, which the stage once made, stays an output of the stage; help is that of the stage.
    """
    if len(arguments) < _PLACE or any(word.startswith("-") for word in arguments[:_PLACE]):
        return None
    output = Path(arguments[1])
    if output.suffix != SUFFIX or output.is_dir() or {"-h", "--help"} & {*arguments}:
        return None
    return run_program("urls", _write, arguments)


def _write(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    parser.add_argument("lists", type=Path)
    parser.add_argument("output", type=Path)
    parser.set_defaults(log_level=None)  # as the stage has it
    options, flags = parser.parse_known_args(arguments)
    refuse_output_among_lists(options.lists, options.output)
    final = store.real_path(options.output)
    rejected, manifest = final.with_name(f"{final.stem}.rejected.jsonl"), manifest_path(final)
    with scratch_beside(final, _checks(final, rejected, manifest), options) as folder:
        rows = folder / "urls.jsonl"
        beside = options.output.with_name(rejected.name)
        with shown_as({rows: options.output, rejected_path(rows): beside}):
            status = run_stage("urls", options, options.lists, rows, *flags)
        if status:
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
        Manifest(files, made.counts, made.limited).save(rows.with_name("manifest.json"))
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


def _checks(*paths: Path) -> dict[Path, Callable[[Any], bool]]:
    """Return the checks of `scratch_beside`: ours is only what the last path, the manifest, names, and itself."""
    ours: set[str] = set()
    with contextlib.suppress(UserError, OSError):
        ours = {*Manifest.load(paths[-1]).files, paths[-1].name}
    return {path: (_yes if path.name in ours else _no) for path in paths}


def _yes(_line: Any) -> bool:
    return True


def _no(_line: Any) -> bool:
    return False
