"""Looks up single texts in the shards of stages, by the locations that the ledger holds."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np

from pipelines.documents import Row, open_parquet, part_files

Location = tuple[Path, int]
"""A file, and a row of it."""


class Texts:
    """The texts in the outputs of some stages."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        """`folders`: by their place in the folder of the corpus."""
        self._folders = folders

    def has(self, place: str) -> bool:
        """Return whether the output at this place is there."""
        return place in self._folders

    def of(self, rows: Sequence[Row]) -> list[str]:
        """Return the texts of rows of the ledger that have one."""
        return read_texts([(self._file(row["shard"]), row["offset"]) for row in rows])

    def at(self, place: str, rows: Sequence[tuple[int, int]]) -> list[str]:
        """Return the texts at (number of the shard, row) of a stage's documents."""
        files = part_files(self._folders[place])
        return read_texts([(files[shard], row) for shard, row in rows])

    def _file(self, shard: str) -> Path:
        place = next(place for place in sorted(self._folders, key=len, reverse=True) if shard.startswith(f"{place}/"))
        return self._folders[place] / shard.removeprefix(f"{place}/")


def read_texts(locations: Sequence[Location]) -> list[str]:
    """Return the texts at these locations, reading only the row groups that they are in, each once."""
    found: dict[Location, str] = {}
    for file in sorted({file for file, _ in locations}):
        with open_parquet(file) as opened:
            sizes = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
            starts = np.array([0, *accumulate(sizes)])
            wanted = sorted({row for other, row in locations if other == file})
            of_group: dict[int, list[int]] = {}
            for row in wanted:
                of_group.setdefault(int(np.searchsorted(starts, row, side="right")) - 1, []).append(row)
            for group, rows in of_group.items():
                column = opened.read_row_group(group, columns=["text"], use_threads=False).column("text")
                found.update({(file, row): column[row - int(starts[group])].as_py() for row in rows})
    return [found[location] for location in locations]
