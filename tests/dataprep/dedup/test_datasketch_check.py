"""datasketch checks a share of signatures and buckets in each search; a difference names the document."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.dedup import candidates, datasketch_check
from dataprep.dedup.corpus import Corpus
from dataprep.dedup.signatures import Signer
from dataprep.text.folding import Texts
from pipelines import oracle
from tests.dataprep.dedup.chain import changed, families, random_text, stage, write_texts

ROOT = Path(__file__).parents[3]


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Families of near-duplicates, every document of which is checked."""
    monkeypatch.setattr(datasketch_check, "ONE_IN", 1)
    long_text = " ".join(f"word{number}" for number in range(12_000))
    return write_texts(tmp_path / "d.jsonl", [*families(1, originals=20, copies=4), "", "one", "one word", long_text])


def checked(folder: Path) -> dict[str, object]:
    stats = json.loads((folder / "stats.json").read_text())
    assert {"checked_by_datasketch", "different_from_datasketch"}.isdisjoint(stats["totals"])
    return stats["oracles"]["datasketch"]


def find(documents: Path, folder: Path, *options: object) -> int:
    return stage("find_duplicates", documents, folder / "pairs", "--stats", folder / "stats.json", *options)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--shingle", "char:5"),
        ("--bands", 30, "--rows", 4),
        ("--bands", 1, "--rows", 5),  # datasketch itself refuses one band
        ("--threshold", 1.0),  # ... which this makes of all values
        ("--jaccard", "min"),
    ],
)
def test_every_signature_and_every_documents_pairs_are_datasketchs(
    documents: Path, tmp_path: Path, options: tuple[object, ...]
) -> None:
    assert find(documents, tmp_path, *options) == 0
    number = len(documents.read_text().splitlines())
    assert number < checked(tmp_path)["checked"] <= 2 * number
    assert checked(tmp_path) == {"version": "2.0.0", "checked": checked(tmp_path)["checked"], "different": 0}


def test_old_documents_and_large_buckets_are_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasketch_check, "ONE_IN", 1)
    generator = random.Random(2)
    one = random_text(generator)
    texts = [*families(3, originals=10, copies=3), *(" ".join(changed(one, generator, 0.01)) for _ in range(40))]
    old, new = write_texts(tmp_path / "old.jsonl", texts[:35], "old"), write_texts(tmp_path / "new.jsonl", texts[35:])
    assert stage("find_duplicates", old, tmp_path / "old", "--save-fingerprints", tmp_path / "saved") == 0
    for against in ("both", "old", "joint"):
        options = ("--load-fingerprints", tmp_path / "saved", "--against", against, "--overwrite")
        assert find(new, tmp_path, *options) == 0
        assert checked(tmp_path)["different"] == 0


def test_a_wrong_signature_ends_the_search_with_the_document(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = Signer.signatures

    def wrong(self: Signer, texts: Texts) -> np.ndarray:
        return right(self, texts) ^ np.uint32(1)

    monkeypatch.setattr(Signer, "signatures", wrong)
    assert find(documents, tmp_path) == 1
    error = capsys.readouterr().err
    assert "(http://mill.test/000000): its signature is not what datasketch 2.0.0 gives" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "pairs").exists()


@pytest.mark.parametrize("defect", ["missed", "invented"])
def test_wrong_buckets_end_the_search_with_the_document(
    defect: str, documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = candidates.bucket_pairs

    def wrong(*arguments: np.ndarray) -> np.ndarray:
        pairs = right(*arguments)
        return pairs[:0] if defect == "missed" else np.concatenate((pairs, np.array([[0, 80]], np.uint64)))

    monkeypatch.setattr(candidates, "bucket_pairs", wrong)
    assert find(documents, tmp_path) == 1
    assert "the set of its candidate pairs is not what datasketch 2.0.0 gives" in capsys.readouterr().err


def test_another_version_is_named_and_its_differences_are_counted(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oracle, "installed", lambda library: "3.0")
    monkeypatch.setattr(datasketch_check.SignatureCheck, "_is_equal", lambda *arguments: False)
    assert find(documents, tmp_path) == 0
    stats = checked(tmp_path)
    assert stats["version"] == "3.0"
    assert stats["different"] == len(documents.read_text().splitlines())


def test_no_more_documents_are_compared_than_the_limit(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasketch_check, "MAX_DOCUMENTS", 5)
    monkeypatch.setattr(datasketch_check, "GROUP", 2)
    assert find(documents, tmp_path) == 0
    assert checked(tmp_path)["checked"] == len(documents.read_text().splitlines()) + 5


def test_the_limit_takes_documents_of_all_shards_by_the_smallest_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [number.to_bytes(16, "big") for number in range(90)]
    files = [tmp_path / f"part-{shard:05d}.parquet" for shard in range(30)]
    for shard, file in enumerate(files):
        pq.write_table(pa.table({"doc_id": pa.array(ids[shard * 3 : shard * 3 + 3], pa.binary(16))}), file)
    monkeypatch.setattr(datasketch_check, "MAX_DOCUMENTS", 10)
    left_out = np.zeros(90, bool)
    left_out[:15] = True
    chosen = datasketch_check._choose(files, Corpus.of([3] * 30, [], "both"), left_out)
    sampled = [number for number in range(15, 90) if number % 3 < 2]  # the first two of each shard
    expected = sorted(sorted(sampled, key=lambda number: oracle.hash_of(ids[number]))[:10])
    assert chosen == {number: ids[number] for number in expected}
    assert list(chosen) == expected
    assert expected[-1] > 60


def test_datasketch_comes_without_scipys_integrals_and_can_still_choose_bands() -> None:
    script = """
import sys
from dataprep.dedup.datasketch_backend import import_datasketch
library = import_datasketch()
assert "scipy.integrate" not in sys.modules
assert (library.MinHashLSH(threshold=0.7).b, library.MinHashLSH(threshold=0.7).r) == (14, 9)
assert "scipy.integrate" in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_another_datasketch_may_need_more_of_scipy_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "datasketch").mkdir()
    (tmp_path / "datasketch" / "__init__.py").write_text("from scipy.integrate import quad, simpson\n")
    (tmp_path / "datasketch-3.0.dist-info").mkdir()
    (tmp_path / "datasketch-3.0.dist-info" / "METADATA").write_text("Name: datasketch\nVersion: 3.0\n")
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
from dataprep.dedup.datasketch_backend import import_datasketch
assert import_datasketch().simpson([1, 1, 1]) == 2
"""
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
