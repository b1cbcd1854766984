"""What a training ran on and with: processor, cores, system, Python, and the commit of the code."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

CODE = ("dataprep", "pipelines", "trainer")


def describe_computer() -> dict[str, Any]:
    """Return what is known of this computer and of the code, for the provenance; nothing of it shapes an output.

    `commit` is the one that the code comes from, with `+` if its files differ from it, and missing outside of git.
    """
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    commit = _commit()
    return {
        "processor": next(models, platform.processor() or platform.machine()),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        **({"commit": commit} if commit else {}),
    }


def _commit() -> str:
    here = Path(__file__).parents[2]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=False)
    if head.returncode:
        return ""
    same = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *CODE], cwd=here, capture_output=True, check=False)
    return head.stdout.strip() + ("+" if same.returncode else "")
