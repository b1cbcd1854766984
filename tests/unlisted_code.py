"""Record in unlisted_code.yaml that a stage without a digest in versions.yaml has new code.

Run: python -m tests.unlisted_code STAGE 'HOW IT WAS SHOWN THAT ITS OUTPUTS ARE EQUAL'
"""

import argparse
from pathlib import Path
from typing import Any

import yaml

from pipelines.project.graph import stage_modules
from pipelines.project.versions import VERSION_ALONE, SourceCode

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_suffix(".yaml")


def record(stage: str, proof: str) -> None:
    """Write the stage's VERSION, the digest of its code, and the proof; the file's header and the others stay."""
    text = FILE.read_text("utf-8")
    header = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
    code, module = SourceCode(ROOT), stage_modules(ROOT / "dvc.yaml")[stage]
    entries: dict[str, Any] = yaml.safe_load(text)
    entries[stage] = {
        "version": code.declared(module, "VERSION"),
        "code": code.digest(module),
        "proof": proof,
    }
    FILE.write_text(header + yaml.safe_dump(entries, sort_keys=False, width=1000, allow_unicode=True), "utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.unlisted_code", description=__doc__)
    parser.add_argument("stage", choices=sorted(VERSION_ALONE))
    parser.add_argument("proof")
    options = parser.parse_args()
    record(options.stage, options.proof)
