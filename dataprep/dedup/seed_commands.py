"""The command lines of Megatron's deduplication scripts, on the stages of ours.

    python -m dataprep.find_duplicates --inputs FILE KEY [FILE KEY ...] --output OUT
    python -m dataprep.group_duplicates IN OUT [THRESHOLD]
    python -m dataprep.remove_duplicates GROUPS DATA OUT [--key KEY]

They are told from ours by `--inputs`, and by what stands in the first file. All read and write JSONL as theirs
did (`dataprep.dedup.seed_files`, `seed_pairs`); a note on standard error says where an option has another meaning now.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from dataprep.dedup import seed_files, seed_pairs
from pipelines import store
from pipelines.command import StageSpec
from pipelines.documents import is_jsonl
from pipelines.errors import ConfigError, UserError
from pipelines.manifest import WORK
from pipelines.outputs import rejected_name
from pipelines.stage import run_command

DEFAULT_SEEDS = 100
"""Their `--num-seeds`."""


def seed_main(stage: str) -> None:
    """Run the command line of this process if it is in the seeds' form, and exit; else return."""
    if is_seed_form(stage, sys.argv[1:]):
        # As in `stage_main`: workers must not import the command's module a second time.
        main: Any = sys.modules["__main__"]
        main.__spec__ = main.__file__ = None
        sys.exit(run_seed_command(stage, sys.argv[1:]))


