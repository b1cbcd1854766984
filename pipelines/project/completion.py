"""`millrace completion SHELL`: a script that completes commands, options, choices and paths, made by shtab."""

import argparse
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pipelines import console, presets
from pipelines.arguments import plain_type
from pipelines.command import StageSpec, flags
from pipelines.installed import PROJECT_FILES

SHELLS = ("bash", "zsh", "fish")
GPU = ("--gpu", "--gpu-memory", "--gpu-tflops", "--gpu-bandwidth", "--gpu-link", "--gpus")
OTHERS = {
    "plan": (
        *("--model", *GPU, "--per-node", "--node-link", "--host-memory", "--vocab-size", "--global-batch-size"),
        *("--sequence-length", "--precision", "--tokens", "--write", "--pictures", "--learn", "--calibration"),
    ),
    "generate": ("--new-tokens", "--temperature", "--top-k", "--seed"),
    "card": ("--license", "--repository", "--scores", "--languages", "--datasets", "--overwrite"),
    "push": ("--private", "--overwrite"),
    "glue-submission": ("--overwrite", "--fill-missing"),
    "browse": ("--port", "--rows"),
    "show-quality": ("--documents", "--words", "--only"),
    "curves": ("--overwrite",),
    "batches": ("--step", "--tokens", "--documents"),
}
"""Options of the commands that are no stages."""


def script(shell: str, project: Mapping[str, argparse.ArgumentParser]) -> str:
    """Return the script for a shell; `project` has the parsers of the project's own commands."""
    import shtab

    return shtab.complete(_parser(project), shell)


def _parser(project: Mapping[str, argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Return one parser of all commands, which only completes: it has no defaults and checks nothing."""
    whole = argparse.ArgumentParser(prog="millrace", description="From web pages to a trained GPT-2")
    commands = whole.add_subparsers()
    for group in console.GROUPS:
        for name, what in group.commands.items():
            parser = commands.add_parser(
                name, help=what, parents=[project[name]] if name in project else [], add_help=False
            )
            if name not in project:
                _add_paths(parser)
                for option, hint in _options(name).items():
                    _add_option(parser, option, hint)
            elif name == "use":
                _profile_of(parser).choices = _names("profile")
    return whole


def _options(name: str) -> dict[str, Any]:
    """Return the options of a command -> the type of their values."""
    if name in OTHERS:
        models = {"--model": Literal[*_names("model")]} if "--model" in OTHERS[name] else {}
        return {"--help": None, **dict.fromkeys(OTHERS[name], Path), **models}
    spec = StageSpec.load(console.modules()[name])
    known = presets.names(spec.name)
    return flags(spec) | ({"--preset": Literal[*known]} if known else {})


def _names(group: str) -> list[str]:
    return sorted(file.stem for file in (PROJECT_FILES / "configs" / group).glob("*.yaml"))


def _add_option(parser: argparse.ArgumentParser, option: str, hint: Any) -> None:
    hint = plain_type(hint)
    if hint in (None, bool):
        parser.add_argument(option, action="store_true")
    elif typing.get_origin(hint) is Literal:
        parser.add_argument(option, choices=typing.get_args(hint))
    else:
        _completes_paths(parser.add_argument(option))


def _add_paths(parser: argparse.ArgumentParser) -> None:
    _completes_paths(parser.add_argument("paths", nargs="*"))


def _completes_paths(action: Any) -> None:
    import shtab

    action.complete = shtab.FILE


def _profile_of(parser: argparse.ArgumentParser) -> argparse.Action:
    return next(action for action in parser._actions if action.dest == "profile")  # pyright: ignore[reportPrivateUsage]
