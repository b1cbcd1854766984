"""GLUE rows as tokens: the same ids as transformers', and everything kept beside them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from dataprep.glue.tasks import TASKS, GlueTask
from pipelines import store
from pipelines.command import StageSpec
from pipelines.documents import TableWriter
from pipelines.stage import run_command
from tests.samples import Data, gpt2

SENTENCES = ["The rain fell on the plain.", "It was wet.", "A heron stood in the reeds.", "Nobody saw it leave."]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small byte-level tokenizer with end-of-text, as the stage `tokenizer` writes it."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    made.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(vocab_size=300, initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False)
    made.train_from_iterator(SENTENCES, trainer)
    made.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    folder = tmp_path_factory.mktemp("tokenizer")
    made.save(str(folder / "tokenizer.json"))
    return folder


def write_glue(folder: Path, task: str, splits: dict[str, list[tuple[Any, ...]]]) -> Path:
    """Tables as `glue_download` writes them: rows are (text..., label)."""
    names = [*TASKS[task].texts, "label"]
    for split, rows in splits.items():
        with TableWriter(folder / task / f"{split}.parquet", TASKS[task].schema) as table:
            for index, row in enumerate(rows):
                table.write({**dict(zip(names, row, strict=True)), "index": index})
    return folder


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tables are not worth a pool; where workers matter, a test says how many."""
    monkeypatch.setenv("MILLRACE_WORKERS", "1")


def tokenize(*arguments: object) -> int:
    return run_command(StageSpec.load("dataprep.glue_tokenize"), [str(argument) for argument in arguments])


def table(file: Path) -> pa.Table:
    with pa.ipc.open_file(pa.memory_map(str(file))) as reader:
        return reader.read_all()


def test_a_split_keeps_labels_indexes_and_texts_and_says_what_made_it(tmp_path: Path, tokenizer: Path) -> None:
    train = [(SENTENCES[0], SENTENCES[1], 1), (SENTENCES[2], SENTENCES[3], 0)]
    glue = write_glue(tmp_path / "glue", "mrpc", {"train": train, "test": [(SENTENCES[0], SENTENCES[1], -1)]})
    assert tokenize("mrpc", glue, tokenizer, tmp_path / "out") == 0
    assert sorted(path.name for path in (tmp_path / "out").glob("*.arrow")) == ["test.arrow", "train.arrow"]
    result = table(tmp_path / "out/train.arrow")
    assert result.column_names == ["input_ids", "label", "index", "sentence1", "sentence2"]
    assert [str(kind) for kind in result.schema.types[:3]] == ["list<item: int32>", "int64", "int64"]
    assert result["label"].to_pylist() == [1, 0]
    assert result["index"].to_pylist() == [0, 1]
    assert result["sentence2"].to_pylist() == [SENTENCES[1], SENTENCES[3]]
    whole = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    expected = [whole.encode(first).ids + whole.encode(second).ids for first, second, _ in train]
    assert result["input_ids"].to_pylist() == expected
    assert {key.decode(): value.decode() for key, value in result.schema.metadata.items()} == {
        "tokenizer_sha256": store.sha256(tokenizer / "tokenizer.json"),
        "vocab_size": str(whole.get_vocab_size()),
        "end_of_text": str(whole.token_to_id("<|endoftext|>")),
        "task": "mrpc",
        "num_labels": "2",
        "labels": '["not_equivalent", "equivalent"]',
        "max_length": "128",
        "padding": "added",
        "pad_token_id": str(whole.get_vocab_size()),
    }


def test_every_split_of_mnli_has_its_file_and_three_labels(tmp_path: Path, tokenizer: Path) -> None:
    splits = {split: [(SENTENCES[0], SENTENCES[1], 2)] for split in TASKS["mnli"].published}
    glue = write_glue(tmp_path / "glue", "mnli", splits)
    assert tokenize("mnli", glue, tokenizer, tmp_path / "out") == 0
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.arrow")) == sorted(splits)
    assert table(tmp_path / "out/validation_mismatched.arrow").schema.metadata[b"num_labels"] == b"3"


