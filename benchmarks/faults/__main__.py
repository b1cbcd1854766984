"""A campaign against the project: random kills, failing disks, hostile files and sites; nothing may be lost.

    python -m benchmarks.faults [WORK] [--seed 0] [--kills 500] [--inputs 1000] [--minutes 30] [--only CASE...]

Runs the stages as a user does, disturbs them, and compares with undisturbed runs. Prints a table; exits with 1 if
anything was lost, any traceback was shown, any byte differed or any command ended otherwise than documented. The same
seed draws the same strikes, failing calls and hostile files. Linux only; cases that need root say so and are skipped.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.faults import errors, hostile, kills, memory, places, web
from benchmarks.faults.campaign import Campaign
from benchmarks.faults.table import Row, problems, table

CASES: dict[str, Callable[[Campaign], Row]] = {
    "stages": kills.kill_stages,
    "training": kills.kill_training,
    "later": kills.kill_later_stages,
    "errno": errors.failing_calls,
    "twice": places.two_at_once,
    "moved": places.moved_project,
    "links": places.without_hard_links,
    "names": places.case_insensitive_names,
    "read-only": places.read_only_remount,
    "full": places.full_disk,
    "files": hostile.hostile_files,
    "web": web.hostile_web,
    "memory": memory.memory,
}


def run(campaign: Campaign, names: Sequence[str]) -> list[Row]:
    """Run these cases, or all of them."""
    rows: list[Row] = []
    for name in names or CASES:
        campaign.say(f"{name}: {(CASES[name].__doc__ or '').splitlines()[0]}")
        rows.append(CASES[name](campaign))
    return rows


def main() -> None:
    """Parse the command line, run the cases, print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", nargs="?", type=Path, help="folder to work in; a temporary one by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=500, help="of data stages and training together")
    parser.add_argument("--inputs", type=int, default=1000, help="hostile files")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin nothing new after so many; 0: no limit")
    parser.add_argument("--only", nargs="+", choices=[*CASES], default=[], metavar="CASE", help=", ".join(CASES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millrace-faults-") as folder:
        campaign = Campaign(
            (arguments.work or Path(folder)).resolve(),
            seed=arguments.seed,
            kills=arguments.kills,
            inputs=arguments.inputs,
            minutes=arguments.minutes,
        )
        rows = run(campaign, arguments.only)
    found = problems(rows)
    print(f"seed {campaign.seed}, {(time.monotonic() - campaign.started) / 60:.1f} minutes\n\n{table(rows)}\n")
    print("\n".join(found or ["nothing lost"]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
