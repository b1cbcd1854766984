"""Where the CPU time of `clean` goes: one process, sampled each millisecond of CPU time, by part and by function.

    python -m benchmarks.cleaning_profile CORPUS.jsonl [FLAG OF dataprep.clean...]

A sample gives the CPU time since the last one to the innermost function that belongs to a part, so a library called by
a part counts as that part. (cProfile would charge langdetect's many small calls about twice.)
"""

import re
import signal
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType

from pipelines.command import StageSpec
from pipelines.stage import run_command

_SAMPLE_SECONDS = 0.001
START = "start-up: imports, command line"
# A function is of the first part whose pattern is found in `file:function`.
_PARTS = (
    ("language: loading profiles", r"/langdetect_profiles\.py|/langdetect/.*:(?:load_json_profile|add_profile)"),
    ("language", r"/langdetect/|/dataprep/languages/|/resiliparse/|/lingua/|/fasttext/"),
    ("token floor", r"/token_floor\.py|/dataprep/text/bpe\.py"),
    ("repair and other edits", r"/ftfy/|/cleaning/(?:edits|repair|mojibake|seed_edits|masking)\.py"),
    ("other rules", r"/dataprep/cleaning/"),
    (
        "reading",
        r"/pipelines/(?:documents|jsonl|store)\.py:_?(?:open|read|ingest|parse|judge|lines|batches|count)|identity",
    ),
    ("writing", r"/pipelines/(?:documents|columns|jsonl|outputs|store|run|manifest)\.py"),
    (START, r"importlib|/tyro/|/pydantic/|:<module>|/pipelines/(?:command|config|presets|fingerprint)\.py"),
)


class Profile:
    """CPU seconds by part and by function."""

    def __init__(self) -> None:
        self.parts = defaultdict[str, float](float)
        self.functions = defaultdict[str, float](float)
        self._part_of: dict[CodeType, str | None] = {}
        self._last = 0.0

    def sample(self, _signal: int, frame: FrameType | None) -> None:
        """Charge what has passed to the running function; the first time, to the start."""
        now = time.process_time()
        seconds, self._last = now - self._last, now
        if frame:
            self.functions[_name(frame.f_code)] += seconds
        part = None
        while frame and part is None:
            part, frame = self._part(frame.f_code), frame.f_back
        self.parts[part or "the rest"] += seconds

    def _part(self, code: CodeType) -> str | None:
        if code not in self._part_of:
            name = f"{code.co_filename}:{code.co_name}"
            self._part_of[code] = next((part for part, pattern in _PARTS if re.search(pattern, name)), None)
        return self._part_of[code]


def _name(code: CodeType) -> str:
    path = code.co_filename
    for root in (sysconfig.get_path("purelib"), sysconfig.get_path("stdlib"), str(Path.cwd())):
        path = path.removeprefix(f"{root}/")
    return f"{path}: {code.co_qualname}"


def profile(corpus: Path, flags: list[str]) -> Profile:
    """Run the stage on a corpus in this process."""
    found = Profile()
    with tempfile.TemporaryDirectory() as folder:
        command = [str(corpus), f"{folder}/kept.jsonl", "--workers", "1", "--log-level", "error", *flags]
        signal.signal(signal.SIGPROF, found.sample)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_SECONDS, _SAMPLE_SECONDS)
        try:
            status = run_command(StageSpec.load("dataprep.clean"), command)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    if status:
        sys.exit(status)
    return found


def main() -> None:
    """Print both tables."""
    found = profile(Path(sys.argv[1]), sys.argv[2:])
    total = sum(found.parts.values())
    for heading, seconds, rows in (("part", found.parts, None), ("function", found.functions, 12)):
        print(f"| {heading} | CPU seconds | share |\n| --- | --- | --- |")
        for name, spent in sorted(seconds.items(), key=lambda item: -item[1])[:rows]:
            print(f"| {name} | {spent:.2f} | {spent / total:.1%} |")
        print()


if __name__ == "__main__":
    main()
