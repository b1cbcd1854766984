"""Stage `decontaminate`: find documents that hold GLUE items of the validation and test splits.

Documents and the folder of glue_download -> the documents without those that hold an item (in rejected/
by rule glue_overlap), and a second output: every hit in part-*.parquet (task, split, index, doc_id, url,
ngram, action), the n-grams too common to count in ignored/, and in clean/TASK.json the rows of each
split that were not found in any document.

An item is found by its runs of 13 words; one of 8 to 12 words by its whole text. Shorter ones are found
only as a sentence of their own, and are reported but never drop a document.

Run: python -m dataprep.decontaminate documents.jsonl data/glue/all clean.jsonl contamination
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dataprep.decontamination.hits import CONTAMINATION_SCHEMA, IGNORED_SCHEMA, Findings, count_hits
from dataprep.decontamination.ngrams import HIT, Index, Windows
from dataprep.dedup.shingles import find_words
from dataprep.glue.items import build_index, find_splits
from dataprep.text.folding import fold_case, raw_texts, text_pieces
from pipelines import store
from pipelines.command import Documents, Output, Part, Source, Table
from pipelines.config import Count, given
from pipelines.documents import ShardWriter, TableWriter, extra_fields, read_batches, read_rows
from pipelines.errors import ConfigError
from pipelines.manifest import Counts
from pipelines.run import StageRun
from pipelines.stage import stage_main

VERSION = 1
SHAPED_BY = ("numpy", "pyarrow")

RULE = "glue_overlap"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecontaminateConfig:
    """Which items to look for, by which runs of words, and what to do with the documents that hold them."""

    tasks: tuple[str, ...] = ()
    """GLUE tasks to look for; none looks for all that are there."""
    splits: tuple[str, ...] = ("validation", "test")
    """Splits to look for; validation stands for validation_matched and the like too."""
    ngram: Count = 13
    """Words in a run that gives an item away."""
    min_words: Count = 8
    """Items with fewer words are only reported, where they are a sentence of their own."""
    key_threshold: Count = 10
    """Runs of words that are in this many documents or more do not count."""
    action: Literal["report", "drop"] = "drop"
    """Drop the documents that hold an item, or only report them."""


def decontaminate(
    config: DecontaminateConfig,
    run: StageRun,
    documents: Documents,
    glue: Source,
    output: Table,
    contamination: Output,
) -> dict[str, Any]:
    """Index the items, look for them in every shard, count, then drop and report."""
    windows = Windows(config.ngram, config.min_words)
    if config.min_words > config.ngram:
        raise ConfigError(f"decontaminate.min_words: {config.min_words} is above ngram ({config.ngram}); lower it")
    files = find_splits(glue.path, config.tasks, config.splits) if given(glue.path) else []
    index = run.scratch / "index"
    built = run.step(build_index, "index", files, windows, into="index")
    searched = [Part(part.name, (part.file,)) for part in documents.parts]
    run.map(search_part, searched, index, windows, into="hits")
    hits = [run.scratch / "hits" / f"{part.name}.npy" for part in documents.parts]
    common = run.step(count_part, "counts", hits, index, windows, config.key_threshold, into="counts")
    context = Context(index, run.scratch / "counts", windows, config)
    both = [Part(part.name, (part.file, file)) for part, file in zip(documents.parts, hits, strict=True)]
    run.map(drop_part, both, context, into=output)
    reported = run.map(report_part, both, context, into=contamination)
    clean = run.step(summarise, "summary", hits, context, into=contamination)
    return {**built.totals, **common.totals, **reported.totals, **clean.totals}


@dataclass(frozen=True, slots=True)
class Context:
    """What the last steps share: where the index and the counts are, and the configuration."""

    index: Path
    counts: Path
    windows: Windows
    config: DecontaminateConfig

    def findings(self) -> Findings:
        """The index with what the counts say about it."""
        return Findings(self.index, self.counts, self.windows, self.config.key_threshold)


def search_part(part: Part, folder: Path, index_folder: Path, windows: Windows) -> Counts:
    """All hits in one shard, as an array of HIT."""
    index = Index(index_folder, windows)
    found = [np.empty(0, HIT)]
    first = 0
    for batch in read_batches(part.file, ["text"]):
        for start, texts in text_pieces(batch.column("text")):
            found.append(index.search(find_words(fold_case(raw_texts(texts))), first + start))
        first += batch.num_rows
    np.save(folder / f"{part.name}.npy", np.concatenate(found))
    return Counts()


def count_part(part: Part, folder: Path, index_folder: Path, windows: Windows, threshold: int) -> Counts:
    """In how many documents each key is; `counts-LENGTH.npy`."""
    counts = count_hits([np.load(file, mmap_mode="r") for file in part.files], Index(index_folder, windows))
    totals = Counts()
    for length, documents in counts.items():
        np.save(folder / f"counts-{length:02d}.npy", documents)
        totals.total("ignored_ngrams", int(np.count_nonzero(documents >= threshold)))
    return totals


def drop_part(part: Part, folder: Path, context: Context) -> Counts:
    """One shard without the documents that hold an item. `part.files`: documents, hits."""
    documents, hits_file = part.files
    findings = context.findings()
    dropped = findings.by_row(findings.counting(np.load(hits_file))) if context.config.action == "drop" else {}
    with ShardWriter(folder, part.name, extra_fields(documents)) as shard:
        for number, row in enumerate(read_rows(documents)):
            if number in dropped:
                shard.reject(row, RULE, dropped[number])
            else:
                shard.keep(row)
    return shard.counts


def report_part(part: Part, folder: Path, context: Context) -> Counts:
    """The items found in one shard, with the documents' names. `part.files`: documents, hits."""
    documents, hits_file = part.files
    findings = context.findings()
    hits = findings.counting(np.load(hits_file))
    wanted = set(hits["row"].tolist())
    names = {number: row for number, row in enumerate(read_rows(documents, ["doc_id", "url"])) if number in wanted}
    counts = Counts()
    with TableWriter(folder / f"{part.name}.parquet", CONTAMINATION_SCHEMA) as writer:
        for row in findings.rows(hits):
            drops = row["kind"] != "sentence" and context.config.action == "drop"
            shard = int(part.name.removeprefix("part-"))
            writer.write({**row, **names[row["row"]], "shard": shard, "action": "drop" if drops else "report"})
            counts.total(f"hits_{row['kind']}", 1)
    counts.rows_in, counts.rows_out = writer.rows, writer.rows
    return counts


