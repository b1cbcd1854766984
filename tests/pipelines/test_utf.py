"""Lists as Windows' editors and spreadsheets save them, in UTF-16: every reader of a user's list reads them."""

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from dataprep.clean.rules.c4 import bad_words_rule
from dataprep.clean.rules.document import DocumentText
from dataprep.decontaminate.items import read_target
from dataprep.extract.loose_json import merge_or_add_ids
from dataprep.glue.tasks import TASKS
from dataprep.glue_download.custom import raw_rows
from dataprep.glue_download.tsv import read_tsv
from dataprep.urls.blacklists import load_blacklists
from pipelines import utf
from pipelines.command import StageSpec
from pipelines.documents import REJECTED, read_rows
from pipelines.errors import UserError
from pipelines.forgotten import ForgottenPages, add_entries, read_entries
from pipelines.manifest import MANIFEST, Manifest
from pipelines.stage import run_command
from tests.pipes import pipe_with

ENCODINGS = ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"]
READERS: dict[str, tuple[str, str, Callable[[Path], object]]] = {
    "blacklist": ("domains-ads.txt", "garden.test\r\nrosé.test\r\n", lambda file: load_blacklists([file]).domains),
    "extensions": ("extensions-x.txt", ".pdf\n.mp4\n", lambda file: load_blacklists([file]).extensions),
    "forgotten": ("forget.txt", "# mine\nhttp://garden.test/水車\n", lambda file: list(read_entries(file))),
    "items": ("items.txt", "first item\n\nsecond rosé item\n", lambda file: list(read_target(file))),
    "CSV": ("dev.csv", 'q,gold\nrosé,"1\n2"\n', lambda file: list(raw_rows(file, ["q", "gold"]))),
    "TSV": ("dev.tsv", "q\tgold\nrosé\t1\n", lambda file: list(raw_rows(file, ["q", "gold"]))),
    "JSON lines of GLUE": ("dev.jsonl", '{"q": "rosé", "gold": 1}\n', lambda file: list(raw_rows(file, ["q"]))),
    "GLUE": ("dev.tsv", "sentence\tlabel\nrosé\t1\n", lambda file: list(read_tsv(file, TASKS["sst2"], "validation"))),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_list_is_the_same_in_every_encoding(tmp_path: Path, reader: str, encoding: str, packed: bool) -> None:
    name, text, read = READERS[reader]
    found: list[object] = []
    for each in ("utf-8", encoding):
        (tmp_path / each).mkdir()
        file = tmp_path / each / (f"{name}.gz" if packed else name)
        file.write_bytes((gzip.compress if packed else bytes)(text.encode(each)))
        found.append(read(file))
    assert found[0], "something is read"
    assert found[1] == found[0]


@pytest.mark.parametrize("encoding", ["utf-8", *ENCODINGS])
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_a_pipe_is_opened_once_and_loses_no_line(tmp_path: Path, encoding: str, suffix: str) -> None:
    lines = [f"http://garden.test/{number}" for number in range(20_000)]
    data = "\n".join(lines).encode(encoding)
    with pipe_with(tmp_path / f"pipe{suffix}", gzip.compress(data) if suffix.endswith(".gz") else data) as pipe:
        assert [line.decode() for line in utf.text_lines(pipe)] == lines


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bad_words_are_the_same_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "words.txt").write_bytes("mill\r\nrosé\r\n".encode(encoding))
    rule = bad_words_rule(tmp_path / "words.txt")
    assert rule.measure(DocumentText("A rosé, a mill, a rose.")) == 2


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_member_of_an_archive_is_the_same_in_every_encoding(tmp_path: Path, encoding: str) -> None:
    data = ("# pages\n" * 5000 + "garden.test\n").encode(encoding)
    with tarfile.open(tmp_path / "ut1.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("ads/domains")
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    assert load_blacklists([tmp_path / "ut1.tar.gz"]).domains == {"garden.test": "ads"}


def test_an_entry_is_added_to_a_list_in_utf_16(tmp_path: Path) -> None:
    (tmp_path / "forget.txt").write_text("http://garden.test/1", "utf-16")
    assert add_entries(tmp_path / "forget.txt", ["http://garden.test/2"]) == ["http://garden.test/2"]
    forgotten = ForgottenPages(tmp_path / "forget.txt")
    assert [forgotten.covers(f"http://garden.test/{page}") for page in (1, 2, 3)] == [True, True, False]
    assert utf.file_encoding(tmp_path / "forget.txt") is None


@pytest.mark.parametrize("stage", ["clean", "extract"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_json_lines_in_another_encoding_are_refused_with_its_name(
    tmp_path: Path, encoding: str, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "documents.jsonl"
    file.write_bytes('{"text": "The mill turned."}\n'.encode(encoding))
    assert run_command(StageSpec.load(f"dataprep.{stage}"), [str(file), str(tmp_path / "out")]) == 1
    name = encoding[:6].upper()
    message = f"error: {file}: {name} text; save it as UTF-8 (iconv -f {name} -t UTF-8)"
    assert message in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("stage", ["clean", "extract"])
def test_one_of_several_files_in_another_encoding_is_one_rejection(
    tmp_path: Path, stage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").mkdir()
    line = json.dumps({"text": "The miller opens the gate at dawn. " * 20}) + "\n"
    (tmp_path / "in" / "a.jsonl").write_text(line)
    (tmp_path / "in" / "b.jsonl").write_text(line * 30, "utf-16")
    options = ["--languages"] if stage == "clean" else []
    arguments = [str(tmp_path / "in"), str(tmp_path / "out"), "--workers", "1", *options]
    assert run_command(StageSpec.load(f"dataprep.{stage}"), arguments) == 0
    why = "UTF-16 text; save it as UTF-8 (iconv -f UTF-16 -t UTF-8)"
    rows = [row for file in (tmp_path / "out" / REJECTED).iterdir() for row in read_rows(file)]
    assert [(row["url"], row["rule"], row["value"]) for row in rows] == [("b.jsonl", "unreadable_file", why)]
    counts = Manifest.load(tmp_path / "out" / MANIFEST).counts
    assert (counts.rows_in, counts.rows_out, counts.rejected) == (2, 1, {"unreadable_file": 1})
    assert f"b.jsonl ({why})" in capfd.readouterr().err


def test_json_lines_that_are_copied_are_refused_in_another_encoding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text('{"text": "The mill turned."}\n', "utf-16")
    out = tmp_path / "out" / "merged.json"
    assert merge_or_add_ids(["--json_path", str(tmp_path), "--output_file", str(out)]) == 1
    assert f"{tmp_path}/a.json: UTF-16 text; save it as UTF-8" in capsys.readouterr().err
    assert not out.exists()


def test_a_list_in_another_encoding_than_these_is_refused(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_bytes("rosé".encode("latin-1"))
    with pytest.raises(UserError, match=r"words\.txt: not UTF-8; save the list of bad words as UTF-8"):
        bad_words_rule(tmp_path / "words.txt")


def test_a_spreadsheet_in_utf_16_has_its_quotes(tmp_path: Path) -> None:
    with (tmp_path / "dev.csv").open("w", encoding="utf-16", newline="") as file:
        csv.writer(file).writerows([["q", "gold"], ['She said "mill", twice', "1"]])
    assert list(raw_rows(tmp_path / "dev.csv", ["q"])) == [("dev.csv:2", {"q": 'She said "mill", twice', "gold": "1"})]
