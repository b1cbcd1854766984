"""What all cases share: where they work, what their chances follow from, and when the time is over."""

import random
import sys
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from benchmarks.faults.project import Project


@dataclass
class Campaign:
    """One run of the campaign."""

    work: Path
    seed: int = 0
    kills: int = 500
    inputs: int = 1000
    """Hostile files."""
    documents: tuple[int, ...] = (5_000, 20_000, 80_000)
    """Sizes of the corpora whose memory is measured."""
    minutes: float = 0.0
    """No new run is begun after so many; 0 for no limit."""
    quiet: bool = False
    started: float = field(default_factory=time.monotonic)

    @cached_property
    def project(self) -> Project:
        """The project, whose undisturbed runs all cases share."""
        return Project(self.work / "project", self.seed)

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return bool(self.minutes) and time.monotonic() - self.started > 60 * self.minutes

    def chance(self, name: str) -> random.Random:
        """The random numbers of one run: always the same for the same seed and name."""
        return random.Random(f"{self.seed}/{name}")

    def say(self, line: str) -> None:
        """Report progress on standard error."""
        if not self.quiet:
            print(f"[{time.monotonic() - self.started:6.0f} s] {line}", file=sys.stderr, flush=True)
