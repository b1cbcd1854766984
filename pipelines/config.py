"""Parameters: sections of `params.yaml` as frozen dataclasses, checked before anything runs.

A section is a plain frozen dataclass; limits are written in its types (`Annotated[int, Gt(0)]`).
`load_section` refuses unknown and missing keys, wrong types and values out of range, and names the
file, the key, what was expected and the nearest valid name.
"""

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Gt, Interval

from pipelines.errors import ConfigError, did_you_mean

C = TypeVar("C")

Count = Annotated[int, Gt(0)]
"""A whole number, at least 1."""
NonNegative = Annotated[int, Ge(0)]
"""A whole number, at least 0."""
Share = Annotated[float, Interval(ge=0, le=1)]
"""A number from 0 to 1."""
Positive = Annotated[float, Gt(0)]
"""A number above 0."""


@dataclasses.dataclass(frozen=True, slots=True)
class SourceKind:
    """What a source path may be."""

    file_only: bool = False
    names: tuple[str, ...] = ()
    """Patterns of the files that count right in a folder; without any, all below it counts."""
    by_stage: bool = False
    """The stage itself says what is wrong with it, because it knows more."""


SourcePath = Annotated[str, SourceKind()]
"""A path of the user's whose contents shape the output; "" or an empty file where there is none (see `given`)."""
StageSource = Annotated[str, SourceKind(by_stage=True)]
"""The same, looked at by the stage alone."""
SourcePaths = Annotated[tuple[str, ...], SourceKind()]
"""Several of them."""
SourceFile = Annotated[str, SourceKind(file_only=True)]
"""A source that is never a folder."""
TokenizerPath = Annotated[
    str,
    SourceKind(
        names=("tokenizer.json", "tokenizer_config.json", "*vocab.json", "*merges.txt", "*encoder.json", "*vocab.bpe")
    ),
]
"""A tokenizer file, or a folder with a tokenizer's files among others, in the layouts of `dataprep/text/bpe.py`."""


def named_sources(section: Any) -> list[tuple[str, Path, SourceKind]]:
    """Field, path and kind of each source that a section names, be it there or not; `hub` is no path."""
    hints = typing.get_type_hints(type(section), include_extras=True)
    kinds = {
        name: kind
        for name, hint in hints.items()
        for kind in getattr(hint, "__metadata__", ())
        if isinstance(kind, SourceKind)
    }
    values = {name: getattr(section, name) for name in kinds}
    several = {name: value if isinstance(value, tuple) else (value,) for name, value in values.items()}
    return [
        (name, path, kinds[name])
        for name, sources in several.items()
        for source in sources
        if source != "hub" and (path := given(source))
    ]


def source_files(path: Path, kind: SourceKind) -> list[Path]:
    """The files that count in a folder of a kind with names, in order."""
    return sorted({file for name in kind.names for file in path.glob(name) if file.is_file()})


def check_sources(section: Any, name: str) -> None:
    """ConfigError for a source of section `name` that is not there, or not what it should be."""
    for field, path, kind in named_sources(section):
        where = f"{name}.{field}: {path}"
        if kind.by_stage:
            continue
        if not path.exists():
            raise ConfigError(f"{where}: no such file or folder")
        if kind.file_only and path.is_dir():
            raise ConfigError(f"{where}: is a folder; give a file")
        if kind.names and path.is_dir() and not source_files(path, kind):
            raise ConfigError(f"{where}: holds no tokenizer; expected tokenizer.json, or a vocabulary and its merges")


def given(source: Path | str | None) -> Path | None:
    """A source path, or None where a profile names no source: None, "" or an empty file.

    A source is always a DVC dependency, so profiles without one name the empty `configs/none`.
    """
    if not source or not str(source):
        return None
    path = Path(source)
    return None if path.is_file() and path.stat().st_size == 0 else path


