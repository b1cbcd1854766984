"""Presets of a stage: the choices of its Hydra group, `configs/<stage>/<name>.yaml`, also for single commands.

A file lists only what differs from the defaults of the section's dataclass. `python -m pipelines use sample
clean=gopher` composes it into params.yaml; `python -m dataprep.clean --preset gopher` starts from the same file.
"""

import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipelines import config as configs
from pipelines.errors import ConfigError, did_you_mean
from pipelines.installed import PROJECT_FILES

C = TypeVar("C")

FOLDER = PROJECT_FILES / "configs"
_OF_SEVERAL_SECTIONS = "# @package _global_"


def names(stage: str) -> list[str]:
    """Return the presets of a stage. A choice that sets several sections, as in group `tokenizer`, is not a preset."""
    files = (FOLDER / stage).glob("*.yaml")
    return sorted(file.stem for file in files if not file.read_text("utf-8").startswith(_OF_SEVERAL_SECTIONS))


def load(cls: type[C], stage: str, preset: str) -> C:
    """Load the stage's section from a preset, by name or by the path of a YAML file.

    Raises ConfigError for an unknown name or key, or a wrong value; it names the file and the closest match.
    """
    is_file = preset.endswith((".yaml", ".yml")) or "/" in preset
    if not is_file and preset not in names(stage):
        raise ConfigError(
            f"--preset {preset}: {stage} has no such preset, and it is not a .yaml file."
            f"{did_you_mean(preset, names(stage))}"
        )
    file = Path(preset) if is_file else FOLDER / stage / f"{preset}.yaml"
    if is_file and not file.exists():
        raise ConfigError(f"--preset {preset}: no such file; presets by name: {', '.join(names(stage))}")
    mapping = read_choice(file)
    if list(mapping) == [stage]:
        raise ConfigError(f"{file}: {stage}: a preset holds the keys of this section; remove the line `{stage}:`")
    return configs.check(cls, _merged(configs.to_plain(cls()), mapping), stage, str(file))


def read_choice(file: Path) -> dict[str, Any]:
    """Return the keys of a file of `configs/`, or of a preset; one that has only comments has none."""
    from pipelines.yaml_bounds import MOST_BYTES

    with file.open("rb") as opened:
        lines = opened.read(MOST_BYTES).splitlines()
    return configs.read_yaml(file) if any(line.strip() and not line.startswith(b"#") for line in lines) else {}


def _merged(defaults: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `defaults` with `overrides` applied; nested families are merged key by key."""
    result = dict(defaults)
    for key, value in overrides.items():
        before = result.get(key)
        nested = isinstance(before, dict) and isinstance(value, dict)
        result[key] = _merged(typing.cast(dict[str, Any], before), value) if nested else value
    return result
