"""What is read of a path: kinds by name, in one order, and nothing left out in silence."""

import gzip
import json
from pathlib import Path

import pytest

from dataprep.readers import kinds
from dataprep.readers.kinds import SUFFIXES, find_inputs
from pipelines.config import KINDS
from pipelines.errors import UserError
from pipelines.manifest import MANIFEST, Counts, FileEntry, Manifest


def make(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def found(path: Path, source: str = "auto") -> list[tuple[str, tuple[str, ...]]]:
    return [(each.kind, each.names) for each in find_inputs(path, source).inputs]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.warc", "warc"),
        ("a.WARC.GZ", "warc"),
        ("a.warc.zst", "warc"),
        ("a.arc", "warc"),
        ("a.arc.gz", "warc"),
        ("a.wet.gz", "wet"),
        ("a.warc.wet.gz", "wet"),
        ("a.html", "html"),
        ("a.htm.gz", "html"),
        ("a.xhtml", "html"),
        ("a.jsonl", "jsonl"),
        ("a.json.gz", "jsonl"),
        ("a.parquet", "parquet"),
        ("a.txt", "text"),
        ("a.txt.xz", "text"),
        ("a.tar.xz", "tar"),
        ("a.tgz", "tar"),
    ],
)
def test_a_kind_is_told_by_its_name(name: str, kind: str, tmp_path: Path) -> None:
    make(tmp_path, name)
    assert found(tmp_path / name) == [(kind, (name,))]
    assert found(tmp_path) == [(kind, (name,))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_suffixes_by_which_its_files_are_recognised(kind: str, tmp_path: Path) -> None:
    make(tmp_path, *(f"a{suffix}" for suffix in SUFFIXES[kind]), *(["a.idx"] if kind == "megatron" else []))
    assert {each for each, _ in found(tmp_path)} == {kind}
    assert find_inputs(tmp_path, "auto").unread == ()


def test_everything_below_a_folder_is_found_in_one_order(tmp_path: Path) -> None:
    make(tmp_path, "b/2.html", "b/10.html", "a.html", "b.html", "z/documents.jsonl", "y.warc.gz", "x/x.warc", "c.arc")
    assert found(tmp_path) == [
        ("warc", ("c.arc",)),
        ("warc", ("x/x.warc",)),
        ("warc", ("y.warc.gz",)),
        ("html", ("a.html", "b/10.html", "b/2.html", "b.html")),
        ("jsonl", ("z/documents.jsonl",)),
    ]


def test_small_files_are_read_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinds, "FILES_PER_PART", 2)
    make(tmp_path, *(f"{i}.txt" for i in range(5)))
    assert found(tmp_path) == [("text", ("0.txt", "1.txt")), ("text", ("2.txt", "3.txt")), ("text", ("4.txt",))]


def test_what_is_not_read_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a.warc.gz", "a.warc.wat.gz", "README.txt", "picture.png", ".hidden", ".git/x.html", "deep/x.bin")
    assert find_inputs(tmp_path, "auto").unread == (
        ("README.txt", "text beside other sources"),
        ("a.warc.wat.gz", "a WAT file holds no text, only what WARC records say of themselves"),
        ("deep/x.bin", "no x.idx beside it"),
        ("picture.png", "no kind of source by its name"),
    )


def test_a_kind_that_is_named_takes_its_own_files(tmp_path: Path) -> None:
    make(tmp_path, "a.jsonl", "b.html", "index.php", "page", "c.wat", "d.txt")
    assert found(tmp_path, "jsonl") == [("jsonl", ("a.jsonl",))]
    assert found(tmp_path, "html") == [("html", ("b.html", "index.php", "page"))]
    assert found(tmp_path, "text") == [("text", ("d.txt", "index.php", "page"))]
    assert [name for name, _ in find_inputs(tmp_path, "html").unread] == ["a.jsonl", "c.wat", "d.txt"]
    assert found(tmp_path / "page", "warc") == [("warc", ("page",))]


def test_a_megatron_pair_is_one_input(tmp_path: Path) -> None:
    make(tmp_path, "a.bin", "a.idx")
    assert found(tmp_path) == [("megatron", ("a.bin",))]
    assert find_inputs(tmp_path, "auto").unread == ()


def test_of_a_published_folder_its_own_rows_are_read(tmp_path: Path) -> None:
    make(
        tmp_path,
        "segment-00000.warc.gz",
        "documents-00000.txt",
        "fetch_log/a.parquet",
        "rejected/a.parquet",
        "x.html",
    )
    names = ("segment-00000.warc.gz", "documents-00000.txt", "fetch_log/a.parquet", "rejected/a.parquet")
    empty = FileEntry(0, 0, "")
    Manifest(dict.fromkeys(names, empty), Counts()).save(tmp_path / MANIFEST)
    assert found(tmp_path) == [("warc", ("segment-00000.warc.gz",)), ("text", ("documents-00000.txt",))]


def test_companions_of_a_single_output_are_no_documents(tmp_path: Path) -> None:
    make(tmp_path, "a.jsonl", "a.jsonl.manifest.json", "a.jsonl.provenance.json", "a.jsonl.rejected.jsonl")
    assert found(tmp_path) == [("jsonl", ("a.jsonl",))]
    assert find_inputs(tmp_path, "auto").unread == ()


def test_a_compressed_file_that_says_no_more_is_an_archive_when_it_holds_one(tmp_path: Path) -> None:
    (tmp_path / "urlsf_subset01").write_bytes(json.dumps({}).encode())
    (tmp_path / "words.gz").write_bytes(gzip.compress(b"words"))
    with pytest.raises(UserError, match=r"urlsf_subset01 .no kind of source by its name.*words.gz"):
        find_inputs(tmp_path, "auto")


@pytest.mark.parametrize("name", ["a.wat.gz", "a.docx", "page"])
def test_a_file_that_cannot_be_read_is_an_error(name: str, tmp_path: Path) -> None:
    make(tmp_path, name)
    with pytest.raises(UserError, match=r"a WAT file holds no text|no kind of source by its name"):
        find_inputs(tmp_path / name, "auto")
    with pytest.raises(UserError, match="contains no source of a known kind"):
        find_inputs(tmp_path, "auto")


def test_links_to_files_are_followed_and_links_to_folders_are_named(tmp_path: Path) -> None:
    make(tmp_path, "elsewhere/b.html", "in/a.html")
    (tmp_path / "in" / "file.html").symlink_to(tmp_path / "elsewhere" / "b.html")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "circle").symlink_to(tmp_path / "in")
    assert found(tmp_path / "in") == [("html", ("a.html", "file.html"))]
    names = [name for name, why in find_inputs(tmp_path / "in", "auto").unread if "a link to a folder" in why]
    assert names == ["circle", "folder"]