_FOUND = {list: "a list", type(None): "nothing"}


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; ConfigError when it is missing, broken or something else."""
    import yaml

    try:
        value = yaml.load(path.read_bytes(), _loader())  # noqa: S506 - a SafeLoader with YAML 1.2's floats
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; `python -m pipelines use sample` writes it") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path}: expected keys with values (key: value), found {_FOUND.get(type(value), 'one word')}"
        )
    return typing.cast(dict[str, Any], value)


@functools.cache
def _loader() -> Any:
    """As DVC reads it: YAML 1.2, where 2e-05 is a number, `no` a word (Norwegian), and no key stands twice.

    PyYAML has YAML 1.1, takes these for text and false, and of a key that stands twice the last.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    problem = f"key {key.value!r} stands twice, also in line {key.start_mark.line + 1}; keep one"
                    raise yaml.constructor.ConstructorError(problem=problem)
                seen.add(key.value)
            return super().construct_mapping(node, deep)

    boolean = "tag:yaml.org,2002:bool"
    resolvers: dict[str, list[tuple[str, Any]]] = Loader.yaml_implicit_resolvers
    Loader.yaml_implicit_resolvers = {
        first: [each for each in tags if each[0] != boolean] for first, tags in resolvers.items()
    }
    Loader.add_implicit_resolver(boolean, re.compile("(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
    number = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)[eE][-+]?\d+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    return Loader


def load_section(cls: type[C], params: Mapping[str, Any], section: str, file: Path | str) -> C:
    """Section `section` of `params` as a `cls`; every key must be there and right."""
    if section not in params:
        raise ConfigError(f"{file}: section {section!r} is missing.{did_you_mean(section, params)}")
    return check(cls, params[section], section, str(file), complete=True)


def check(cls: type[C], value: Any, section: str, file: str, *, complete: bool = False) -> C:
    """`value` (a mapping or an instance) as a valid `cls`.

    Raises ConfigError naming file, key, expectation and nearest name; with `complete`, keys that
    have a default must be given too, so that no default slips past the parameter file.
    """
    import pydantic

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: {section}: expected keys with values, got {value!r}")
    values = typing.cast(dict[str, Any], value)
    _check_names(cls, values, section, file, complete=complete)
    adapter = pydantic.TypeAdapter(cls, config=None)
    try:
        return adapter.validate_json(json.dumps(values, default=str), strict=True)
    except pydantic.ValidationError as error:
        lines = [_explain(section, problem) for problem in error.errors()]
        raise ConfigError("\n".join(f"{file}: {line}" for line in lines)) from None


def _check_names(cls: type, values: dict[str, Any], section: str, file: str, *, complete: bool) -> None:
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = typing.get_type_hints(cls)
    for name, value in values.items():
        if name not in fields:
            raise ConfigError(f"{file}: {section}.{name}: unknown key.{did_you_mean(str(name), fields)}")
        if dataclasses.is_dataclass(hints[name]) and isinstance(value, dict):
            nested = typing.cast(dict[str, Any], value)
            _check_names(hints[name], nested, f"{section}.{name}", file, complete=complete)
        elif dataclasses.is_dataclass(hints[name]) and not dataclasses.is_dataclass(value):
            first = dataclasses.fields(hints[name])[0].name
            raise ConfigError(f"{file}: {section}.{name}: expected keys with values, such as {first}, got {value!r}")
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if name not in values and (complete or required):
            raise ConfigError(f"{file}: {section}.{name}: missing; expected {describe(hints[name])}")


def _explain(section: str, problem: Any) -> str:
    # Tuples and unions add parts to the location that no user wrote; keep keys and positions.
    key = ".".join([section, *(str(part) for part in problem["loc"] if not str(part).endswith("]"))])
    message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "expected")
    value = problem["input"]
    if problem["type"] == "tuple_type" and not isinstance(value, (dict, list)):
        return f"{key}: expected a list, [{value}], got {value!r}"
    advice = {
        "string_type": "; put a word such as 'no' in quotes" if isinstance(value, bool) else "",
        "bool_type": "; write true or false",
        "value_error": "",
    }.get(problem["type"], "")
    return f"{key}: {message}, got {value!r}{advice}"


def describe(hint: Any) -> str:
    """A type as a user would say it: `int`, `text or nothing`, `one of a, b`."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(str(choice) for choice in typing.get_args(hint))
    if origin is Annotated:
        return describe(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(choice) for choice in typing.get_args(hint))
    if origin is tuple:
        return f"a list of {describe(typing.get_args(hint)[0])}"
    return {str: "text", type(None): "nothing (null)", Path: "a path"}.get(hint, getattr(hint, "__name__", str(hint)))


def to_plain(config: Any) -> dict[str, Any]:
    """A section as it stands in YAML and JSON: plain dictionaries, lists, text and numbers."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))
