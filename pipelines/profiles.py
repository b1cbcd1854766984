"""Profiles: `params.yaml` composed from `configs/` by Hydra, over the defaults of the stages' dataclasses.

No value is written twice: a section starts as the defaults of its dataclass, `configs/config.yaml` and
its groups say what differs, a profile overrides that, and the command line has the last word. The
profile and the overrides are recorded in `params.yaml` itself, so that it can be composed again.
"""

import dataclasses
import importlib
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipelines import store
from pipelines.command import StageSpec
from pipelines.config import SourcePath, check, named_sources, to_plain
from pipelines.errors import ConfigError, did_you_mean
from pipelines.graph import PARAMS_YAML, stage_modules


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """What the documents of a corpus are made from, which decides what `urls`, `download` and `extract` do."""

    kind: Literal[
        "urls",
        "replay",
        "hub",
        "auto",
        "warc",
        "wet",
        "html",
        "jsonl",
        "parquet",
        "text",
        "tar",
        "megatron",
    ] = "auto"
    """urls: crawled; replay: taken from an archive as if crawled; hub: files of a data set on the Hub; auto: all
    that is given, told by names; the others: a prepared corpus of this kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusConfig:
    """Group `corpus`: where documents come from. A source that is not there is an empty file."""

    name: str = ""
    """Part of every path below data/."""
    source: SourceConfig = field(default_factory=SourceConfig)
    """What kind of source it is."""
    urls: SourcePath = ""
    """A URL list, or a folder of them."""
    documents: SourcePath = ""
    """A prepared corpus: a file, or a folder with all below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlueConfig:
    """Group `glue`: which tasks, and where they come from."""

    name: str = ""
    """Part of the path below data/glue/."""
    folder: SourcePath = ""
    """The original distribution as a folder (an empty file when it comes from the Hub)."""
    tasks: tuple[str, ...] = ()
    """Tasks to fine-tune on."""
    scored: dict[str, str] = field(default_factory=dict[str, str])
    """Task that is only scored -> the one among them whose model scores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsConfig:
    """Names of the chosen groups, for the name of the run."""

    model: str = ""
    """The chosen model."""
    parallel: str = ""
    """The chosen layout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseConfig:
    """Group `base`: what fine-tuning starts from."""

    model: str = ""
    """The run's own export, or a folder with another GPT-2 or with checkpoints."""
    contamination: str = ""
    """Which rows of the tasks its corpus held (an empty file when that is not known)."""


GROUPS: dict[str, type] = {"corpus": CorpusConfig, "glue": GlueConfig, "base": BaseConfig, "labels": LabelsConfig}
PLAIN = {"profile", "overrides", "run", "seed"}
CONFIGS = Path("configs")
REQUIRED = "REQUIRED"
"""In a profile: a value that only the user can give. (Hydra's own `???` gives way to a default.)"""
VERSIONS_YAML = Path("versions.yaml")
_HEADER = "# Made by `python -m pipelines use`; `dvc exp run -S` may edit plain values. Do not edit by hand.\n"


def profiles() -> list[str]:
    """Names of all profiles."""
    return sorted(path.stem for path in (CONFIGS / "profile").glob("*.yaml"))


def section_types() -> dict[str, type]:
    """Section of params.yaml -> its dataclass: the groups', then what the stages of the graph declare."""
    return GROUPS | {
        section: cls for module in stage_modules().values() for section, cls in StageSpec.load(module).sections.values()
    }


def compose(profile: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The parameters of `profile` with `overrides` (`group=choice` or `key=value`), checked.

    Raises ConfigError for an unknown profile, group, choice or key, with the nearest name.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if profile not in profiles():
        raise ConfigError(f"profile {profile!r}: there is none.{did_you_mean(profile, profiles())}")
    types = section_types()
    _check_overrides(overrides, types)
    defaults: dict[str, Any] = {section: to_plain(cls()) for section, cls in types.items()}
    ConfigStore.instance().store(name="stage_defaults", node=OmegaConf.create(defaults))
    try:
        with initialize_config_dir(str(CONFIGS.resolve()), version_base="1.3"):
            config = hydra_compose("config", [f"profile={profile}", *overrides])
        written: dict[str, Any] = OmegaConf.to_container(config)  # pyright: ignore
        values: dict[str, Any] = OmegaConf.to_container(config, resolve=True)  # pyright: ignore
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"profile {profile} {' '.join(overrides)}: {' '.join(str(error).split())}") from None
    if missing := sorted(_required(written)):
        raise ConfigError(f"profile {profile} needs {' '.join(f'{key}=VALUE' for key in missing)}")
    params = checked(values, types)
    _check_together(params)
    return {"profile": profile, "overrides": list(overrides), **params}


def _check_together(params: dict[str, Any]) -> None:
    """Let each stage refuse parameters that cannot work together: its module's `check_parameters`, if it has one."""
    for module in stage_modules().values():
        if check_parameters := getattr(importlib.import_module(module), "check_parameters", None):
            check_parameters(params)


