"""A small project that real DVC runs: a few stages of dvc.yaml, on parameters and inputs of a test's own."""

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.sample_project import PARAMS, ROOT, environment

GRAPH: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


class DvcProject:
    """A project in a folder with git and DVC, whose graph has some stages of the real one."""

    def __init__(self, folder: Path, *stages: str, params: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        self.folder = folder
        self.params: dict[str, Any] = json.loads(json.dumps(PARAMS))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": {name: GRAPH[name] for name in stages}}, width=1000))
        for name in ("versions.yaml", ".gitignore", "configs/none"):
            self.copy(name)
        self.set(params or {})
        self.command("git", "init", "-q")
        self.dvc("init", "-q")
        self.copy(".dvc/config")

    def copy(self, name: str) -> None:
        """Bring a file or folder of the real project."""
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        self.command("cp", "-r", str(ROOT / name), str(self.folder / name))

    def copied(self, folder: Path) -> "DvcProject":
        """Return a copy of the project, links among its files included."""
        self.command("cp", "-a", str(self.folder), str(folder))
        other = copy.copy(self)
        other.folder, other.params = folder, copy.deepcopy(self.params)
        return other

    def set(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Change values of sections in params.yaml."""
        for section, values in changes.items():
            self.params[section].update(values)
        (self.folder / "params.yaml").write_text(yaml.safe_dump(self.params, sort_keys=False))

    def repro(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run `dvc repro`, which may fail."""
        return self._run(sys.executable, "-m", "dvc", "repro", *arguments, **variables)

    def dvc(self, *arguments: str) -> str:
        """Run a command of DVC, and return what it prints."""
        return self.command(sys.executable, "-m", "dvc", *arguments)

    def command(self, *words: str) -> str:
        """Run a command, which must not fail."""
        done = self._run(*words)
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _run(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        env = environment(PYTHONPATH=str(ROOT), **variables)
        return subprocess.run(words, cwd=self.folder, env=env, capture_output=True, text=True, check=False)
