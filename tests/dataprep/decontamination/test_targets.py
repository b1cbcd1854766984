"""Texts of the user's own: what they are called, what their lines are, and what is wrong with them."""

import gzip
from pathlib import Path

import pytest
import zstandard

from dataprep.decontamination.targets import find_targets, read_target
from pipelines.errors import ConfigError, UserError
from pipelines.jsonl import BrokenLineError

LINES = b"\xef\xbb\xbffirst item\n\n  second item \r\n\xff\xfe\nzero \0 byte\nlast"


def items(file: Path) -> list[tuple[int, str]]:
    return [(n, item.rule if isinstance(item, BrokenLineError) else item) for n, item in read_target(file)]


def test_plain_text_is_one_item_per_line_that_is_not_blank(tmp_path: Path) -> None:
    expected = [(1, "first item"), (3, "second item"), (4, "invalid_utf8"), (5, "not_text"), (6, "last")]
    (tmp_path / "a.txt").write_bytes(LINES)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(LINES))
    (tmp_path / "a.zst").write_bytes(zstandard.compress(LINES))
    for name in ("a.txt", "a.txt.gz", "a.zst"):
        assert items(tmp_path / name) == expected


def test_json_lines_have_their_text(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"text": "one"}\n{"txt": "two"}\n\nthree\n{"text": "four", "url": "u"}\n'))
    assert items(file) == [(1, "one"), (2, "no_text"), (4, "invalid_json"), (5, "four")]


def test_names_come_from_the_command_line_or_from_the_files_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "targets"
    (folder / "inner").mkdir(parents=True)
    for name in ("lambada.test.jsonl.gz", "b.txt", ".hidden"):
        (folder / name).write_text("x")
    file = folder / "b.txt"
    assert find_targets([f"mine={file}", f"twice={file}"], folder) == {
        "mine": file,
        "twice": file,
        "b": file,
        "lambada.test": folder / "lambada.test.jsonl.gz",
    }
    assert find_targets([], file) == {"b": file}
    assert find_targets([], None) == {}


def test_a_path_may_hold_equals_signs(tmp_path: Path) -> None:
    file = tmp_path / "a=b.txt"
    file.write_text("x")
    assert find_targets([f"n={file}"], None) == {"n": file}


@pytest.mark.parametrize(
    ("against", "message"),
    [
        ("lambada.jsonl", "against: expected name=FILE, got 'lambada.jsonl'"),
        ("name=", "against: expected name=FILE, got 'name='"),
        ("name=missing.jsonl", "against: missing.jsonl: no such file"),
        ("name=/", "against: /: is a folder"),
        ("../name={file}", "'../name' cannot be a target's name"),
        ("={file}", "'' cannot be a target's name"),
    ],
)
def test_a_wrong_target_is_one_line(tmp_path: Path, against: str, message: str) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError) as error:
        find_targets([against.replace("{file}", str(tmp_path / "a.txt"))], None)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_one_name_twice_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ConfigError, match="two targets are called a"):
        find_targets([f"a={tmp_path / 'a.txt'}"], tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match="holds no file"):
        find_targets([], tmp_path / "none")
