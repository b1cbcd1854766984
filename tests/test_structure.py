"""The shape of the project as tests: imports, names, declared code, profiles, versions."""

import ast
import hashlib
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.command import StageSpec
from pipelines.graph import load_stages, stage_modules
from pipelines.profiles import compose, difference, profiles, section_types, versions
from trainer.config import LENGTHS, SAMPLES

ROOT = Path(__file__).parents[1]
PACKAGES = ("pipelines", "dataprep", "trainer")
GRAPH: dict[str, Any] = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
NEVER_LISTED = {"pipelines/log.py", "pipelines/progress.py", "pipelines/engine.py"}
"""They cannot change a byte of any output."""
NO_CODE = {"download", "pretrain"}
"""A comment must not crawl the web again or retrain: only their VERSION counts."""
TORCH = {"torch", "transformers", "sklearn", "safetensors"}
WEB = {
    "aiohttp",
    "trafilatura",
    "lxml",
    "protego",
    "warcio",
    "fastwarc",
    "resiliparse",
    "tldextract",
    "urllib3",
    "requests",
}
HEAVY = TORCH | {"trafilatura", "langdetect", "ftfy", "aiohttp", "datasets", "matplotlib", "scipy", "numba", "pydantic"}
PREPARED = ("openwebtext_tar", "warc", "wet", "html", "jsonl", "parquet", "text", "megatron")
TEST_PATHS = {
    **{name: ["corpus.documents=inputs/documents"] for name in PREPARED},
    "openwebtext": ["corpus.urls=inputs/urls"],
    "replay": ["download.replay=inputs/warc"],
    "local": ["corpus.documents=inputs/documents", "tokenizer.files=inputs/gpt2", "glue.folder=inputs/glue"],
    "custom": ["glue_download.columns=[question,answer]"],
}
"""Values that a user of a profile (or of the corpus or GLUE tasks of the same name) must give."""


