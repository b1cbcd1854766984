"""The graph that `dvc.yaml` and `params.yaml` describe: stages in order, their modules, outputs and parameters.

The project's own commands in it (`versions` runs `python -m pipelines versions`) do not count as stages: they publish
nothing.
"""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.config import PARAMS_YAML, read_yaml
from pipelines.errors import ConfigError
from pipelines.names import check_texts

DVC_YAML = Path("dvc.yaml")
_OWN_COMMAND = "python -m pipelines "


@dataclass(frozen=True, slots=True)
class GraphStage:
    """One stage, its `${...}` filled in. A stage of a `foreach` is called `name@item`."""

    name: str
    commands: tuple[str, ...]
    deps: tuple[Path, ...]
    params: tuple[str, ...]
    outs: tuple[Path, ...]
    """What it publishes, each with a manifest."""
    stats: tuple[Path, ...]
    """Its files of counts and scores."""

    @property
    def module(self) -> str:
        """The module its command runs: `dataprep.clean`."""
        return _module(self.commands[0], self.name, DVC_YAML)


def load_stages(params: Mapping[str, Any], file: Path = DVC_YAML) -> list[GraphStage]:
    """Return all stages in the order of the file, with `params` filled in, whose names and paths it checks."""
    check_texts(params, PARAMS_YAML)
    stages: list[GraphStage] = []
    for name, body in _stage_bodies(file):
        if "foreach" not in body:
            stages.append(_stage(name, body, params))
            continue
        items: list[Any] | dict[str, Any] = _fill(body["foreach"], params)
        pairs = items.items() if isinstance(items, dict) else zip(items, items, strict=True)
        stages += [_stage(f"{name}@{key}", body["do"], {**params, "key": key, "item": item}) for key, item in pairs]
    return stages


def _stage(name: str, body: Mapping[str, Any], params: Mapping[str, Any]) -> GraphStage:
    commands = body["cmd"] if isinstance(body["cmd"], list) else [body["cmd"]]
    outs: list[Any] = body.get("outs", [])
    stats = [out for out in outs if str(out).startswith("stats/")]
    return GraphStage(
        name,
        tuple(_fill(command, params) for command in commands),
        tuple(Path(path) for path in _names(body.get("deps", []), params)),
        tuple(_names([p for p in body.get("params", []) if isinstance(p, str)], params)),
        tuple(Path(path) for path in _names([out for out in outs if out not in stats], params)),
        tuple(Path(path) for path in _names(stats, params)),
    )


def _names(entries: list[Any], params: Mapping[str, Any]) -> Iterator[str]:
    for entry in entries:
        yield _fill(next(iter(entry)) if isinstance(entry, dict) else entry, params)


def _fill(text: Any, params: Mapping[str, Any]) -> Any:
    """Replace `${a.b}` by its value; a text that is nothing else becomes the value itself."""
    whole = re.fullmatch(r"\$\{([^}]+)\}", str(text))
    if whole:
        return _look_up(whole[1], params)
    return re.sub(r"\$\{([^}]+)\}", lambda match: str(_look_up(match[1], params)), str(text))


def _look_up(key: str, params: Mapping[str, Any]) -> Any:
    value: Any = params
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ConfigError(
                f"{PARAMS_YAML}: {key}: missing, but {DVC_YAML} uses it; write it anew: python -m pipelines use PROFILE"
            )
        value = value[part]
    return value


def stage_modules(file: Path = DVC_YAML) -> dict[str, str]:
    """Return stage name -> module; needs no parameters."""
    return {name: _module(_first_command(body), name, file) for name, body in _stage_bodies(file)}


def _stage_bodies(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and body of every stage, without the project's own commands."""
    changed = file.stat().st_mtime_ns if file.exists() else 0
    for name, body in _stages(file.resolve(), changed, file).items():
        if not _first_command(body).startswith(_OWN_COMMAND):
            yield name, body


@functools.lru_cache(maxsize=4)
def _stages(_resolved: Path, _changed: int, file: Path) -> dict[str, dict[str, Any]]:
    """Read the bodies of all stages, once for each state of the file: this takes a third of composing parameters."""
    return read_yaml(file)["stages"]


def _first_command(body: Mapping[str, Any]) -> str:
    command = body.get("do", body)["cmd"]
    return command[0] if isinstance(command, list) else command


def _module(command: str, stage: str, file: Path) -> str:
    match = re.match(r"python -m (\S+)", command)
    if not match:
        raise ConfigError(f"{file}: {stage}: cmd must start with `python -m MODULE`")
    return match[1]
