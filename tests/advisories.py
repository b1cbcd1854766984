"""Known vulnerabilities of the project's dependencies: `python -m tests.advisories CHECKOUT` writes advisories.yaml.

CHECKOUT: a clone of github.com/pypa/advisory-database, whose reports say which versions of a package are affected (in
the format of osv.dev). The tests look up what is installed and what pyproject.toml allows; no network is needed, and
the file tells how old the reports are.
"""

import argparse
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_suffix(".yaml")
HEADER = """\
# Known vulnerabilities of what constraints.txt names: reports of the PyPA's advisory database (CC BY 4.0).
# Written by `python -m tests.advisories CHECKOUT`; versions that match any line are affected.
"""


def pinned() -> dict[str, str]:
    """Return the version of each package in constraints.txt."""
    lines = (line.strip().partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    return {canonicalize_name(name): version for name, equals, version in lines if equals}


def lower_bounds() -> dict[str, str]:
    """Return the oldest version of each package that pyproject.toml allows, of those that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (names for extra, names in project["optional-dependencies"].items() if extra not in ("dev", "bench"))
    found: dict[str, str] = {}
    for line in [*project["dependencies"], *(name for names in extras for name in names)]:
        requirement = Requirement(line)
        for bound in requirement.specifier:
            if bound.operator == ">=":
                found[canonicalize_name(requirement.name)] = bound.version
    return found


def affected(versions: dict[str, str], reports: dict[str, dict[str, list[str]]]) -> list[str]:
    """Return a line for each report on one of these versions: `jinja2 3.1: PYSEC-2024-1 (<3.1.4)`."""
    return [
        f"{name} {version}: {report} ({ranges})"
        for name, version in sorted(versions.items())
        for report, lines in reports.get(name, {}).items()
        for ranges in lines
        if SpecifierSet(ranges).contains(version, prereleases=True)
    ]


def read() -> dict[str, Any]:
    """Return what advisories.yaml holds."""
    return yaml.safe_load(FILE.read_text())


def ranges_of(report: dict[str, Any], package: str) -> list[str]:
    """Return the affected versions of a package as specifiers: a report's ranges, or else each version of its list."""
    found: list[str] = []
    for entry in report["affected"]:
        if canonicalize_name(entry["package"]["name"]) != package:
            continue
        ranges = [one for one in entry.get("ranges", []) if one["type"] == "ECOSYSTEM"]
        for one in ranges:
            found += _specifiers(one["events"])
        if not ranges:
            found += [f"=={version}" for version in entry.get("versions", [])]
    return found


def _specifiers(events: list[dict[str, str]]) -> list[str]:
    """Return `>=introduced,<fixed` for each pair of events; a version that was never fixed has no upper end."""
    found: list[str] = []
    start = ""
    for event in events:
        if "introduced" in event:
            start = "" if event["introduced"] == "0" else f">={event['introduced']}"
            found.append(start or ">=0")
        elif event.keys() & {"fixed", "last_affected"}:
            end = f"<{event['fixed']}" if "fixed" in event else f"<={event['last_affected']}"
            found[-1] = ",".join(part for part in (start, end) if part)
    return found


def main() -> None:
    """Write advisories.yaml from a checkout of the database."""
    parser = argparse.ArgumentParser(description="Renew the list of known vulnerabilities of the dependencies.")
    parser.add_argument("checkout", type=Path, help="a clone of github.com/pypa/advisory-database")
    checkout = parser.parse_args().checkout

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", checkout, *arguments], capture_output=True, text=True, check=True).stdout

    reports: dict[str, dict[str, list[str]]] = {}
    wanted = {*pinned(), *lower_bounds()}
    for path in git("ls-tree", "-r", "--name-only", "HEAD", "vulns").splitlines():
        package = canonicalize_name(Path(path).parent.name)
        if package not in wanted or not re.search(r"\.ya?ml$", path):
            continue
        report = yaml.safe_load(git("show", f"HEAD:{path}"))
        if "withdrawn" not in report:
            reports.setdefault(package, {})[report["id"]] = ranges_of(report, package)
    commit, date = git("log", "-1", "--format=%H %cs").split()
    content = {
        "source": "https://github.com/pypa/advisory-database",
        "commit": commit,
        "date": date,
        "packages": sorted(wanted),
        "reports": {name: reports[name] for name in sorted(reports)},
    }
    FILE.write_text(HEADER + yaml.safe_dump(content, sort_keys=False, width=120))


if __name__ == "__main__":
    main()
