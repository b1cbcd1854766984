"""Duplicates among the rows of a task, beside a comparison of all rows with all others."""

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dataprep.glue.tasks import TASKS
from pipelines.command import StageSpec
from pipelines.documents import read_rows
from pipelines.stage import run_command
from tests.samples import Data

TEXT = "mill wheel river stone water flour grain miller gate sluice heron reed dawn field horse cart sack bread"
WORDS = TEXT.split()
SPLITS = {"train": "train", "validation": "dev", "test": "test"}


def download(task: str, out: Path, *flags: object) -> dict[str, Any]:
    stats = out.with_suffix(".json")
    words = [] if "--tasks" in flags else [task]
    arguments = [*words, out, "--stats", stats, "--log-level", "error", *flags]
    assert run_command(StageSpec.load("dataprep.glue_download"), [str(argument) for argument in arguments]) == 0
    return json.loads(stats.read_text())["duplicates"][task]


def write_rte(folder: Path, rows: dict[str, list[tuple[str, str]]]) -> Path:
    (folder / "RTE").mkdir(parents=True)
    for split, pairs in rows.items():
        lines = [f"{i}\t{first}\t{second}\tentailment" for i, (first, second) in enumerate(pairs)]
        (folder / "RTE" / f"{SPLITS[split]}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *lines]))
    return folder


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", text.casefold())
    return frozenset(tuple(words[i : i + 3]) for i in range(max(1, len(words) - 2))) if words else frozenset()


def expected(folder: Path, task: str, threshold: float) -> dict[str, dict[str, int]]:
    """Rows of each split with a duplicate in each, by comparing all that share a shingle."""
    texts = TASKS[task].texts
    rows = [
        (split, "\n".join(row[name] for name in texts))
        for split in TASKS[task].published
        for row in read_rows(folder / task / f"{split}.parquet")
    ]
    equal = [" ".join(text.casefold().split()) for _, text in rows]
    sets = [shingles(text) for _, text in rows]
    holders: dict[Any, list[int]] = {}
    for number, some in enumerate(sets):
        for shingle in [*some, equal[number]]:
            holders.setdefault(shingle, []).append(number)
    exact: dict[tuple[int, str], bool] = {}
    for a, b in {pair for some in holders.values() for pair in itertools.permutations(some, 2)}:
        shared, whole = len(sets[a] & sets[b]), len(sets[a] | sets[b])
        if equal[a] == equal[b] or (whole and shared / whole >= threshold):
            place = (a, rows[b][0])
            exact[place] = exact.get(place, False) or equal[a] == equal[b]
    found = {f"{s} in {t}": {"exact": 0, "near": 0} for s in TASKS[task].published for t in TASKS[task].published}
    for (a, split), same in exact.items():
        found[f"{rows[a][0]} in {split}"]["exact" if same else "near"] += 1
    return found


def test_rows_with_a_duplicate_are_counted_as_when_all_are_compared(tmp_path: Path) -> None:
    chance = random.Random(5)

    def sentence() -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(6, 20)))

    made = [(sentence(), sentence()) for _ in range(60)]
    rows: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    for first, second in made:
        for _ in range(chance.randint(1, 4)):
            words = first.split()
            if chance.random() < 0.6:
                words[chance.randrange(len(words))] = "changed"
            rows[chance.choice(list(rows))].append((" ".join(words), second))
    source = write_rte(tmp_path / "glue", rows)
    found = download("rte", tmp_path / "out", "--source", source, "--workers", 1)
    counted = expected(tmp_path / "out", "rte", 0.7)
    assert {name: found[name] for name in counted} == counted
    assert all(sum(each.values()) for each in counted.values())  # or the test would say little
    pairs = pq.read_table(tmp_path / "out/duplicates/rte.parquet")
    assert found["exact_pairs"] + found["near_pairs"] == pairs.num_rows


def test_a_pair_with_its_texts_swapped_is_nearly_the_same_row(tmp_path: Path) -> None:
    one, two = " ".join(WORDS[:9]), " ".join(WORDS[9:])
    source = write_rte(tmp_path / "glue", {"train": [(one, two)], "validation": [(two, one)]})
    found = download("rte", tmp_path / "out", "--source", source, "--workers", 1)
    assert found["validation in train"] == {"exact": 0, "near": 1}


def test_rte_has_the_duplicates_that_a_comparison_of_all_rows_finds(data: Data, tmp_path: Path) -> None:
    found = download("rte", tmp_path / "out", "--source", data.folder / "glue")
    counted = expected(tmp_path / "out", "rte", 0.7)
    assert {name: found[name] for name in counted} == counted
    assert found["validation in train"] == ({"exact": 0, "near": 10} if data.real else {"exact": 1, "near": 2})


def test_what_ax_shares_with_the_train_rows_of_mnli_is_counted_where_both_are_taken(tmp_path: Path) -> None:
    text = " ".join(WORDS)
    for name, lines in {
        "MNLI/train.tsv": [f"{text}\tIt turns.\tneutral", f"{text}\tIt turns.\tneutral", "Oh.\tNo.\tneutral"],
        "MNLI/dev_matched.tsv": ["Oh.\tWell.\tneutral"],
        "MNLI/dev_mismatched.tsv": ["Oh.\tYes.\tneutral"],
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(["sentence1\tsentence2\tgold_label", *lines]))
    (tmp_path / "ax").mkdir()
    (tmp_path / "ax/diagnostic.tsv").write_text(f"index\tsentence1\tsentence2\n0\t{text}\tIt turns.\n1\tA b.\tC d.\n")
    found = download("ax", tmp_path / "out", "--tasks", "mnli", "ax", "--source", tmp_path, "--workers", 1)
    names = {"exact_pairs", "near_pairs", "pairs_with_other_labels", "test in train", "test in test"}
    assert found.keys() == names
    assert found["test in train"] == {"exact": 1, "near": 0}
    (pair,) = pq.read_table(tmp_path / "out/duplicates/ax.parquet").to_pylist()
    assert (pair["split_a"], pair["split_b"], pair["index_b"]) == ("train", "test", 0)