def test_scores_of_stsb_are_float64_and_one_label(tmp_path: Path, tokenizer: Path) -> None:
    glue = write_glue(tmp_path / "glue", "stsb", {"train": [(SENTENCES[0], SENTENCES[1], 3.5)]})
    assert tokenize("stsb", glue, tokenizer, tmp_path / "out") == 0
    result = table(tmp_path / "out/train.arrow")
    assert result["label"].to_pylist() == [3.5]
    assert result.schema.field("label").type == pa.float64()
    assert result.schema.metadata[b"num_labels"] == b"1"


def test_a_special_token_in_a_text_is_text(tmp_path: Path, tokenizer: Path) -> None:
    glue = write_glue(tmp_path / "glue", "cola", {"train": [("It was <|endoftext|> wet.", 1)]})
    assert tokenize("cola", glue, tokenizer, tmp_path / "out") == 0
    result = table(tmp_path / "out/train.arrow")
    (ids,) = result["input_ids"].to_pylist()
    assert int(result.schema.metadata[b"end_of_text"]) not in ids
    whole = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    assert whole.decode(ids, skip_special_tokens=False) == "It was <|endoftext|> wet."


def test_rows_longer_than_max_length_are_cut_longest_text_first_and_counted(tmp_path: Path, tokenizer: Path) -> None:
    long, short = " ".join(SENTENCES * 3), "It was wet."
    glue = write_glue(tmp_path / "glue", "rte", {"train": [(long, short, 0), (short, short, 1)]})
    stats = tmp_path / "stats.json"
    assert tokenize("rte", glue, tokenizer, tmp_path / "out", "--max-length", 16, "--stats", stats) == 0
    whole = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    end = whole.encode(short).ids
    cut, intact = table(tmp_path / "out/train.arrow")["input_ids"].to_pylist()
    assert len(end) < 8  # or the short text would be cut too
    assert cut == whole.encode(long).ids[: 16 - len(end)] + end
    assert intact == end + end
    counts = json.loads(stats.read_text())
    tokens = len(cut) + len(intact)
    assert counts["totals"] == {"tokens": tokens, "truncated": 1, "train/tokens": tokens, "train/truncated": 1}


def test_end_of_text_can_be_the_padding_too(tmp_path: Path, tokenizer: Path) -> None:
    glue = write_glue(tmp_path / "glue", "cola", {"train": [(SENTENCES[0], 1)]})
    assert tokenize("cola", glue, tokenizer, tmp_path / "out", "--padding", "end_of_text") == 0
    metadata = table(tmp_path / "out/train.arrow").schema.metadata
    assert metadata[b"pad_token_id"] == metadata[b"end_of_text"]
    assert metadata[b"padding"] == b"end_of_text"


def test_a_row_without_a_token_is_rejected_by_its_index_and_one_empty_text_is_not(
    tmp_path: Path, tokenizer: Path
) -> None:
    train = [("", "", 0), ("", SENTENCES[0], 1), (SENTENCES[1], SENTENCES[2], 0)]
    glue = write_glue(tmp_path / "glue", "rte", {"train": train, "validation": train[1:]})
    stats = tmp_path / "stats.json"
    assert tokenize("rte", glue, tokenizer, tmp_path / "out", "--stats", stats) == 0
    result = table(tmp_path / "out/train.arrow")
    assert result["index"].to_pylist() == [1, 2]
    assert result["label"].to_pylist() == [1, 0]
    assert result["sentence2"].to_pylist() == [SENTENCES[0], SENTENCES[2]]
    assert [len(ids) > 0 for ids in result["input_ids"].to_pylist()] == [True, True]
    (rejected,) = pq.read_table(tmp_path / "out/rejected/train.parquet").to_pylist()
    assert (rejected["url"], rejected["rule"]) == ("rte/train:0", "no_tokens")
    counts = json.loads(stats.read_text())
    assert (counts["in"], counts["out"], counts["rejected"]) == (5, 4, {"no_tokens": 1})


