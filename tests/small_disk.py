"""A file system of a few megabytes, to fill."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB of our own."""
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def resize(disk: Path, size: str) -> None:
    """Have a small disk hold more, or less, than it did: `64m`."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Leave so many bytes of a disk free; return the file that takes the others, and leaves them when it is removed."""
    taker = disk / "taker"
    taker.write_bytes(bytes(shutil.disk_usage(disk).free - leave))
    return taker
