"""What was wrong in the scripts that this replaces (Megatron's tools/openwebtext), one test for each.

The numbers are those of the table of defects that the project started from.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dataprep.dedup.banding import Banding
from dataprep.dedup.shingles import Shingle, distinct_shingles
from dataprep.find_duplicates import FindDuplicatesConfig, choose_bands
from dataprep.group_duplicates import GroupDuplicatesConfig
from dataprep.text.folding import raw_texts
from tests.dataprep.corpora import digests
from tests.dataprep.dedup.chain import (
    changed,
    deduplicate,
    families,
    random_text,
    read_lines,
    read_rows,
    stage,
    urls,
    write_texts,
)
from tests.nightly import nightly_but

ROOT = Path(__file__).parents[3]
STATUS = Path("/proc/self/status")


def run_alone(code: str, *arguments: object, **environment: str) -> str:
    """A command in a process of its own, after some code; what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    return done.stdout


def test_15_the_last_shingle_counts_and_a_text_of_one_shingle_has_it(tmp_path: Path) -> None:
    sets = distinct_shingles(raw_texts(["12345", "123456", "123457"]), Shingle("char", 5))
    assert [len(sets.of(number)) for number in range(3)] == [1, 2, 2]
    documents = write_texts(tmp_path / "d.jsonl", ["12345678a", "12345678b", "vwxyz", "vwxyz."])
    assert stage("find_duplicates", documents, tmp_path / "p", "--shingle", "char:5", "--threshold", 0.5) == 0
    found = {(row["row_a"], row["row_b"]): row["jaccard"] for row in read_rows(tmp_path / "p")}
    assert found == {(0, 1): 4 / 6, (2, 3): 1 / 2}  # Megatron's script says 1.0, and nothing


@pytest.mark.skipif(not STATUS.exists(), reason="the peak memory of a process is read from Linux's /proc")
@pytest.mark.parametrize(
    ("few", "many", "words", "least_mib"), nightly_but([(150, 1_500, 9_000, 88), (2_000, 12_000, 12, 70)], 1)
)
def test_16_memory_holds_no_texts_and_no_bins_and_the_work_is_cut_finer_than_into_bands(
    tmp_path: Path, few: int, many: int, words: int, least_mib: int
) -> None:
    """`least_mib`: how much more memory more documents would take, were their texts or their bins held."""
    code = (
        "import pathlib, runpy\n"
        "from pipelines.run import StageRun\n"
        "plain = StageRun.map\n"
        "jobs = {}\n"
        "def counted(run, function, parts, *arguments, **options):\n"
        "    jobs[function.__name__] = len(parts)\n"
        "    return plain(run, function, parts, *arguments, **options)\n"
        "StageRun.map = counted\n"
        "try:\n    runpy.run_module('dataprep.find_duplicates', run_name='__main__')\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "peak = pathlib.Path('/proc/self/status').read_text().partition('VmHWM:')[2].split()[0]\n"
        "print(peak, jobs['find_bucket_pairs'])"
    )
    options = ("--workers", 1, "--memory-budget", "1MB", "--log-level", "error")
    peaks: list[int] = []
    jobs = 0
    for count in (few, many):
        texts = (" ".join(f"{number}x{word}" for word in range(words)) for number in range(count))
        documents = write_texts(tmp_path / f"{count}.jsonl", texts)
        peak, jobs = map(int, run_alone(code, documents, tmp_path / f"pairs-{count}", *options).split())
        peaks.append(peak)
    assert (peaks[1] - peaks[0]) / 1024 < least_mib / 2  # allocators differ by some 20 MiB from run to run
    assert words > 12 or jobs > 2 * 20  # bands


def test_17_mixed_buckets_lose_no_pair_and_no_hash_seed_changes_a_byte(tmp_path: Path) -> None:
    # Every bucket holds documents of several families: they share a long preface.
    generator = random.Random(9)
    preface, originals = random_text(generator, 60), [random_text(generator) for _ in range(6)]
    copies = [preface + changed(original, generator, 0.015 + 0.01 * n) for n in range(6) for original in originals]
    documents = write_texts(tmp_path / "d.jsonl", map(" ".join, copies))
    found: list[dict[str, str]] = []
    for seed in ("1", "2"):
        code = "from dataprep import find_duplicates as stage; stage.stage_main('dataprep.find_duplicates')"
        run_alone(code, documents, tmp_path / seed, "--bands", 64, "--rows", 1, "--workers", 1, PYTHONHASHSEED=seed)
        found.append(digests(tmp_path / seed))
    assert found[0] == found[1]
    texts = [row["text"] for row in read_lines(documents)]
    expected = {(a, b) for b in range(len(texts)) for a in range(b) if word_jaccard(texts[a], texts[b]) >= 0.7}
    assert {(row["row_a"], row["row_b"]) for row in read_rows(tmp_path / "1")} == expected
    assert len(expected) > 30


def word_jaccard(one: str, other: str) -> float:
    a, b = (shingle_set(text) for text in (one, other))
    return len(a & b) / len(a | b)


def shingle_set(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + 5]) for at in range(len(words) - 4)}


def test_18_two_texts_with_the_same_id_are_two_documents(tmp_path: Path) -> None:
    one, other = families(3, originals=2, copies=0)
    rows = [("same", one), ("same", other), ("else", f"{one} and more")]
    documents = tmp_path / "d.jsonl"
    documents.write_text("".join(json.dumps({"url": url, "text": text}) + "\n" for url, text in rows))
    kept = deduplicate(documents, tmp_path / "run", group=["--survivor", "first"])
    assert [(row["url"], row["text"]) for row in kept] == rows[:2]