def is_seed_form(stage: str, arguments: Sequence[str]) -> bool:
    """Whether these are arguments of the seeds' script, told by their names and by what the files hold."""
    if stage == "find_duplicates":
        return any(argument.partition("=")[0] == "--inputs" for argument in arguments)
    if len(arguments) < 2 or not Path(arguments[0]).is_file():
        return False
    line = seed_files.first_line(Path(arguments[0]))
    if stage == "group_duplicates":
        return seed_files.is_pair_line(line) or (line is None and len(arguments) > 2 and _is_number(arguments[2]))
    if line is None and Path(arguments[1]).is_file() and not Path(arguments[0]).stat().st_size:
        data = seed_files.first_line(Path(arguments[1]))  # no groups at all: nothing is to go
        return isinstance(data, dict) and "text" in data
    return seed_files.is_group_line(line)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def run_seed_command(stage: str, arguments: Sequence[str]) -> int:
    """Run a command line in the seeds' form; returns the exit status and prints one line per user error."""
    commands: dict[str, Callable[[argparse.ArgumentParser, Sequence[str]], int]] = {
        "find_duplicates": _find,
        "group_duplicates": _group,
        "remove_duplicates": _remove,
    }
    parser = argparse.ArgumentParser(prog=f"python -m dataprep.{stage}", allow_abbrev=False)
    parser.add_argument("--overwrite", action="store_true", help="replace an output that exists")
    parser.add_argument("--workers", default="0", help="processes; 0 is one per core")
    parser.add_argument("--memory-budget", default="50%", help="bytes such as 2GB, or a share of RAM")
    parser.add_argument("--log-level", default="warning", help="what to report on standard error")
    try:
        return commands[stage](parser, arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _find(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    parser.add_argument("--inputs", nargs="+", required=True, help="files and, after each, the key of its ids")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--jaccard", choices=("union", "min", "max"), default="union")
    parser.add_argument("--num-seeds", type=int)
    parser.add_argument("--num-bands", type=int)
    parser.add_argument("--heuristic-iter", type=int)
    parser.add_argument("--jaccard-parallel", action="store_true")
    parser.add_argument("--load-fingerprints", nargs="+", default=[])
    parser.add_argument("--save-fingerprints", type=Path)
    options = parser.parse_args(arguments)
    output: Path | None = options.output or options.save_fingerprints
    if output is None:
        raise ConfigError("find_duplicates: nothing to make; give --output, --save-fingerprints or both")
    if len(options.inputs) % 2:
        raise ConfigError("find_duplicates --inputs: expected pairs of FILE KEY, such as --inputs web.json url")
    flags = _search_flags(options)
    with _scratch([options.output, options.save_fingerprints], options) as scratch:
        _write_documents(options.inputs, scratch / "documents")
        if status := _run_stage("find_duplicates", options, scratch / "documents", scratch / "pairs", *flags):
            return status
        if options.output:
            old = [Path(folder) for folder in options.load_fingerprints]
            if left_out := seed_pairs.write_seed_pairs(scratch / "pairs", old, scratch, options.output):
                _note(f"{left_out} ids belong to several texts, so no pair names them; give a key that is unique")
    return 0


def _search_flags(options: argparse.Namespace) -> list[Any]:
    """Our flags for their options; 5-character shingles of the text as it is, as theirs."""
    flags = ["--shingle", "char:5", "--no-normalise", "--threshold", seed_pairs.PAIRS_ABOVE]
    flags += ["--jaccard", options.jaccard, "--seed", options.seed]
    if options.num_bands or options.num_seeds:
        flags += ["--num-perm", options.num_seeds or DEFAULT_SEEDS]
    if options.num_bands:
        rows, left = divmod(options.num_seeds or DEFAULT_SEEDS, options.num_bands)
        if left:
            raise ConfigError(f"find_duplicates --num-seeds: must be divisible by --num-bands ({options.num_bands})")
        flags += ["--bands", options.num_bands, "--rows", rows]
    else:
        _note("bands are chosen so that 97 % of the pairs above 0.5 are compared; --num-bands 10 compared 1 % at 0.5")
    if options.heuristic_iter not in (None, -1):
        _note("--heuristic-iter: every document of a bucket is compared, always, as with -1")
    if options.jaccard_parallel:
        _note("--jaccard-parallel: similarities are always computed by all processes; --workers says how many")
    if options.save_fingerprints:
        _note("--save-fingerprints: a folder, and no pickle")
        flags += ["--save-fingerprints", options.save_fingerprints]
    if options.load_fingerprints:
        _note("--load-fingerprints: folders that --save-fingerprints made; pickles are not read, since they run code")
        flags += ["--against", "joint", "--load-fingerprints", *options.load_fingerprints]
    return flags


def _write_documents(inputs: Sequence[str], folder: Path) -> None:
    for number, (name, key) in enumerate(zip(inputs[::2], inputs[1::2], strict=True)):
        if skipped := seed_files.write_documents(Path(name), key, folder / f"{number:06d}.jsonl"):
            _note(f"{name}: {skipped} lines are left out: no JSON object with texts under 'text' and {key!r}")


def _group(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    parser.add_argument("input", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("threshold", type=float, nargs="?", default=0.7)
    options = parser.parse_args(arguments)
    with _scratch([options.output], options) as scratch:
        seed_files.write_pair_table(options.input, scratch / "pairs" / "part-00000.parquet")
        flags = ["--threshold", options.threshold, "--survivor", "first", "--stats", scratch / "stats.json"]
        if status := _run_stage("group_duplicates", options, scratch / "pairs", scratch / "groups", *flags):
            return status
        totals = json.loads((scratch / "stats.json").read_bytes())["totals"]
        if unlike := totals["kept_unlike_survivor"]:
            _note(f"{unlike} documents were like another duplicate only, not like the one that stays; they stay too")
        seed_files.write_seed_groups(scratch / "groups", options.output)
    return 0


def _remove(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    parser.add_argument("groups", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--key", help="the key of the ids; found out when left out")
    options = parser.parse_args(arguments)
    survivors = seed_files.read_seed_groups(options.groups)
    key: str = options.key or (seed_files.find_key(options.data, survivors) if survivors else "url")
    if key != "url":
        _note(f"ids are taken from key {key!r}")
    output: Path = options.output
    with _scratch([output], options) as scratch:
        kept, rejected = scratch / "kept", scratch / "rejected"
        nameless = _copy_lines(options.data, key, survivors, kept, rejected)
        if nameless:
            _note(f"{options.data}: {nameless} lines are no JSON object with the key {key!r}; they stay as they are")
        name = rejected_name(output) if is_jsonl(output) else f"{output.name}.rejected.jsonl"
        store.rename(rejected, output.with_name(name))
        store.rename(kept, output)
    return 0


def _copy_lines(data: Path, key: str, survivors: dict[str, str], kept: Path, rejected: Path) -> int:
    """Deal the lines of `data` out, as they are; returns how many have no id."""
    nameless = 0
    with store.create(kept) as kept_file, store.create(rejected) as rejected_file:
        for _, line, row in seed_files.read_objects(data):
            name = seed_files.id_of(row, key)
            nameless += name is None
            if name not in survivors:
                kept_file.write(line + b"\n")
                continue
            reason = {key: name, "rule": "duplicate", "value": f"survivor={survivors[name]}"}
            rejected_file.write(json.dumps(reason).encode() + b"\n")
    return nameless


@contextlib.contextmanager
def _scratch(outputs: Sequence[Path | None], options: argparse.Namespace) -> Generator[Path, None, None]:
    """A folder to work in beside the first output; UserError where an output exists that is not to be replaced."""
    made = [output for output in outputs if output]
    for output in made:
        if output.exists() and not options.overwrite:
            raise UserError(f"{output}: exists already; choose another output, or replace it with --overwrite")
    work = made[0].parent / WORK
    work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{made[0].name}-seeds-", dir=work) as folder:
        yield Path(folder)


def _run_stage(stage: str, options: argparse.Namespace, *arguments: Any) -> int:
    run = ["--workers", options.workers, "--memory-budget", options.memory_budget, "--log-level", options.log_level]
    if options.overwrite:
        run.append("--overwrite")
    paths, flags = arguments[:2], arguments[2:]
    return run_command(StageSpec.load(f"dataprep.{stage}"), [str(word) for word in (*paths, *run, *flags)])


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)
