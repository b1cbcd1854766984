"""Incremental deduplication: a new crawl against the fingerprints of old ones."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipelines import store
from tests.dataprep.dedup.chain import deduplicate, families, read_lines, read_rows, stage, urls, write_texts


def save(documents: Path, target: Path, *options: object) -> Path:
    pairs = target.with_name(f"{target.name}-pairs")
    assert stage("find_duplicates", documents, pairs, "--save-fingerprints", target, *options) == 0
    return target


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two old crawls and a new one whose families of near-copies are spread over all three.

    One family is large enough for large buckets and large clusters in each.
    """
    folder = tmp_path_factory.mktemp("corpora")
    texts = [*families(1, originals=25, copies=8), *families(2, originals=1, copies=140), "", "...", "One word"]
    for number, name in enumerate(("a", "b", "new")):
        own = [*families(10 + number, originals=3, copies=3), "The same  text", "the same text"]
        write_texts(folder / f"{name}.jsonl", [*texts[number::3], *own], name)
    for name in ("a", "b"):
        save(folder / f"{name}.jsonl", folder / f"fingerprints-{name}")
    lines = [line for name in ("a", "b", "new") for line in store.read_lines(folder / f"{name}.jsonl")]
    (folder / "all.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return folder


def loading(folder: Path, *names: str) -> list[str]:
    return ["--load-fingerprints", *(str(folder / f"fingerprints-{name}") for name in names)]


def test_joint_removes_exactly_the_new_documents_that_one_run_over_all_removes(corpora: Path, tmp_path: Path) -> None:
    together = deduplicate(corpora / "all.jsonl", tmp_path / "all", group=["--survivor", "first"])
    expected = [url for url in urls(together) if "//new." in url]
    find = ["--against", "joint", *loading(corpora, "b", "a")]  # in any order
    kept = deduplicate(corpora / "new.jsonl", tmp_path / "new", find=find, group=["--survivor", "first"])
    assert urls(kept) == expected
    assert 5 < len(expected) < len(read_lines(corpora / "new.jsonl")) - 50


def test_against_deduplicated_old_documents_both_is_the_same_as_one_run_over_all(corpora: Path, tmp_path: Path) -> None:
    first = ["--survivor", "first"]
    old = write_lines(tmp_path / "old.jsonl", (corpora / "a.jsonl", corpora / "b.jsonl"))
    deduplicate(old, tmp_path / "old", group=first)
    everything = write_lines(tmp_path / "all.jsonl", (tmp_path / "old" / "kept.jsonl", corpora / "new.jsonl"))
    expected = [url for url in urls(deduplicate(everything, tmp_path / "all", group=first)) if "//new." in url]
    saved = save(tmp_path / "old" / "kept.jsonl", tmp_path / "saved")
    find = ["--load-fingerprints", saved]
    assert urls(deduplicate(corpora / "new.jsonl", tmp_path / "new", find=find, group=first)) == expected


def write_lines(path: Path, sources: Sequence[Path]) -> Path:
    path.write_bytes(b"".join(line + b"\n" for source in sources for line in store.read_lines(source)))
    return path


def test_against_old_ones_only_removes_what_has_an_old_pair_and_nothing_else(corpora: Path, tmp_path: Path) -> None:
    loaded = loading(corpora, "a", "b")
    both = deduplicate(corpora / "new.jsonl", tmp_path / "both", find=[*loaded, "--against", "both"])
    old = deduplicate(corpora / "new.jsonl", tmp_path / "old", find=[*loaded, "--against", "old"])
    with_old = {row["url_b"] for row in read_rows(tmp_path / "both" / "pairs") if row["corpus_a"]}
    new = read_lines(corpora / "new.jsonl")
    like_old = {row["text"] for row in new if row["url"] in with_old}
    assert urls(old) == [row["url"] for row in new if row["text"] not in like_old]
    assert {*urls(both)} < {*urls(old)}
    pairs = read_rows(tmp_path / "old" / "pairs")
    assert not any(row["corpus_b"] for row in pairs)
    assert {row["kind"] for row in pairs if not row["corpus_a"]} <= {"twin"}


def test_new_copies_of_each_other_stay_when_only_old_ones_count_and_go_together_with_an_old_one(tmp_path: Path) -> None:
    original, other = families(3, originals=2, copies=0)
    save(write_texts(tmp_path / "old.jsonl", [original]), tmp_path / "saved")
    near = original.replace(original.split()[60], "changed")
    documents = write_texts(tmp_path / "new.jsonl", [near, near.upper(), other, other.upper(), original])
    find = ["--load-fingerprints", tmp_path / "saved", "--against", "old"]
    kept = deduplicate(documents, tmp_path / "run", find=find)
    assert [row["text"] for row in kept] == [other, other.upper()]
    groups = {row["row"]: row for row in read_rows(tmp_path / "run" / "groups") if not row["corpus"]}
    assert {row: (groups[row]["kind"], groups[row]["survivor_row"]) for row in groups} == {
        0: ("near", 0),
        1: ("near", 0),
        4: ("exact", 0),
    }
    assert groups[0]["jaccard"] == groups[1]["jaccard"] < 1


@pytest.mark.parametrize("survivor", ["longest", "first", "earliest_url"])
def test_an_old_document_survives_under_every_rule_and_the_evidence_names_it(tmp_path: Path, survivor: str) -> None:
    text = families(4, originals=1, copies=0)[0]
    save(write_texts(tmp_path / "old.jsonl", [text], "zoo"), tmp_path / "saved")
    documents = write_texts(tmp_path / "new.jsonl", [f"{text} and more", text], "mill")
    find = ["--load-fingerprints", tmp_path / "saved"]
    assert deduplicate(documents, tmp_path / "run", find=find, group=["--survivor", survivor]) == []
    groups = read_rows(tmp_path / "run" / "groups")
    saved = (tmp_path / "saved").as_posix()
    assert [(row["corpus"], row["row"], row["kind"]) for row in groups] == [
        (saved, 0, "survivor"),
        ("", 0, "near"),
        ("", 1, "exact"),
    ]
    assert {(row["survivor_corpus"], row["survivor_url"]) for row in groups} == {(saved, "http://zoo.test/000000")}
    rejected = read_lines(tmp_path / "run" / "kept.rejected.jsonl")
    assert rejected[1]["value"] == f"survivor=http://zoo.test/000000 in {saved} jaccard=1"


def test_shingles_of_old_documents_are_read_not_made_so_their_texts_may_be_gone(corpora: Path, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    text = families(5, originals=1, copies=0)[0]
    documents = write_texts(tmp_path / "old.jsonl", [text])
    save(documents, saved)
    documents.unlink()
    shutil.rmtree(tmp_path / "saved-pairs")
    near = write_texts(tmp_path / "new.jsonl", [f"{text} and more"])
    assert stage("find_duplicates", near, tmp_path / "pairs", "--load-fingerprints", saved) == 0
    ((row),) = read_rows(tmp_path / "pairs")
    assert row["jaccard"] == 116 / 118
    assert (row["start_a"], row["length_a"], row["source_a"]) == (text[:80], len(text), "old.jsonl")


def test_a_profile_names_one_folder_of_fingerprints_or_a_folder_of_such_folders(corpora: Path, tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    for name in ("a", "b"):
        shutil.copytree(corpora / f"fingerprints-{name}", parent / name)
    new = corpora / "new.jsonl"
    for folder in (parent, parent / "b"):
        assert stage("find_duplicates", new, tmp_path / "pairs", "--fingerprints", folder, "--overwrite") == 0
        found = {row["corpus_a"] for row in read_rows(tmp_path / "pairs")} - {""}
        expected = {parent / "a", parent / "b"} if folder == parent else {folder}
        assert found == {path.as_posix() for path in expected}


def test_fingerprints_and_pairs_have_the_same_bytes_for_any_workers_order_and_memory(
    corpora: Path, tmp_path: Path
) -> None:
    digests: list[dict[str, str]] = []
    for run, options in enumerate((["--workers", "1"], ["--workers", "2", "--memory-budget", "1KB"])):
        folder = tmp_path / str(run)
        save(corpora / "a.jsonl", folder / "saved", *options)
        loaded = loading(corpora, *("ab" if run else "ba"))
        new = corpora / "new.jsonl"
        assert stage("find_duplicates", new, folder / "pairs", *loaded, "--against", "joint", *options) == 0
        digests.append({str(file.relative_to(folder)): store.sha256(file) for file in store.list_files(folder)})
    assert digests[0] == digests[1]


# ------------------------------------------------------------------------------------------- refused


def refusal(capsys: pytest.CaptureFixture[str], documents: Path, *options: object) -> tuple[int, str]:
    capsys.readouterr()
    status = stage("find_duplicates", documents, documents.with_name("refused"), *options)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert not documents.with_name("refused").exists()
    return status, error


def test_fingerprints_of_other_parameters_are_refused_and_each_difference_is_named(
    corpora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = write_texts(tmp_path / "new.jsonl", ["some text"])
    flags = ["--shingle", "char:5", "--num-perm", "64", "--seed", "7", "--no-normalise"]
    status, error = refusal(capsys, documents, *loading(corpora, "a"), *flags)
    assert status == 2
    assert "fingerprints-a: the fingerprints in part-00000.parquet have other parameters: " in error
    for difference in ("shingle word:5 (this run: char:5)", "num_perm 128 (this run: 64)", "seed 1234 (this run: 7)"):
        assert difference in error
    assert "normalise True (this run: False)" in error
    assert "scheme" not in error


def test_a_shard_of_other_parameters_among_right_ones_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        write_texts(tmp_path / "old" / f"{name}.jsonl", ["some text"])
    saved, other = (save(tmp_path / "old", tmp_path / f"seed-{seed}", "--seed", seed) for seed in (1234, 7))
    name = "part-00001.parquet"
    shutil.copy(other / name, saved / name)
    declare(saved / name)
    documents = write_texts(tmp_path / "new.jsonl", ["some text"])
    status, error = refusal(capsys, documents, "--load-fingerprints", saved)
    assert status == 2
    assert f"{saved}: the fingerprints in {name} have other parameters: seed 7 (this run: 1234)" in error


def declare(file: Path) -> None:
    """Write into the manifest beside a file what the file is now."""
    manifest = json.loads((file.parent / "manifest.json").read_text())
    manifest["files"][file.name] |= {"bytes": file.stat().st_size, "sha256": store.sha256(file)}
    (file.parent / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("damage", ["a byte", "cut", "no manifest", "a file missing", "a file more"])
def test_damaged_fingerprints_are_one_line(
    corpora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    saved = tmp_path / "saved"
    shutil.copytree(corpora / "fingerprints-a", saved)
    file = saved / "part-00000.parquet"
    data = file.read_bytes()
    middle = len(data) // 2
    match damage:
        case "a byte":
            file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        case "cut":
            file.write_bytes(data[:middle])
        case "no manifest":
            (saved / "manifest.json").unlink()
        case "a file missing":
            file.unlink()
        case _:
            shutil.copy(file, saved / "part-00001.parquet")
    documents = write_texts(tmp_path / "new.jsonl", ["some text"])
    status, error = refusal(capsys, documents, "--load-fingerprints", saved)
    assert status == 1
    assert str(saved) in error


def test_what_is_no_folder_of_fingerprints_is_refused(
    corpora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = write_texts(tmp_path / "new.jsonl", ["some text"])
    pickle = tmp_path / "old.pickle"
    pickle.write_bytes(b"\x80\x04.")
    assert "no pickle is read" in refusal(capsys, documents, "--load-fingerprints", pickle)[1]
    pairs = corpora / "fingerprints-a-pairs"
    assert "not a folder of fingerprints" in refusal(capsys, documents, "--load-fingerprints", pairs)[1]
    assert "no such file or folder" in refusal(capsys, documents, "--load-fingerprints", tmp_path / "none")[1]
    assert "listed twice" in refusal(capsys, documents, *loading(corpora, "a", "a"))[1]
    assert "there are no old documents" in refusal(capsys, documents, "--against", "old")[1]


def test_fingerprints_of_another_unicode_are_used_with_a_warning(
    corpora: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "saved"
    shutil.copytree(corpora / "fingerprints-a", saved)
    file = saved / "part-00000.parquet"
    table = pq.read_table(file)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"millrace.unicode": b"3.0.0"}), file)
    declare(file)
    documents = write_texts(tmp_path / "new.jsonl", ["some text"])
    options = ["--load-fingerprints", saved, "--log-level", "warning"]
    assert stage("find_duplicates", documents, tmp_path / "pairs", *options) == 0
    assert "made with Unicode 3.0.0" in capsys.readouterr().err
