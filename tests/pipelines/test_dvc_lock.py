"""What DVC does with outputs and stats, through real DVC: stats of a failed run stay, each output is stored once."""

from pathlib import Path

import pytest

from tests.dvc_project import DvcProject

STATS = "stats/sample/urls.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DvcProject:
    """A project that has made its URL list."""
    made = DvcProject(tmp_path_factory.mktemp("made") / "project", "urls")
    made.copy("dataprep/sample/site/urls.txt")
    done = made.repro()
    assert done.returncode == 0, done.stdout + done.stderr
    return made


@pytest.fixture
def project(made: DvcProject, tmp_path: Path) -> DvcProject:
    """A copy of it."""
    return made.copied(tmp_path / "project")


def refused(project: DvcProject) -> None:
    project.set({"urls": {"date_from": "yesterday"}})
    done = project.repro()
    assert done.returncode != 0
    assert "yesterday" in done.stderr


def test_a_stage_that_refuses_its_parameters_leaves_its_stats_as_they_were(project: DvcProject) -> None:
    before = (project.folder / STATS).read_bytes()
    refused(project)
    assert (project.folder / STATS).read_bytes() == before


def test_in_a_clone_they_come_back_from_the_cache(project: DvcProject) -> None:
    before = (project.folder / STATS).read_bytes()
    project.command("rm", "-r", "provenance")
    refused(project)
    assert (project.folder / STATS).read_bytes() == before


def test_no_other_contents_come_back(project: DvcProject) -> None:
    """What neither place has as dvc.lock names it is not made up."""
    project.command("rm", "-r", "provenance", ".dvc/cache")
    refused(project)
    assert not (project.folder / STATS).exists()


def test_an_output_that_was_lost_comes_back_from_the_cache_without_a_run(project: DvcProject) -> None:
    """It would not if the stats were kept by `persist: true`."""
    before = (project.folder / STATS).read_bytes()
    project.command("rm", "-r", "data", "stats")
    done = project.repro()
    assert "cached - skipping run" in done.stdout
    assert (project.folder / STATS).read_bytes() == before
    assert (project.folder / "data/sample/urls/manifest.json").exists()


def test_an_output_and_its_copy_in_the_cache_are_one_file(project: DvcProject) -> None:
    """After the first run, and after one that makes the same bytes again, which the cache has by then."""
    output = project.folder / "data/sample/urls"

    def links() -> list[int]:
        return [file.stat().st_nlink for file in sorted(output.rglob("*")) if file.is_file()]

    project.command("rm", "-r", ".dvc/cache", "data")  # copying the project has made single files of links
    assert project.repro().returncode == 0
    assert links()
    assert set(links()) == {2}
    assert project.repro("-f", "-s", "urls").returncode == 0
    assert set(links()) == {2}
    assert "up to date" in project.dvc("status")
