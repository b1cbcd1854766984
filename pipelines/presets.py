"""Presets of a stage: the choices of its Hydra group, `configs/<stage>/<name>.yaml`, also for stand-alone commands.

A file lists only what differs from the defaults of the section's dataclass. `python -m pipelines use sample
clean=gopher` composes it into params.yaml; `python -m dataprep.clean --preset gopher` starts from the same file.
"""

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipelines import config as configs
from pipelines.errors import ConfigError, did_you_mean

C = TypeVar("C")

FOLDER = Path(__file__).resolve().parents[1] / "configs"
_OF_SEVERAL_SECTIONS = "# @package _global_"


def names(stage: str) -> list[str]:
    """The presets that come with a stage, none for most: group `tokenizer` sets more than its stage, so it is none."""
    files = (FOLDER / stage).glob("*.yaml")
    return sorted(file.stem for file in files if not file.read_text("utf-8").startswith(_OF_SEVERAL_SECTIONS))


def load(cls: type[C], stage: str, preset: str) -> C:
    """A preset by name, or by the path of a YAML file, as the stage's section.

    Raises ConfigError for an unknown name or key, or a wrong value, naming the file and the nearest name.
    """
    is_file = preset.endswith((".yaml", ".yml")) or "/" in preset
    if not is_file and preset not in names(stage):
        raise ConfigError(
            f"--preset {preset}: {stage} has no such preset, and it is no .yaml file."
            f"{did_you_mean(preset, names(stage))}"
        )
    file = Path(preset) if is_file else FOLDER / stage / f"{preset}.yaml"
    if is_file and not file.exists():
        raise ConfigError(f"--preset {preset}: no such file; presets by name: {', '.join(names(stage))}")
    mapping = _mapping(file)
    if list(mapping) == [stage]:
        raise ConfigError(f"{file}: {stage}: a preset is the keys of this section; take out the line `{stage}:`")
    return configs.check(cls, _merged(configs.to_plain(cls()), mapping), stage, str(file))


def _mapping(file: Path) -> dict[str, Any]:
    """The keys of a preset; a file of nothing but comments has none."""
    text = file.read_text("utf-8", errors="replace")
    if all(not line.strip() or line.startswith("#") for line in text.splitlines()):
        return {}
    return configs.read_yaml(file)


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` over `defaults`, family by family."""
    result = dict(defaults)
    for key, value in given.items():
        before = result.get(key)
        nested = isinstance(before, dict) and isinstance(value, dict)
        result[key] = _merged(typing.cast(dict[str, Any], before), value) if nested else value
    return result
