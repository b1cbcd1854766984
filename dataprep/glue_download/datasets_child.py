"""The cells of TSV files as `datasets` reads them, in a process of its own: it imports much, and reads its environment.

Run: python -m dataprep.glue_download.datasets_child OUTPUT FILE... (each line of OUTPUT: the cells of a row, as JSON)
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pipelines import store
from pipelines.imports import show_pandas

ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "USE_TORCH": "0"}
"""No request, not even for statistics; without torch, whose import takes longer than all else."""


def read_cells(file: Path) -> Iterator[list[str]]:
    """Yield the cells of each row, in which quotes are text."""
    show_pandas()
    import datasets

    names = [str(number) for number in range(file.open("rb").readline().count(b"\t") + 1)]
    rows = datasets.load_dataset(
        "csv",
        data_files=str(file),
        split="train",
        streaming=True,
        sep="\t",
        lineterminator="\n",
        quoting=3,  # csv.QUOTE_NONE
        header=None,
        column_names=names,
        keep_default_na=False,
        features=datasets.Features({name: datasets.Value("string") for name in names}),
    )
    for row in rows:
        yield [row[name] for name in names]


def main(output: Path, files: list[Path]) -> None:
    """Write the rows of all files."""
    with store.create(output, durable=False) as opened:
        for file in files:
            for cells in read_cells(file):
                opened.write(json.dumps(cells).encode() + b"\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(word) for word in sys.argv[2:]])