def source_files() -> list[Path]:
    return sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def module_file(name: str) -> Path | None:
    path = Path(*name.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((c for c in candidates if (ROOT / c).exists() and (ROOT / c).stat().st_size), None)


@cache
def imported_modules(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def import_closure(path: Path) -> set[Path]:
    found: set[Path] = set()
    queue = [path]
    while queue:
        current = queue.pop()
        if current in found:
            continue
        found.add(current)
        package = current.parent / "__init__.py"  # importing a module runs its package first
        queue += [package] if (ROOT / package).stat().st_size else []
        ours = (name for name in imported_modules(current) if name.split(".")[0] in PACKAGES)
        queue += [file for name in ours if (file := module_file(name))]
    return found


@pytest.mark.parametrize("path", source_files(), ids=str)
def test_imports_go_one_way(path: Path) -> None:
    """Dataprep -> pipelines <- trainer; torch only in trainer, the web only in dataprep, dvc nowhere."""
    tops = {name.split(".")[0] for name in imported_modules(path)}
    package = path.parts[0]
    assert "dvc" not in tops
    forbidden = {
        "pipelines": {"dataprep", "trainer"} | TORCH | WEB,
        "dataprep": {"trainer"} | TORCH,
        "trainer": {"dataprep"} | WEB,
    }
    assert not tops & forbidden[package]


@pytest.mark.parametrize("path", source_files(), ids=str)
def test_nothing_happens_at_import(path: Path) -> None:
    """At module level stand only definitions, imports and constants."""
    for node in ast.parse((ROOT / path).read_text()).body:
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        allowed = (
            ast.Import,
            ast.ImportFrom,
            ast.FunctionDef,
            ast.AsyncFunctionDef,
            ast.ClassDef,
            ast.Assign,
            ast.AnnAssign,
        )
        guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        assert is_main or is_docstring or guard or isinstance(node, allowed), f"{path}:{node.lineno}"


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_a_stage_has_one_name_everywhere(name: str) -> None:
    """Stage = module = function = section of params.yaml = output folder = test file."""
    spec = StageSpec.load(stage_modules()[name])
    assert spec.name == name
    body = GRAPH[name].get("do", GRAPH[name])
    outs = [out if isinstance(out, str) else next(iter(out)) for out in body["outs"]]
    # Further outputs have names of their own: fetch_log, contamination.
    expected = {"glue_download": "data/glue/${glue.name}", "report": "reports/${run}"}.get(name)
    assert outs[0] == expected if expected else f"/{name}" in outs[0]
    params = [p for p in body["params"] if isinstance(p, str)]
    own = {section for section, _ in spec.sections.values()}
    assert {p.split(".")[0] for p in params} <= own
    assert {"versions.yaml": [name]} in body["params"]
    package = stage_modules()[name].split(".")[0]
    assert (ROOT / "tests" / package / f"test_{name}.py").exists()


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_a_stage_declares_exactly_the_code_it_imports(name: str) -> None:
    """DVC does not follow imports, so an undeclared module would leave stale results."""
    body = GRAPH[name].get("do", GRAPH[name])
    declared = {dep for dep in body["deps"] if dep.endswith(".py")}
    file = module_file(stage_modules()[name])
    assert file
    expected = set() if name in NO_CODE else {p.as_posix() for p in import_closure(file)} - NEVER_LISTED
    assert declared == expected


def code_digest(paths: set[Path]) -> str:
    """Of what the code does: comments, docstrings and layout do not count."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        tree = ast.parse((ROOT / path).read_text())
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
        digest.update(f"{path}\n{ast.dump(tree)}\n".encode())
    return digest.hexdigest()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the digest is that of Python 3.11's syntax trees")
@pytest.mark.parametrize("name", sorted(NO_CODE))
def test_code_that_the_graph_does_not_list_changes_only_with_its_version_or_a_proof(name: str) -> None:
    """Tests/unlisted_code.yaml holds VERSION, a digest of the code, and what shows that outputs are equal."""
    recorded = yaml.safe_load((ROOT / "tests" / "unlisted_code.yaml").read_text())[name]
    file = module_file(stage_modules()[name])
    assert file
    digest = code_digest({path for path in import_closure(file) if path.as_posix() not in NEVER_LISTED})
    assert (StageSpec.load(stage_modules()[name]).version, digest) == (recorded["version"], recorded["code"]), (
        f"the code of {name} changed: raise its VERSION, or show that its outputs are equal and say how in "
        "tests/unlisted_code.yaml"
    )
    assert recorded["proof"]


def test_the_parameters_of_pretrain_in_the_graph_are_its_identity() -> None:
    """Layout, micro-batch, logging and checkpoint cadence must not retrain; all that shapes the weights must."""
    spec = StageSpec.load("trainer.pretrain")
    declared = {p for p in GRAPH["pretrain"]["params"] if isinstance(p, str)}
    expected: set[str] = set()
    for section, cls in spec.sections.values():
        config = cls()
        expected |= {f"{section}.{key}" for key in config.identity()} if hasattr(config, "identity") else {section}
    # A record leaves these out where they are the default; DVC has to see them change all the same.
    expected |= {f"pretrain.{key}" for key in (*SAMPLES, *LENGTHS)}
    assert declared == expected


def test_every_dependency_is_a_whole_output() -> None:
    """A file inside an output, or a parent of several, would make DVC miss changes; the report alone may."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    stages = load_stages(params, ROOT / "dvc.yaml")
    outs = {out for stage in stages for out in stage.outs}
    for stage in stages:
        for dep in stage.deps:
            if stage.name != "report" and dep.parts[0] in ("data", "runs", "reports"):
                assert dep in outs, f"{stage.name}: {dep}"


@pytest.fixture
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize("profile", [path.stem for path in sorted((ROOT / "configs" / "profile").glob("*.yaml"))])
def test_every_profile_composes_and_every_section_loads(profile: str) -> None:
    assert profile in profiles()
    params = compose(profile, TEST_PATHS.get(profile, []))
    assert {*section_types()} <= {*params}
    load_stages(params)


@pytest.mark.usefixtures("in_root")
@pytest.mark.parametrize(
    "choice",
    sorted(f"{p.parent.name}={p.stem}" for p in (ROOT / "configs").glob("*/*.yaml") if p.parent.name != "profile"),
)
def test_every_choice_of_every_group_composes(choice: str) -> None:
    group, _, name = choice.partition("=")
    given = TEST_PATHS.get(name, []) if group in ("corpus", "glue") else []
    others = [path for path in TEST_PATHS["local"] if not path.startswith("corpus.")]
    others += ["base.model=inputs/model"] if choice == "base=huggingface" else []
    compose("sample", [choice, *given, *others])


@pytest.mark.usefixtures("in_root")
def test_the_committed_parameters_are_the_sample_profile() -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    assert difference(params, compose("sample", [])) == []


@pytest.mark.usefixtures("in_root")
def test_versions_yaml_is_current() -> None:
    assert yaml.safe_load(Path("versions.yaml").read_text()) == versions()


def test_constraints_hold_exact_versions_and_no_addresses() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9._]+|#.*|", line), line


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_help_shows_every_option_with_its_default_and_imports_nothing_heavy(name: str) -> None:
    module = stage_modules()[name]
    code = (
        f"import runpy, sys\nsys.argv = ['x', '--help']\n"
        f"try:\n    runpy.run_module({module!r}, run_name='__main__')\nexcept SystemExit:\n    pass\n"
        f"print('HEAVY', *sorted({HEAVY!r} & set(sys.modules)))"
    )
    environment = {**os.environ, "COLUMNS": "200"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    text, _, heavy = result.stdout.partition("HEAVY")
    assert heavy.split() == []
    spec = StageSpec.load(module)
    for _, cls in spec.sections.values():
        for field in cls.__dataclass_fields__:
            assert f"{field.replace('_', '-')}" in text
    assert text.count("(default:") >= 7 + sum(len(cls.__dataclass_fields__) for _, cls in spec.sections.values())


def test_readme_names_every_stage() -> None:
    text = (ROOT / "README.md").read_text()
    assert [name for name in GRAPH if f"`{name}`" not in text] == []
