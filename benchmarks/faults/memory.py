"""The memory of the data stages at several sizes of the corpus: all their processes together at the worst moment.

Streams, so it must not follow the size of the corpus: between the last two sizes it may grow by half of the added text.
"""

import sys

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.project import Project
from benchmarks.faults.table import Row
from benchmarks.processes import CommandError, measure

GROWTH = 0.5
"""Bytes of memory for each further byte of text that are too many."""
WITHOUT = ("urls", "download", "glue_download", "glue_tokenize mrpc")
"""Stages whose input is not the documents."""


def memory(campaign: Campaign) -> Row:
    """The peak of each data stage at 5,000, 20,000 and 80,000 documents."""
    row = Row("memory")
    figures: dict[str, list[float]] = {}
    texts: list[float] = []
    for number in campaign.documents:
        project = Project(campaign.work / f"project-{number}", campaign.seed, number)
        jobs = project.data_jobs()
        texts.append(sum(file.stat().st_size for file in (project.folder / "inputs/documents").iterdir()) / 2**20)
        for job in jobs:
            if campaign.late:
                return row
            flags = ["--workers", "2", "--memory-budget", "500MB"]
            try:
                usage = measure(["env", "-C", str(project.folder), sys.executable, *job.words, *flags])
            except CommandError as error:
                row.wrong.append(f"{job.name}, {number} documents: {error}")
                return row
            row.runs += 1
            if job.name not in WITHOUT:
                figures.setdefault(job.name, []).append(usage.peak_mib)
        campaign.say(f"memory: {number} documents")
    print(f"\n| MiB at so many documents | {' | '.join(f'{number:,}' for number in campaign.documents)} |")
    print(f"| --- |{' --- |' * len(campaign.documents)}")
    for name, peaks in {"(the text)": texts, **figures}.items():
        print(f"| {name} | {' | '.join(f'{peak:.0f}' for peak in peaks)} |")
    for name, peaks in figures.items():
        if peaks[-1] - peaks[-2] > GROWTH * (texts[-1] - texts[-2]):
            row.wrong.append(f"{name}: {peaks[-2]:.0f} MiB, then {peaks[-1]:.0f} MiB with {texts[-1]:.0f} MiB of text")
    return row
