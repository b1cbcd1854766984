"""A stage's command line, made from the signature of its function.

    def clean(config: CleanConfig, run: StageRun, documents: Documents, output: Output) -> None

gives `python -m dataprep.clean DOCUMENTS... OUTPUT --min-tokens 128 ...`: every parameter that is a
`Documents`, `Source` or `Output` is a path argument (an option where it may be None), a `str` is a
word, a `tuple[str, ...]` any number of words, and every field of the configuration dataclasses is a
flag (`--gopher.min-words` where a field is a dataclass itself). `--params params.yaml` takes the
sections from there, `--preset gopher` starts from a preset; flags override. A second dataclass parameter
is the section of its own name, with prefixed flags.
"""

import argparse
import dataclasses
import importlib
import inspect
import os
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from pipelines import config as configs
from pipelines import presets
from pipelines.errors import ConfigError
from pipelines.manifest import Counts, FileEntry, Manifest

HELP_COLUMNS = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """One unit of work: what its files are called, and the files it reads."""

    name: str
    files: tuple[Path, ...]

    @property
    def file(self) -> Path:
        """The only file of a part that has just one."""
        (file,) = self.files
        return file


@dataclasses.dataclass(frozen=True, slots=True)
class Documents:
    """An input of documents: Parquet shards in order, whatever the user gave (JSONL, folders)."""

    parts: tuple[Part, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Any other input: a path of the user's, or a folder that a stage published (with its manifest)."""

    path: Path
    manifest: Manifest | None


@dataclasses.dataclass(slots=True)
class Output:
    """A path that the stage publishes: `folder` is where its files go now, `final` where they will be."""

    folder: Path
    final: Path
    counts: Counts = dataclasses.field(default_factory=Counts)
    files: dict[str, FileEntry] = dataclasses.field(default_factory=dict[str, FileEntry])


class Table(Output):
    """An output of rows: a folder of shards, or one JSONL file when its path ends so."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run: nothing here but the parameters themselves can change a byte of the output."""

    params: Path | None = None
    """Take the sections from this parameter file; flags override it."""
    workers: Annotated[int, Ge(0)] = 0
    """Processes; 0 is one per core (or MILLRACE_WORKERS)."""
    engine: Literal["local"] = "local"
    """Where shards are worked on."""
    memory_budget: str = "50%"
    """Memory for sorting and tables: bytes such as 2GB, or a share of RAM (or MILLRACE_MEMORY_BUDGET)."""
    overwrite: bool = False
    """Replace an output that exists; it stays in place until the new one is complete."""
    sample_rejected: Annotated[int, Ge(0)] = 0
    """Print so many rejected rows per rule in the end; of an output that exists, print them and run nothing."""
    stats: Path | None = None
    """Write counts and scores here as JSON (times go to the same path below provenance/)."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What to report on standard error."""


@dataclasses.dataclass(frozen=True, slots=True)
class StageSpec:
    """What a stage module declares: its function, sections, paths, VERSION and SHAPED_BY."""

    name: str
    function: Callable[..., Any]
    doc: str
    version: int
    shaped_by: tuple[str, ...]
    sections: dict[str, tuple[str, type]]
    """Parameter name -> (section of params.yaml, its dataclass)."""
    inputs: dict[str, tuple[type, bool]]
    """Parameter name -> (Documents or Source, required)."""
    outputs: dict[str, bool]
    """Parameter name -> required."""
    tables: frozenset[str]
    """Outputs that may be one JSONL file."""
    words: dict[str, bool]
    """Parameter name -> takes any number of words."""

    @classmethod
    def load(cls, module_name: str) -> "StageSpec":
        """Read the declaration of the stage in module `module_name`."""
        module = importlib.import_module(module_name)
        name = module_name.rpartition(".")[2]
        function = getattr(module, name)
        hints = typing.get_type_hints(function)
        sections: dict[str, tuple[str, type]] = {}
        inputs: dict[str, tuple[type, bool]] = {}
        outputs: dict[str, bool] = {}
        words: dict[str, bool] = {}
        tables: set[str] = set()
        for parameter in inspect.signature(function).parameters:
            kind, required = _unwrap(hints[parameter])
            if kind in (Output, Table):
                outputs[parameter] = required
                tables |= {parameter} if kind is Table else set()
            elif kind in (Documents, Source):
                inputs[parameter] = (kind, required)
            elif kind is str or typing.get_origin(kind) is tuple:
                words[parameter] = kind is not str
            elif parameter != "run":
                sections[parameter] = (name if parameter == "config" else parameter, kind)
        doc = inspect.getdoc(module) or ""
        return cls(
            name, function, doc, module.VERSION, module.SHAPED_BY, sections, inputs, outputs, frozenset(tables), words
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a stage: checked sections, paths per parameter, and run options."""

    sections: dict[str, Any]
    inputs: dict[str, tuple[Path, ...]]
    outputs: dict[str, Path]
    words: dict[str, Any]
    options: RunOptions


def _unwrap(hint: Any) -> tuple[Any, bool]:
    """`X` -> (X, required), `X | None` -> (X, not required)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = [kind for kind in typing.get_args(hint) if kind is not type(None)]
        return kinds[0], False
    return hint, True


def parse(spec: StageSpec, arguments: Sequence[str]) -> Invocation:
    """Parse the command line of a stage; exits with usage on a wrong one, as argparse does.

    Raises ConfigError for a parameter file or a value that is wrong.
    """
    import tyro

    options = RunOptions(
        workers=_environment_workers(),
        memory_budget=os.environ.get("MILLRACE_MEMORY_BUDGET", "50%"),
    )
    files = _files(arguments)
    defaults = {
        parameter: _defaults(section, cls, files, preset=parameter == "config")
        for parameter, (section, cls) in spec.sections.items()
    }
    command = _command_class(spec, defaults, options)
    result = tyro.cli(
        command,
        prog=f"python -m {spec.function.__module__}",
        description=_wrapped(spec.doc),
        args=list(arguments),
    )
    where = "command line"
    sections = {
        parameter: configs.check(cls, getattr(result, section), section, where)
        for parameter, (section, cls) in spec.sections.items()
    }
    configs.check(RunOptions, result.run, "run", where)
    values = {
        name: getattr(result, name) for name in (*spec.words, *spec.inputs, *spec.outputs) if hasattr(result, name)
    }
    if many := _variadic(spec):
        last = [name for name, required in spec.outputs.items() if required]
        given: tuple[str, ...] = result.arguments
        looks_only = result.run.sample_rejected and len(given) == len(last)  # at an output that is there
        if len(given) < len(last) + (many in spec.inputs) and not looks_only:
            raise ConfigError(f"{where}: expected {_metavar(spec, many)}, got {len(given)} argument(s); see --help")
        first, rest = given[: -len(last)], given[-len(last) :]
        values[many] = tuple(Path(path) for path in first) if many in spec.inputs else first
        values |= {name: Path(path) for name, path in zip(last, rest, strict=True)}
    return Invocation(
        sections,
        {name: _in_order(_as_tuple(values[name]), kind) for name, (kind, _) in spec.inputs.items()},
        {name: values[name] for name in spec.outputs if values[name] is not None},
        {name: values[name] for name in spec.words},
        result.run,
    )


def _wrapped(doc: str) -> str:
    """A docstring in lines of at most 80 columns, all but commands; tyro joins lines that do not begin with a space."""
    paragraphs = doc.split("\n\n")
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else textwrap.fill(paragraph, HELP_COLUMNS, subsequent_indent="  ")
        for paragraph in paragraphs
    )


def _in_order(paths: tuple[Path, ...], kind: type) -> tuple[Path, ...]:
    """Documents in order of their files' names, so that no result depends on the order in which they are given."""
    return tuple(sorted(paths, key=lambda path: (path.name, path.as_posix()))) if kind is Documents else paths


def _as_tuple(value: Path | tuple[Path, ...] | None) -> tuple[Path, ...]:
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _metavar(spec: StageSpec, many: str) -> str:
    return " ".join([f"{many.upper()}...", *(name.upper() for name, required in spec.outputs.items() if required)])


def _environment_workers() -> int:
    text = os.environ.get("MILLRACE_WORKERS", "0")
    if not text.isdigit():
        raise ConfigError(f"MILLRACE_WORKERS={text}: expected a whole number of processes")
    return int(text)


def _variadic(spec: StageSpec) -> str | None:
    """The parameter that takes any number of arguments: words, or documents when nothing else is required."""
    for name, many in spec.words.items():
        if many:
            return name
    required = [name for name, (_, needed) in spec.inputs.items() if needed]
    if len(required) == 1 and spec.inputs[required[0]][0] is Documents:
        return required[0]
    return None


def _files(arguments: Sequence[str]) -> argparse.Namespace:
    """What the sections start from: `--params` or `--preset`, read before the other flags."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    early.add_argument("--params", type=Path, nargs="?")
    early.add_argument("--preset", nargs="?")
    files = early.parse_known_args(list(arguments))[0]
    if files.params and files.preset:
        raise ConfigError("--preset: not together with --params, which gives every value already; leave one out")
    return files


def _defaults(section: str, cls: type, files: argparse.Namespace, *, preset: bool) -> Any:
    if files.params:
        return configs.load_section(cls, configs.read_yaml(files.params), section, files.params)
    if preset and files.preset and presets.names(section):
        return presets.load(cls, section, files.preset)
    return cls()


def _output_help(spec: StageSpec, name: str) -> str:
    return f"{name}: a folder to publish" + (", or one .jsonl[.gz|.zst] file" if name in spec.tables else "")


def _command_class(spec: StageSpec, defaults: dict[str, Any], options: RunOptions) -> type:
    """The dataclass that tyro turns into a parser: paths, sections, run options."""
    from tyro.conf import OmitArgPrefixes, Positional, arg

    documents = "JSONL files, folders of them, or folders of our shards; read in order of name"
    fields: list[Any] = []
    optional: list[Any] = []
    many = _variadic(spec)
    if many:
        first = documents if many in spec.inputs else "words"
        last = "; ".join(_output_help(spec, name) for name, required in spec.outputs.items() if required)
        hint = "(required)" if many in spec.inputs else "(words are optional)"
        text = arg(help=f"{first}; last, {last}", metavar=_metavar(spec, many), help_behavior_hint=hint)
        fields.append(("arguments", Positional[Annotated[tuple[str, ...], text]]))
    fields += [
        (name, Positional[Annotated[str, arg(help=f"the {name}", metavar=name.upper())]])
        for name in spec.words
        if name != many
    ]
    paths = {
        name: (needed, documents if kind is Documents else "a file or folder")
        for name, (kind, needed) in spec.inputs.items()
    }
    paths |= {name: (needed, _output_help(spec, name)) for name, needed in spec.outputs.items()}
    for name, (needed, words) in paths.items():
        if not needed:
            option = Annotated[Path | None, arg(help=words, metavar="PATH")]
            optional.append((name, option, dataclasses.field(default=None)))
        elif not many:
            fields.append((name, Positional[Annotated[Path, arg(help=words, metavar=name.upper())]]))
    for parameter, (section, cls) in spec.sections.items():
        kind = Annotated[cls, arg(name="")] if parameter == "config" else cls
        optional.append((section, kind, dataclasses.field(default=defaults[parameter])))
    if known := presets.names(spec.name):
        text = f"start from a preset: {', '.join(known)}, or a YAML file with keys of section {spec.name}"
        option = Annotated[str | None, arg(help=text, metavar="NAME|FILE")]
        optional.append(("preset", option, dataclasses.field(default=None)))
    optional.append(("run", OmitArgPrefixes[RunOptions], dataclasses.field(default=options)))
    return dataclasses.make_dataclass(spec.name, fields + optional, frozen=True, kw_only=True)
