"""What the command lines of other programs share: their common options, scratch folder, notes and lines of JSON.

A stage that can stand in for another program names a function as its `other_command`. It recognises the program's
arguments, runs our stage in a scratch folder beside the output, and writes the files that the program would have
written. A note on standard error says what has another meaning now.
"""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pipelines import exits, store
from pipelines.arguments import OneLineParser
from pipelines.called import called
from pipelines.command import StageSpec
from pipelines.errors import ConfigError, UserError
from pipelines.locks import locked
from pipelines.manifest import SCRATCH, WORK
from pipelines.stage import run_command
from pipelines.terminal import print_error, visible
from pipelines.utf import check_utf8


def run_program(
    stage: str, command: Callable[[argparse.ArgumentParser, Sequence[str]], int], arguments: Sequence[str]
) -> int:
    """Run a command with the options that all have; return the exit status. Print a user error as one line."""
    parser = OneLineParser(prog=called(f"dataprep.{stage}"), allow_abbrev=False)
    parser.add_argument("--overwrite", action="store_true", help="replace existing outputs")
    parser.add_argument("--workers", help="processes; 0 is one per core")
    parser.add_argument("--memory-budget", help="a size such as 2GB, or a percentage of RAM")
    parser.add_argument("--log-level", default="warning", help="what to report on standard error")
    parser.set_defaults(program=stage)
    exits.unwind_on_signals()
    try:
        return command(parser, arguments)
    except UserError as error:
        print_error(error)
        return 2 if isinstance(error, ConfigError) else 1


@contextlib.contextmanager
def scratch_beside(
    output: Path, checks: Mapping[Path, Callable[[Any], bool]], options: argparse.Namespace
) -> Generator[Path, None, None]:
    """Make a scratch folder beside an output, named by both the output and the program.

    What a killed run left there is removed. Raises UserError if a file to write, a key of `checks`, exists and
    --overwrite is not set, or if its first line is not one that this command writes, and if another process holds the
    folder.
    """
    for path, is_line_of_ours in checks.items():
        if not os.path.lexists(path):
            continue
        if not options.overwrite:
            raise UserError(f"{path}: exists already; choose another output, or replace it with --overwrite")
        real = store.real_path(path)
        if not real.is_file() or (real.stat().st_size and not is_line_of_ours(first_line(real))):
            raise not_ours(path)
    place = store.real_path(output).with_name(f"{output.name}-{options.program}")
    with locked([place]):
        folder = place.parent / WORK / f"{place.name}{SCRATCH}"
        store.remove(folder)
        folder.mkdir()
        try:
            yield folder
        finally:
            store.remove(folder)


def not_ours(path: Path) -> UserError:
    """Return the error for a file in the place of an output that no such command wrote."""
    return UserError(
        f"{path}: not a file that this command wrote, so --overwrite does not replace it; choose another output, or "
        "remove it yourself"
    )


def run_stage(stage: str, options: argparse.Namespace, *arguments: Any) -> int:
    """Run a stage of ours with the options of `run_program`; return its exit status. `arguments`: two paths, flags."""
    given = {name: getattr(options, name) for name in ("workers", "memory_budget", "log_level")}
    run = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    if options.overwrite:
        run.append("--overwrite")
    paths, flags = arguments[:2], arguments[2:]
    return run_command(StageSpec.load(f"dataprep.{stage}"), [str(word) for word in (*paths, *run, *flags)])


def note(text: str) -> None:
    """Print a note on standard error."""
    print(f"note: {visible(text)}", file=sys.stderr)


def first_line(path: Path) -> Any:
    """Parse the first non-blank line of a JSONL file. Return None if there is none or it is not JSON."""
    try:
        line = next((line for line in store.read_lines(path) if line.strip()), b"null")
        return json.loads(line)
    except (UserError, OSError, ValueError, RecursionError):
        return None


def is_text_line(value: Any) -> bool:
    """Return whether a parsed line may be a document that was kept: lines that are not JSON are kept as they are."""
    return value is None or isinstance(value, dict)


def read_objects(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """Yield the number and bytes of each non-blank line, and its JSON object, or None if it is not one."""
    check_utf8(path)
    for number, line in enumerate(store.read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        yield number, line, cast(dict[str, Any], value) if isinstance(value, dict) else None


def json_line(row: Mapping[str, Any]) -> bytes:
    """Return a row as a line of JSON with the characters of its texts; escaped where UTF-8 cannot write them."""
    try:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(row).encode() + b"\n"