def missing_sources(params: dict[str, Any]) -> list[str]:
    """Source paths of the parameters that do not exist (here and now; DVC may bring them)."""
    types = section_types()
    sections = [check(cls, params[name], name, str(PARAMS_YAML)) for name, cls in types.items()]
    named = [str(path) for section in sections for _, path, _ in named_sources(section)]
    return sorted({path for path in named if not Path(path).exists()})


def _required(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted keys of the values that a profile leaves to the user."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _required(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        elif value == REQUIRED:
            yield f"{prefix}{key}"


def checked(values: dict[str, Any], types: dict[str, type] | None = None, file: Path = PARAMS_YAML) -> dict[str, Any]:
    """`values` with every section checked against its dataclass; ConfigError on the first wrong key."""
    types = types or section_types()
    for section in values.keys() - types.keys() - PLAIN:
        raise ConfigError(f"{file}: {section}: unknown section.{did_you_mean(section, {*types, *PLAIN})}")
    for section, cls in types.items():
        if section not in values:
            raise ConfigError(f"{file}: section {section!r} is missing.{did_you_mean(section, values)}")
        values[section] = to_plain(check(cls, values[section], section, str(file), complete=True))
    return values


def _check_overrides(overrides: Sequence[str], types: dict[str, type]) -> None:
    """Catch typos here: Hydra's own messages speak of structs and packages."""
    groups = {
        path.name: sorted(p.stem for p in path.glob("*.yaml")) for path in CONFIGS.iterdir() if any(path.glob("*.yaml"))
    }
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"{override!r}: expected group=choice or key=value")
        section, _, field = key.partition(".")
        if not field and key in groups:
            if value not in groups[key]:
                raise ConfigError(f"{override}: {key} has no choice {value!r}.{did_you_mean(value, groups[key])}")
        elif section not in types and section not in groups and section not in PLAIN:
            raise ConfigError(f"{override}: unknown key.{did_you_mean(section, {*types, *groups, *PLAIN})}")
        elif field and section in types:
            _check_key(override, types[section], section, field)


def _check_key(override: str, cls: type, section: str, key: str) -> None:
    """ConfigError when `cls` has no field `key`, which may be one of a dataclass in it: `gopher.min_words`."""
    hints = typing.get_type_hints(cls)
    name, _, rest = key.partition(".")
    if name not in hints:
        raise ConfigError(f"{override}: {section} has no key {name!r}.{did_you_mean(name, hints)}")
    if dataclasses.is_dataclass(hints[name]):
        if not rest:
            raise ConfigError(f"{override}: {section}.{name} holds keys of its own; set one, as {section}.{name}.KEY=…")
        _check_key(override, typing.cast(type, hints[name]), f"{section}.{name}", rest)


def write_params(params: dict[str, Any], file: Path = PARAMS_YAML) -> None:
    """Write the composed parameters, the record of how they were composed first."""
    import yaml

    text = _HEADER + yaml.safe_dump(params, sort_keys=False, allow_unicode=True, default_flow_style=False)
    with store.create(file) as opened:
        opened.write(text.encode())


def difference(params: dict[str, Any], composed: dict[str, Any]) -> list[str]:
    """Dotted keys whose values differ, with both values."""
    lines: list[str] = []
    for key in sorted({*params, *composed}):
        here, there = params.get(key), composed.get(key)
        if isinstance(here, dict) and isinstance(there, dict):
            lines += [f"{key}.{line}" for line in difference(here, there)]  # pyright: ignore
        elif here != there:
            lines.append(f"{key}: {here!r}, composed {there!r}")
    return lines


def versions() -> dict[str, Any]:
    """Per stage: its VERSION and the pinned versions of the libraries that shape its output.

    Versions are those of constraints.txt, so that the file is the same on every machine.
    """
    pinned: dict[str, str] = {}
    for line in Path("constraints.txt").read_text().splitlines():
        library, equals, version = line.partition("==")
        if equals:
            pinned[_normal(library)] = version.strip()
    result: dict[str, Any] = {}
    for name, module in stage_modules().items():
        spec = StageSpec.load(module)
        libraries = {lib: pinned[_normal(lib)] for lib in sorted(spec.shaped_by)}
        result[name] = {"version": spec.version, "libraries": libraries}
    return result


def _normal(library: str) -> str:
    return re.sub(r"[-_.]+", "-", library).lower()


def write_versions(file: Path = VERSIONS_YAML) -> None:
    """Write versions.yaml anew from the stage modules and constraints.txt."""
    import yaml

    header = "# Made by `python -m pipelines versions` from each stage's VERSION and SHAPED_BY, and constraints.txt.\n"
    with store.create(file) as opened:
        opened.write((header + yaml.safe_dump(versions(), sort_keys=False)).encode())
