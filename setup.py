"""Builds the modules in C, and puts the project's files into the wheel. All else stands in pyproject.toml.

They are optional: where they do not compile, the installation goes on, and NumPy and Python do the same work.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

SOURCES = ("module", "portable", "avx2", "sets")
HEADERS = ("kernel", "blocks", "characters", "folding", "shingling", "collecting", "compilation")
PROJECT_FILES = ("dvc.yaml", "params.yaml", "versions.yaml", ".dvcignore", ".gitignore", "configs", ".dvc/plots")
PROJECT_FILES += (".dvc/config", ".dvc/.gitignore")
"""What `millrace init` lays out, and presets by name are read from: pipelines/installed.py finds it."""


class BuildWithProjectFiles(build_py):
    """Copies them to pipelines/project/files in the wheel; an editable installation finds them where they are."""

    def run(self) -> None:
        """Build the packages."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "pipelines", "project", "files")
        shutil.rmtree(target, ignore_errors=True)  # an earlier build's
        for name in PROJECT_FILES:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if Path(name).is_dir() else shutil.copyfile
            copy(name, target / name)


def compiled(name: str, sources: Iterable[str], headers: Iterable[str] = ()) -> Extension:
    """Return a module in C, one build for Python 3.11 and later."""
    folder = "/".join(name.split(".")[:-1])
    return Extension(
        name,
        sources=[f"{folder}/{source}.c" for source in sources],
        depends=[f"{folder}/{header}.h" for header in headers],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        py_limited_api=True,
        extra_compile_args=["-O3"],
        optional=True,
    )


setup(
    cmdclass={"build_py": BuildWithProjectFiles},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    ext_modules=[
        compiled("dataprep.native._kernel", SOURCES, HEADERS),
        compiled("pipelines.native._lines", ["lines"], ["buffers"]),
        compiled("pipelines.native._hashes", ["hashes"], ["buffers"]),
    ],
)
