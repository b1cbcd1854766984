"""Two users of a group share DVC's cache as docs/howto/cluster.md sets it up."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.pages import Page
from tests.sample_project import ROOT, environment

GROUP, FIRST, SECOND = 60000, 60001, 60002
PAGE = Page.read(ROOT / "docs/howto/cluster.md")


@pytest.fixture
def folder() -> Generator[Path]:
    """A folder that other users reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def block(words: str, folder: Path) -> str:
    """The commands of the page with these words."""
    (commands,) = (block.commands for block in PAGE.blocks if words in block.commands)
    return commands.replace("/srv/millrace-cache", f"{folder}/cache").replace("chgrp millrace", f"chgrp {GROUP}")


def run(user: int, commands: str, folder: Path) -> None:
    """Run commands as a user of the group, who may read where Python lies, as root here."""
    may_read = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    words = ["setpriv", f"--reuid={user}", f"--regid={GROUP}", "--clear-groups", *may_read, "bash", "-euc", commands]
    variables = environment(HOME=str(folder), DVC_SITE_CACHE_DIR=str(folder / ".site"), USER=f"user{user}")
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def alike(text: str) -> str:
    """Another text, which the cache keeps in the same folder: the first two digits of MD5 name it."""
    start = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:2]
    others = (f"{text} {number}" for number in range(10000))
    return next(
        other for other in others if hashlib.md5(other.encode(), usedforsecurity=False).hexdigest().startswith(start)
    )


@pytest.mark.nightly
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs the right to be two users")
def test_two_users_share_a_cache(folder: Path) -> None:
    subprocess.run(["bash", "-euc", block("chmod 2775", folder)], check=True)
    for user, texts in ((FIRST, ["tokens"]), (SECOND, ["tokens", alike("tokens")])):
        clone = folder / str(user)
        clone.mkdir()
        os.chown(clone, user, GROUP)
        run(user, "git init -q && dvc init -q && dvc config cache.type hardlink,symlink", clone)
        run(user, block("cache.shared group", folder), clone)
        for number, text in enumerate(texts):
            run(user, f"printf '{text}' > {number} && dvc add -q {number}", clone)
            assert (clone / str(number)).read_text() == text
    kept = [file for file in (folder / "cache").rglob("*") if file.is_file()]
    assert sorted(file.read_text() for file in kept) == sorted(["tokens", alike("tokens")])
    assert {file.stat().st_uid for file in kept} == {FIRST, SECOND}
    assert len({file.parent for file in kept}) == 1