def test_19_by_default_97_percent_of_the_pairs_at_the_threshold_that_groups_are_found(tmp_path: Path) -> None:
    theirs = Banding(10, 10)
    assert [round(theirs.probability(at), 3) for at in (0.5, 0.7, 0.8, 0.9)] == [0.01, 0.249, 0.679, 0.986]
    threshold = GroupDuplicatesConfig().threshold
    texts: list[str] = []
    for pair in range(400):
        words = [f"{pair}x{number}" for number in range(200)]
        other = [*words[:85], *(f"new{pair}x{number}" for number in range(30)), *words[115:]]  # 162 of 230 shingles
        texts += [" ".join(words), " ".join(other)]
    assert threshold <= word_jaccard(*texts[:2]) < threshold + 0.01
    documents = write_texts(tmp_path / "d.jsonl", texts)
    kept = deduplicate(documents, tmp_path / "run")
    found = {(row["row_a"], row["row_b"]) for row in read_rows(tmp_path / "run" / "pairs")}
    assert found <= {(number, number + 1) for number in range(0, 800, 2)}
    assert len(found) >= 0.97 * 400 - 10  # three standard deviations of so many pairs
    assert len(kept) == 800 - len(found)
    stats = json.loads((tmp_path / "run" / "find.json").read_text())
    assert stats["expected_recall"] == pytest.approx(Banding(stats["bands"], stats["rows"]).probability(threshold))
    assert stats["expected_recall"] >= 0.97


@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.8, 0.9])
def test_19_so_they_are_at_any_other_threshold(threshold: float) -> None:
    config = FindDuplicatesConfig(threshold=threshold)
    assert choose_bands(config).probability(threshold) >= 0.97


def test_20_texts_that_share_their_words_but_no_sentence_are_no_duplicates_by_default(tmp_path: Path) -> None:
    generator = random.Random(4)
    words = random_text(generator, 30)
    texts = [" ".join(generator.choices(words, k=400)) for _ in range(12)]
    documents = write_texts(tmp_path / "d.jsonl", texts)
    assert stage("find_duplicates", documents, tmp_path / "words", "--threshold", 0.5) == 0
    assert read_rows(tmp_path / "words") == []
    assert stage("find_duplicates", documents, tmp_path / "chars", "--threshold", 0.3, "--shingle", "char:5") == 0
    assert len(read_rows(tmp_path / "chars")) > 30  # which is what Megatron's script goes by


def test_21_the_same_copy_survives_under_every_hash_seed(tmp_path: Path) -> None:
    documents = write_texts(tmp_path / "d.jsonl", families(5, originals=8, copies=5))
    assert stage("find_duplicates", documents, tmp_path / "pairs") == 0
    code = "from dataprep import group_duplicates as stage; stage.stage_main('dataprep.group_duplicates')"
    for seed in ("0", "1", "2"):
        run_alone(code, tmp_path / "pairs", tmp_path / seed, "--workers", 1, PYTHONHASHSEED=seed)
    assert digests(tmp_path / "0") == digests(tmp_path / "1") == digests(tmp_path / "2")


def test_22_in_a_chain_nothing_unlike_its_survivor_is_removed(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(1200)]
    texts = [" ".join(words[8 * number : 8 * number + 100]) for number in range(120)]
    documents = write_texts(tmp_path / "d.jsonl", texts)
    for rule in ("longest", "first", "earliest_url"):
        kept = deduplicate(documents, tmp_path / rule, group=["--survivor", rule])
        removed = [row for row in read_rows(tmp_path / rule / "groups") if not row["is_survivor"]]
        assert len(removed) == 120 - len(kept) > 50
        for row in removed:
            exact = word_jaccard(texts[row["row"]], texts[row["survivor_row"]])
            assert row["jaccard"] == pytest.approx(exact)
            assert exact >= 0.7


def test_23_what_find_calls_documents_by_is_what_remove_removes_them_by(tmp_path: Path) -> None:
    generator = random.Random(6)
    text = random_text(generator, 60)
    rows = [{"uid": name, "text": " ".join(changed(text, generator, rate))} for name, rate in (("a", 0), ("b", 0.01))]
    (tmp_path / "d.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pairs, groups, kept = (tmp_path / f"{name}.json" for name in ("pairs", "groups", "kept"))
    for name, words in (
        ("find_duplicates", ["--inputs", tmp_path / "d.json", "uid", "--output", pairs]),
        ("group_duplicates", [pairs, groups]),
        ("remove_duplicates", [groups, tmp_path / "d.json", kept]),
    ):
        run_alone(f"import runpy; runpy.run_module('dataprep.{name}', run_name='__main__')", *words)
    assert [row["uid"] for row in read_lines(kept)] == ["a"]


def test_27_no_compiler_is_needed_and_the_bytes_are_the_same_without_one(tmp_path: Path) -> None:
    documents = write_texts(tmp_path / "d.jsonl", [*families(7, originals=5, copies=3), "Ünïcode  ΤΈΧΤ 日本語"])
    run = "from dataprep import find_duplicates as stage; stage.stage_main('dataprep.find_duplicates')"
    never_built = f"import sys; sys.modules['dataprep.native._kernel'] = None; {run}"
    for name, code in (("native", run), ("numpy", never_built)):
        run_alone(code, documents, tmp_path / name, "--workers", 1, "--stats", tmp_path / f"{name}.json")
    assert digests(tmp_path / "native") == digests(tmp_path / "numpy")
    assert json.loads((tmp_path / "numpy.provenance.json").read_text())["kernel"] == "numpy"
    assert urls(read_lines(documents))
