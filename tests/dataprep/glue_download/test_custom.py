"""A task of the user's own: the same rows from every format, its labels, and what is wrong by file and line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataprep.glue.tasks import RowError, TaskMeta
from dataprep.glue_download.custom import label_name, raw_rows
from pipelines.command import StageSpec
from pipelines.stage import run_command

ROWS = [
    {"q": 'What is "a mill"?', "a": "A machine.", "gold": "good"},
    {"q": "Where, then?", "a": "By the river, ’ere.", "gold": "bad"},
    {"q": "Why?", "a": "", "gold": "good"},
]


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are not worth a pool."""
    monkeypatch.setenv("MILLRACE_WORKERS", "1")


def custom(*arguments: object, columns: tuple[str, ...] = ("q", "a"), label: str = "gold") -> int:
    words = ["custom", *arguments, "--columns", *columns, "--label", label]
    return run_command(StageSpec.load("dataprep.glue_download"), [str(word) for word in words])


def cells(value: object) -> str:
    text = str(value)
    return '"' + text.replace('"', '""') + '"' if set(text) & set('",\n') else text


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """`rows` in the format that the name of the file says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = list(rows[0])
    if ".parquet" in path.suffixes:
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    if ".jsonl" in path.suffixes:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    elif ".csv" in path.suffixes:
        text = "\r\n".join(",".join(map(cells, line)) for line in [names, *([row[n] for n in names] for row in rows)])
    else:
        text = "".join("\t".join(map(str, line)) + "\n" for line in [names, *([row[n] for n in names] for row in rows)])
    data = b"\xef\xbb\xbf" + text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def read(folder: Path, split: str) -> list[dict[str, Any]]:
    return pq.read_table(folder / "custom" / f"{split}.parquet").to_pylist()


def meta(folder: Path) -> TaskMeta:
    return TaskMeta.of_schema(pq.read_schema(folder / "custom/train.parquet"))


def write_labels(source: Path, labels: list[object], validation: list[object]) -> Path:
    for split, some in (("train", labels), ("validation", validation)):
        write(source / f"{split}.jsonl", [{"q": f"Question {i}", "gold": label} for i, label in enumerate(some)])
    return source


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet", "jsonl.gz", "csv.gz"])
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    source = tmp_path / "source"
    write(source / f"train.{suffix}", [{**row, "note": i} for i, row in enumerate(ROWS)])
    write(source / f"dev.{suffix}", ROWS[:2])
    write(source / f"test.{suffix}", [{"q": row["q"], "a": row["a"]} for row in ROWS[:2]])
    assert custom(tmp_path / "out", "--source", source) == 0
    expected = [
        {"q": row["q"], "a": row["a"], "label": label, "index": index}
        for index, (row, label) in enumerate(zip(ROWS, (1, 0, 1), strict=True))
    ]
    assert read(tmp_path / "out", "train") == expected
    assert read(tmp_path / "out", "validation") == expected[:2]
    assert [row["label"] for row in read(tmp_path / "out", "test")] == [-1, -1]
    assert meta(tmp_path / "out") == TaskMeta("custom", ("q", "a"), ("bad", "good"))


def test_single_texts_and_a_folder_of_its_own_beside_other_tasks(tmp_path: Path) -> None:
    write_labels(tmp_path / "source/custom", ["x", "y"], ["y"])
    assert custom(tmp_path / "out", "--source", tmp_path / "source", columns=("q",)) == 0
    assert read(tmp_path / "out", "validation") == [{"q": "Question 0", "label": 1, "index": 0}]


@pytest.mark.parametrize(
    ("labels", "names", "ids"),
    [
        (["10", "9", "9"], ("9", "10"), [1, 0, 0]),
        ([1, 2.0, "1"], ("1", "2"), [0, 1, 0]),
        ([True, False], ("false", "true"), [1, 0]),
        (["b", "10", "a"], ("10", "a", "b"), [2, 0, 1]),
        ([0.5, 3, -1], (), [0.5, 3.0, -1.0]),
    ],
    ids=["numerals", "whole numbers", "truth values", "names", "scores"],
)
def test_labels_are_names_numbers_or_scores(
    tmp_path: Path, labels: list[object], names: tuple[str, ...], ids: list[float]
) -> None:
    source = write_labels(tmp_path / "source", labels, labels)
    assert custom(tmp_path / "out", "--source", source, columns=("q",)) == 0
    assert meta(tmp_path / "out").labels == names
    assert [row["label"] for row in read(tmp_path / "out", "train")] == ids
    assert [row["label"] for row in read(tmp_path / "out", "validation")] == ids


def test_whole_numbers_are_scores_on_request(tmp_path: Path) -> None:
    source = write_labels(tmp_path / "source", [1, 5, 3], [4])
    assert custom(tmp_path / "out", "--source", source, "--label-kind", "score", columns=("q",)) == 0
    assert [row["label"] for row in read(tmp_path / "out", "validation")] == [4.0]
    assert meta(tmp_path / "out").num_labels == 1


def test_named_labels_have_their_order_and_one_that_train_lacks_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = write_labels(tmp_path / "source", ["no", "yes"], ["maybe"])
    flags = ("--labels", "yes", "no", "maybe")
    assert custom(tmp_path / "out", "--source", source, *flags, columns=("q",)) == 0
    assert [row["label"] for row in read(tmp_path / "out", "train")] == [1, 0]
    assert "custom: no train row has the label maybe" in capfd.readouterr().err


def test_broken_rows_are_counted_and_listed_by_file_and_line(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.jsonl").write_bytes(
        b'{"q": "a", "gold": "x"}\n\n{"q": "b", "gold": "y"}\n{"q": 5, "gold": "y"}\n{"gold": "y"}\nnot json\n[1]\n'
        b'{"q": "c"}\n{"q": "d", "gold": null}\n{"q": " ", "gold": "x"}\n{"q": "\\ud800", "gold": "x"}\n"\xff"\n'
    )
    (source / "validation.tsv").write_bytes(b"q\tgold\nfine\tx\none\tz\ntoo\tmany\tcells\nbad \xff\tx\n")
    stats = tmp_path / "stats.json"
    assert custom(tmp_path / "out", "--source", source, "--stats", stats, columns=("q",)) == 0
    assert [row["index"] for row in read(tmp_path / "out", "train")] == [0, 1]
    listed = pq.read_table(tmp_path / "out/rejected/custom.parquet").to_pylist()
    assert [(row["url"], row["rule"]) for row in listed] == [
        ("train.jsonl:4", "not_text"),
        ("train.jsonl:5", "missing_column"),
        ("train.jsonl:6", "invalid_json"),
        ("train.jsonl:7", "invalid_json"),
        ("train.jsonl:8", "no_label"),
        ("train.jsonl:9", "no_label"),
        ("train.jsonl:10", "empty_text"),
        ("train.jsonl:11", "invalid_utf8"),
        ("train.jsonl:12", "invalid_utf8"),
        ("validation.tsv:3", "unknown_label"),
        ("validation.tsv:4", "wrong_column_count"),
        ("validation.tsv:5", "invalid_utf8"),
    ]
    counts = json.loads(stats.read_text())
    assert (counts["in"], counts["out"]) == (15, 3)


def test_a_quoted_line_break_in_csv_is_text_and_later_rows_keep_their_lines(tmp_path: Path) -> None:
    source = write_labels(tmp_path / "source", ["x", "y"], ["x"])
    (source / "train.jsonl").unlink()
    (source / "train.csv").write_text('q,gold\n"two\nlines",x\nc,y\nd\n')
    assert custom(tmp_path / "out", "--source", source, columns=("q",)) == 0
    assert [row["q"] for row in read(tmp_path / "out", "train")] == ["two\nlines", "c"]
    (rejected,) = pq.read_table(tmp_path / "out/rejected/custom.parquet").to_pylist()
    assert (rejected["url"], rejected["rule"]) == ("train.csv:5", "wrong_column_count")


@pytest.mark.parametrize(
    ("files", "flags", "columns", "message"),
    [
        ({}, (), ("q",), "has no file for train: expected train.jsonl, .csv, .tsv or .parquet, found none"),
        ({"train.csv": "q,gold\na,x\nb,y\n"}, (), ("q",), "has no file for validation"),
        ({"train.csv": "", "train.tsv": ""}, (), ("q",), "several files for train: train.csv, train.tsv; keep one"),
        ({"train.csv": "Q,gold\na,x\n", "dev.csv": ""}, (), ("q",), "has no column 'q', which --columns or --label"),
        ({"train.csv": "q,gold\na,x\nb,x\n", "dev.csv": ""}, (), ("q",), "1 different labels in column 'gold' (x)"),
        ({"train.csv": 'q,gold\na,x\n"b,y\n', "dev.csv": ""}, (), ("q",), "train.csv:3: not valid CSV"),
        ({"train.csv": "q,gold\na,x\nb,y\n", "dev.csv": "q,gold\na,z\n"}, (), ("q",), "'z', expected one of x, y"),
        ({}, (), (), "custom needs the names of its one or two text columns"),
        ({}, (), ("q", "a", "b"), "one or two text columns, such as --columns sentence1 sentence2; got q a b"),
        ({}, (), ("index",), "index: the tables have a column of that name; rename yours"),
        ({}, ("--labels", "a", "a"), ("q",), "expected two or more different names, got a a"),
        ({}, ("--source", "hub"), ("q",), "custom is read from files; name their folder with --source"),
    ],
)
def test_a_mistake_is_one_clear_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    files: dict[str, str],
    flags: tuple[str, ...],
    columns: tuple[str, ...],
    message: str,
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, text in files.items():
        (source / name).write_text(text)
    given = flags if "--source" in flags else ("--source", source, *flags)
    assert custom(tmp_path / "out", *given, columns=columns) != 0
    error = capsys.readouterr().err.strip().splitlines()
    assert message in error[-1]
    assert len([line for line in error if line.startswith("error: ")]) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (1, "1"),
        (1.0, "1"),
        ("1.0", "1"),
        (" yes ", "yes"),
        (None, ""),
        (float("nan"), ""),
        (True, "true"),
        (0.5, "0.5"),
    ],
)
def test_a_label_has_one_name_however_it_is_written(value: object, name: str) -> None:
    assert label_name(value) == name


def test_the_profile_for_a_task_of_ones_own_runs_its_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`use sample glue=custom ...`, from its parameters to tokens with the names of the classes."""
    from pipelines.project.graph import load_stages
    from pipelines.project.profiles import compose, write_params
    from tests.trainer import small

    for split, rows in (("train", ROWS), ("validation", ROWS[:2]), ("test", [{"q": "Who?", "a": "They."}])):
        write(tmp_path / f"files/{split}.csv", rows)
    monkeypatch.chdir(Path(__file__).parents[3])
    overrides = [f"glue.folder={tmp_path / 'files'}", "glue_download.columns=[q,a]", "glue_download.label=gold"]
    params = compose("sample", ["glue=custom", *overrides])
    names = [stage.name for stage in load_stages(params)]
    assert {"glue_tokenize@custom", "finetune@custom"} <= set(names)
    monkeypatch.chdir(tmp_path)
    write_params(params, tmp_path / "params.yaml")
    download = ["glue", "--params", "params.yaml"]
    assert run_command(StageSpec.load("dataprep.glue_download"), download) == 0
    assert meta(tmp_path / "glue").labels == ("bad", "good")
    tokenizer = small.write_tokenizer(tmp_path / "tokenizer")
    tokenize = ["custom", "glue", str(tokenizer), "tokens", "--params", "params.yaml"]
    assert run_command(StageSpec.load("dataprep.glue_tokenize"), tokenize) == 0
    table = pa.ipc.open_file(tmp_path / "tokens/test.arrow").read_all()
    assert json.loads(table.schema.metadata[b"labels"]) == ["bad", "good"]
    assert table["label"].to_pylist() == [-1]


def test_a_line_nested_too_deep_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("[" * 100_000 + '\n{"a": "b"}\n')
    (_, deep), (_, row) = raw_rows(tmp_path / "train.jsonl", ["a"])
    assert isinstance(deep, RowError)
    assert deep.rule == "invalid_json"
    assert row == {"a": "b"}
