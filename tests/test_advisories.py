"""No dependency has a vulnerability that is known: neither the versions tested with nor the oldest that are allowed."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests import advisories

REPORT = """\
id: PYSEC-2099-1
affected:
- package: {ecosystem: PyPI, name: Aiohttp}
  ranges:
  - {type: GIT, repo: "https://mill.test", events: [{introduced: "0"}, {fixed: 33ccdfb}]}
  - type: ECOSYSTEM
    events: [{introduced: "0"}, {fixed: 1.2}, {introduced: "2.0"}, {last_affected: 2.4}, {introduced: "9"}]
- package: {ecosystem: PyPI, name: other}
  versions: ["1.0"]
"""


def test_neither_the_tested_versions_nor_the_oldest_allowed_are_known_to_be_vulnerable() -> None:
    reports = advisories.read()["reports"]
    assert advisories.affected(advisories.pinned(), reports) == []
    assert advisories.affected(advisories.lower_bounds(), reports) == []


def test_a_vulnerable_version_would_be_named() -> None:
    reports = advisories.read()["reports"]
    assert "aiohttp 3.9.1: PYSEC-2024-26 (<3.9.2)" in advisories.affected({"aiohttp": "3.9.1"}, reports)


def test_every_package_is_looked_up() -> None:
    """With other packages in constraints.txt or pyproject.toml, the list has to be written anew."""
    assert set(advisories.read()["packages"]) == {*advisories.pinned(), *advisories.lower_bounds()}


@pytest.mark.parametrize(
    ("version", "found"),
    [("1.1", True), ("1.2", False), ("2.0", True), ("2.4", True), ("2.5", False), ("9.1", True)],
)
def test_reports_are_read_as_ranges(version: str, found: bool) -> None:
    ranges = advisories.ranges_of(yaml.safe_load(REPORT), "aiohttp")
    assert bool(advisories.affected({"aiohttp": version}, {"aiohttp": {"PYSEC-2099-1": ranges}})) == found


def test_a_report_without_ranges_lists_versions() -> None:
    assert advisories.ranges_of(yaml.safe_load(REPORT), "other") == ["==1.0"]


def test_the_list_is_written_from_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, withdrawn in {"aiohttp/PYSEC-2099-1": "", "numpy/PYSEC-2099-2": "withdrawn: 2099\n"}.items():
        path = tmp_path / "vulns" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(withdrawn + REPORT)
    author = ["-c", "user.name=miller", "-c", "user.email=miller@mill.test"]
    for command in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "Reports"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(advisories, "FILE", tmp_path / "written.yaml")
    monkeypatch.setattr(sys, "argv", ["advisories", str(tmp_path)])
    advisories.main()
    written = advisories.read()
    assert written["reports"] == {"aiohttp": {"PYSEC-2099-1": ["<1.2", ">=2.0,<=2.4", ">=9"]}}
    assert "dvc-s3" in written["packages"]