@pytest.mark.parametrize(("labels", "kind"), [(("no", "yes", "maybe"), "int64"), ((), "double")])
def test_a_task_of_the_users_own_is_known_by_its_tables(
    tmp_path: Path, tokenizer: Path, labels: tuple[str, ...], kind: str
) -> None:
    task = GlueTask(name="custom", folders=(), texts={"q": ("q",), "a": ("a",)}, labels=labels, published={})
    for split in ("train", "validation"):
        with TableWriter(tmp_path / f"glue/custom/{split}.parquet", task.schema) as writer:
            writer.write({"q": SENTENCES[0], "a": SENTENCES[1], "label": 1, "index": 0})
    assert tokenize("custom", tmp_path / "glue", tokenizer, tmp_path / "out") == 0
    result = table(tmp_path / "out/validation.arrow")
    assert result.column_names == ["input_ids", "label", "index", "q", "a"]
    assert str(result.schema.field("label").type) == kind
    assert json.loads(result.schema.metadata[b"labels"]) == list(labels)
    assert result.schema.metadata[b"num_labels"] == str(len(labels) or 1).encode()


def test_a_table_of_another_maker_is_one_clear_line(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "glue/cola").mkdir(parents=True)
    pq.write_table(pa.table({"sentence": ["a"], "label": [0], "index": [0]}), tmp_path / "glue/cola/train.parquet")
    assert tokenize("cola", tmp_path / "glue", tokenizer, tmp_path / "out") == 1
    assert "train.parquet: does not say which task it belongs to; run glue_download again" in capsys.readouterr().err


def test_one_worker_and_two_publish_the_same_manifest(tmp_path: Path, tokenizer: Path) -> None:
    many = [(SENTENCES[i % 4], SENTENCES[i % 3], i % 2) for i in range(1500)]
    glue = write_glue(tmp_path / "glue", "mrpc", {"train": many, "validation": many[:7]})
    manifests = []
    for workers in (1, 2):
        assert tokenize("mrpc", glue, tokenizer, tmp_path / f"out-{workers}", "--workers", workers) == 0
        manifests.append((tmp_path / f"out-{workers}/manifest.json").read_bytes())
    assert manifests[0] == manifests[1]
    assert table(tmp_path / "out-1/train.arrow")["index"].to_pylist() == list(range(1500))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("mrcp", "mrcp: not a GLUE task. Did you mean 'mrpc'?"),
        ("rte", "has no task rte; add it to glue_download.tasks"),
    ],
)
def test_a_missing_task_is_one_clear_line(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str], task: str, message: str
) -> None:
    glue = write_glue(tmp_path / "glue", "mrpc", {"train": [(SENTENCES[0], SENTENCES[1], 1)]})
    assert tokenize(task, glue, tokenizer, tmp_path / "out") == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("max_length", [128, 40])
def test_mrpc_rows_have_the_ids_of_transformers(data: Data, tmp_path: Path, max_length: int) -> None:
    from transformers import GPT2TokenizerFast

    files = gpt2()
    reference = GPT2TokenizerFast(vocab=str(files / "encoder.json"), merges=str(files / "vocab.bpe"))
    rows = {"train": 3668, "validation": 408, "test": 1725} if data.real else {"train": 14, "validation": 4, "test": 5}
    download = [str(argument) for argument in ("mrpc", tmp_path / "glue", "--source", data.folder / "glue")]
    assert run_command(StageSpec.load("dataprep.glue_download"), download) == 0
    assert tokenize("mrpc", tmp_path / "glue", files, tmp_path / "out", "--max-length", max_length) == 0
    for split, num_rows in rows.items():
        result = table(tmp_path / f"out/{split}.arrow")
        assert result.num_rows == num_rows
        firsts, seconds = result["sentence1"].to_pylist(), result["sentence2"].to_pylist()
        expected = reference(firsts, seconds, truncation="longest_first", max_length=max_length)["input_ids"]
        assert result["input_ids"].to_pylist() == expected