def summarise(part: Part, folder: Path, context: Context) -> Counts:
    """The ignored n-grams, and for each task the rows of each split that no document holds."""
    findings = context.findings()
    with TableWriter(folder / "ignored" / "part-00000.parquet", IGNORED_SCHEMA) as writer:
        for row in findings.ignored():
            writer.write(row)
    found = np.zeros(len(findings.items), dtype=bool)
    for file in part.files:
        found[findings.found_items(findings.counting(np.load(file)))] = True
    totals = Counts()
    for task, splits in clean_rows(findings, found).items():
        store.write_json(folder / "clean" / f"{task}.json", splits)
        totals.total("clean_items", sum(len(rows) for rows in splits.values()))
    return totals


def clean_rows(findings: Findings, found: np.ndarray[Any, Any]) -> dict[str, dict[str, list[int]]]:
    """Task -> split -> the `index` of every row none of whose texts was found, in ascending order."""
    rows: dict[tuple[str, str], dict[int, bool]] = {}
    columns = (findings.items[name].to_pylist() for name in ("task", "split", "index"))
    for task, split, index, hit in zip(*columns, found.tolist(), strict=True):
        split_rows = rows.setdefault((task, split), {})
        split_rows[index] = split_rows.get(index, True) and not hit
    clean: dict[str, dict[str, list[int]]] = {}
    for (task, split), split_rows in sorted(rows.items()):
        clean.setdefault(task, {})[split] = sorted(index for index, is_clean in split_rows.items() if is_clean)
    return clean


if __name__ == "__main__":
    stage_main("dataprep.decontaminate")
