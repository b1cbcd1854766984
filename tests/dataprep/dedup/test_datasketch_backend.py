"""datasketch as a second opinion: the same candidates, the same groups."""

import random
from pathlib import Path

import pytest

from dataprep.dedup import datasketch_backend
from pipelines import store
from tests.dataprep.dedup.chain import changed, deduplicate, families, random_text, read_rows, stage, urls, write_texts


def groups_of(folder: Path) -> dict[str, str]:
    return {row["url"]: row["survivor_url"] for row in read_rows(folder / "groups")}


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--shingle", "char:5"),
        ("--bands", "8", "--rows", "6", "--threshold", "0.8"),
        ("--bands", "1", "--rows", "5", "--threshold", "0.8"),
    ],
)
def test_our_buckets_propose_what_datasketchs_do(tmp_path: Path, options: tuple[str, ...]) -> None:
    texts = [*families(1, originals=25, copies=4), "", "...", "One word", "one word"]
    documents = write_texts(tmp_path / "d.jsonl", texts)
    ours = deduplicate(documents, tmp_path / "ours", find=options, group=options[4:])
    theirs = deduplicate(documents, tmp_path / "theirs", find=[*options, "--backend", "datasketch"], group=options[4:])
    assert urls(ours) == urls(theirs)
    assert 25 < len(ours) < 100
    for file in store.list_files(tmp_path / "ours" / "pairs"):
        assert store.sha256(file) == store.sha256(
            tmp_path / "theirs" / "pairs" / file.relative_to(tmp_path / "ours" / "pairs")
        )


def test_large_buckets_which_datasketch_lists_pair_by_pair_end_in_the_same_groups(tmp_path: Path) -> None:
    generator = random.Random(2)
    originals = [random_text(generator) for _ in range(2)]
    texts = [" ".join(changed(text, generator, 0.015)) for text in originals for _ in range(80)]
    documents = write_texts(tmp_path / "d.jsonl", texts)
    deduplicate(documents, tmp_path / "ours")
    deduplicate(documents, tmp_path / "theirs", find=["--backend", "datasketch"])
    assert groups_of(tmp_path / "ours") == groups_of(tmp_path / "theirs")
    assert len(read_rows(tmp_path / "ours" / "pairs")) < len(read_rows(tmp_path / "theirs" / "pairs"))


def test_it_compares_with_old_documents_too(tmp_path: Path) -> None:
    texts = families(3, originals=10, copies=4)
    old, new = write_texts(tmp_path / "old.jsonl", texts[:25], "old"), write_texts(tmp_path / "new.jsonl", texts[25:])
    saved = tmp_path / "saved"
    assert stage("find_duplicates", old, tmp_path / "pairs", "--save-fingerprints", saved) == 0
    find = ["--load-fingerprints", saved]
    ours = deduplicate(new, tmp_path / "ours", find=find)
    assert urls(ours) == urls(deduplicate(new, tmp_path / "theirs", find=[*find, "--backend", "datasketch"]))


def test_a_large_corpus_and_too_many_pairs_are_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = write_texts(tmp_path / "d.jsonl", families(4, originals=1, copies=20))
    arguments = [documents, tmp_path / "pairs", "--backend", "datasketch"]
    monkeypatch.setattr(datasketch_backend, "MAX_PAIRS", 10)
    assert stage("find_duplicates", *arguments) == 1
    assert "more than 10 pairs in its buckets; --backend millrace" in capsys.readouterr().err
    monkeypatch.setattr(datasketch_backend, "MAX_DOCUMENTS", 20)
    assert stage("find_duplicates", *arguments) == 2
    error = capsys.readouterr().err
    assert "keeps all documents in the memory of one process and takes at most 20, not 21" in error
    assert error.count("\n") == 1
