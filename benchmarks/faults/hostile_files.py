"""The good files that are damaged: one small folder for each kind of source, and the command that reads it."""

import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from benchmarks.faults.campaign import Campaign
from benchmarks.faults.running import Running
from pipelines import store
from tests.dataprep import archives
from tests.trainer import small

Command = Callable[[Path, Path], list[str]]
CLEAN = ("--languages", "--min-tokens", "10")
TEXT = "The miller opens the gate at dawn and the water begins to turn the heavy wheel once again. "


def good_files(campaign: Campaign) -> list[tuple[str, Path, str, Command]]:
    """(kind, folder, name of the file to damage, command)."""
    root = campaign.work / "good"
    store.remove(root)
    return [*_documents(root), *_lists(root), *_tokens_and_models(root)]


def stage(module: str, *words: str) -> Command:
    """A command whose words `IN` and `OUT` stand for the folders."""

    def command(source: Path, output: Path) -> list[str]:
        filled = [word.replace("IN", str(source), 1) if word.startswith("IN") else word for word in words]
        return ["-m", module, *(str(output) if word == "OUT" else word for word in filled), "--overwrite"]

    return command


def _put(folder: Path, name: str, data: bytes) -> Path:
    folder.mkdir(parents=True)
    (folder / name).write_bytes(data)
    return folder


def _documents(root: Path) -> list[tuple[str, Path, str, Command]]:
    rows = [{"url": f"http://mill.test/{i}", "text": TEXT * 4 + str(i)} for i in range(20)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    packed = {
        "documents.jsonl": lines,
        "documents.jsonl.gz": gzip.compress(lines, mtime=0),
        "documents.jsonl.zst": zstandard.compress(lines),
        "documents.jsonl.xz": lzma.compress(lines),
    }
    found: list[tuple[str, Path, str, Command]] = []
    for name, data in packed.items():
        folder = _put(root / name, name, data)
        found.append((f"clean {name}", folder, name, stage("dataprep.clean", f"IN/{name}", "OUT", *CLEAN)))
        found.append((f"extract {name}", folder, name, stage("dataprep.extract", f"IN/{name}", "OUT")))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    pages = [archives.response(f"http://mill.test/{i}", archives.http(archives.page(i))) for i in range(4)]
    wet = b"".join(
        archives.record("conversion", f"http://mill.test/{i}", TEXT.encode(), "text/plain") for i in range(4)
    )
    others = {
        "table.parquet": sink.getvalue().to_pybytes(),
        "pages.warc": b"".join(pages),
        "pages.warc.gz": b"".join(gzip.compress(page, mtime=0) for page in pages),
        "texts.wet.gz": gzip.compress(wet, mtime=0),
        "page.html": archives.page(1),
    }
    for name, data in others.items():
        folder = _put(root / name, name, data)
        found.append((f"extract {name}", folder, name, stage("dataprep.extract", f"IN/{name}", "OUT")))
    shards = root / "shards"
    _make(["-m", "dataprep.clean", str(root / "documents.jsonl/documents.jsonl"), str(shards), *CLEAN], root)
    shutil.rmtree(root / ".work", ignore_errors=True)
    command = stage("dataprep.find_duplicates", "IN", "OUT")
    files = ("part-00000.parquet", "manifest.json")
    return [*found, *((f"find_duplicates {name}", shards, name, command) for name in files)]


def _lists(root: Path) -> list[tuple[str, Path, str, Command]]:
    urls = "".join(f"http://host{i}.example.com/page/{i}?q=ä\n" for i in range(40)).encode()
    submissions = "".join(json.dumps({"url": f"http://a{i}.test/x", "score": 9}) + "\n" for i in range(40)).encode()
    found: list[tuple[str, Path, str, Command]] = []
    for name, data in {
        "urls.txt": urls,
        "urls.txt.gz": gzip.compress(urls, mtime=0),
        "urls.jsonl.zst": zstandard.compress(submissions),
    }.items():
        found.append((f"urls {name}", _put(root / name, name, data), name, stage("dataprep.urls", f"IN/{name}", "OUT")))
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    rows = "".join(f"{i % 2}\t{i}\t{i + 1}\tThe wheel turns at dawn {i} .\tAt dawn it turns .\n" for i in range(20))
    for name in ("train", "dev"):
        (root / "glue/MRPC").mkdir(parents=True, exist_ok=True)
        (root / f"glue/MRPC/{name}.tsv").write_text(head + rows)
    command = stage("dataprep.glue_download", "mrpc", "OUT", "--source", "IN")
    return [*found, ("glue_download train.tsv", root / "glue", "MRPC/train.tsv", command)]


def _tokens_and_models(root: Path) -> list[tuple[str, Path, str, Command]]:
    folder = root / "road"
    tokenizer = small.write_tokenizer(folder / "tokenizer")
    val = small.write_corpus(folder / "val", tokenizer, 12, seed=2)
    flags = ("--steps", "4", "--checkpoint-every", "2", "--validate-every", "0", "--parallel.dp-replicate", "1")
    words = small.pretrain_arguments(val, val, folder / "pretrain", *flags)
    _make(["-m", "trainer.pretrain", *words], root)
    _make(["-m", "trainer.export", *(str(folder / n) for n in ("pretrain", "tokenizer", "export"))], root)
    shutil.rmtree(folder / ".work", ignore_errors=True)
    export = stage("trainer.export", "IN/pretrain", "IN/tokenizer", "OUT")
    evaluate = stage("trainer.evaluate", "IN/export", "IN/val", "OUT", "--parallel.device", "cpu", "--texts", "0")
    flags = ("--kind", "files", "--files", "IN/tokenizer.json")
    shutil.copytree(tokenizer, root / "own")
    shutil.copy(root / "documents.jsonl/documents.jsonl", root / "own")
    own = stage("dataprep.tokenizer", "IN/documents.jsonl", "OUT", *flags)
    unpacked = stage("dataprep.export_tokens", "IN/val", "OUT")
    step = "pretrain/step-00000004"
    return [
        ("evaluate config.json", folder, "export/config.json", evaluate),
        ("evaluate model.safetensors", folder, "export/model.safetensors", evaluate),
        ("evaluate tokenizer.json", folder, "export/tokenizer.json", evaluate),
        ("evaluate tokens", folder, "val/part-00000.arrow", evaluate),
        ("export_tokens tokens", folder, "val/part-00000.arrow", unpacked),
        ("export index", folder, f"{step}/.metadata", export),
        ("export weights", folder, f"{step}/__0_0.distcp", export),
        ("export run.json", folder, f"{step}/run.json", export),
        ("tokenizer tokenizer.json", root / "own", "tokenizer.json", own),
        ("export tokenizer.json", folder, "tokenizer/tokenizer.json", export),
    ]


def _make(words: list[str], folder: Path) -> None:
    end = Running(words, folder).end()
    if end.status:
        raise SystemExit(f"{' '.join(words)}: {end.said}")
