"""Where a text comes from: its longest spans that occur in the training tokens, and what is known of each place.

`python -m pipelines trace SENTENCE` prints `trace`. The tokens of a sentence are looked up in the suffix arrays of
stage `suffix_array` (pipelines/spans.py). Of the documents, the ledger says what became of them, and `trainer.batches`
in which steps their tokens were.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.documents import damage_of, part_files
from pipelines.errors import ConfigError, UserError
from pipelines.project.explain import find_tokenizer, matching_rows
from pipelines.project.graph import GraphStage, stage_modules
from pipelines.spans import Span, find_spans
from pipelines.suffixes import Place, SuffixArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_TOKENS = 4096
"""Most tokens of a sentence: each is looked up by itself."""
MOST_DUPLICATES = 3
"""Removed duplicates of a document that are named one by one."""
PASSED = ("urls", "download", "extract", "clean", "remove_duplicates", "decontaminate")
"""Stages that a document in the training tokens has passed, as the ledger names them."""
_KEYS = ("doc_id", "survivor")
_COLUMNS = ("doc_id", "url", "source", "fate", "stage", "rule", "value", "cluster", "survivor", "shard", "offset")


@dataclass(frozen=True, slots=True)
class Shown:
    """How much of what is found is shown."""

    min_tokens: int
    spans: int
    places: int


def trace(sentence: str, shown: Shown, stages: list[GraphStage]) -> Iterator[str]:
    """Yield the lines about a sentence. Raises UserError for one that cannot be looked up, and without an index."""
    arrays = open_arrays(stages)
    tokenizer = find_tokenizer(arrays[0].meta, stages)
    if tokenizer is None:
        raise UserError(
            f"{arrays[0].tokens}: no stage of this project's graph has the tokenizer that made these shards, so the "
            "sentence cannot be looked up in them; run tokenizer again"
        )
    require_usable(sentence, tokenizer, shown.min_tokens)
    found = find_spans(sentence, tokenizer, arrays)
    spans = sorted((span for span in found if len(span.ids) >= shown.min_tokens), key=lambda span: -len(span.ids))
    if not spans:
        longest = max(found, key=lambda span: len(span.ids), default=None)
        nearest = f"; the longest that does has {len(longest.ids)}: {_quoted(sentence, longest)}" if longest else ""
        yield f"no {shown.min_tokens} tokens of the sentence occur together in {_names(arrays)}{nearest}"
        return
    at = [
        [(array, place) for array in arrays for place in array.first(span.ids, shown.places)]
        for span in spans[: shown.spans]
    ]
    at = [places[: shown.places] for places in at]
    with ThreadPoolExecutor(1) as pool:  # both wait, for files and for a process
        seen_by = pool.submit(steps, spans, at, stages)
        about = Documents.of({place.doc_id for places in at for _, place in places}, stages)
    seen = seen_by.result()
    told: set[str] = set()
    """Documents of which all has been said."""
    for span, places in zip(spans, at, strict=False):
        count = sum(array.count(span.ids) for array in arrays)
        yield from _span_lines(sentence, span, places, count, about, seen, told)
    if len(spans) > shown.spans:
        yield f"and {len(spans) - shown.spans} spans that are no longer; --spans {len(spans)} shows all"


def _span_lines(
    sentence: str,
    span: Span,
    places: Sequence[tuple[SuffixArray, Place]],
    count: int,
    about: "Documents",
    seen: dict[tuple[Path, int, int], str],
    told: set[str],
) -> Iterator[str]:
    where = f"{count:,} places" if count > 1 else "1 place"
    first = f", of which the first {len(places)}" if count > len(places) else ""
    yield f"{_quoted(sentence, span)}: {len(span.ids)} tokens, at {where}{first}"
    for array, place in places:
        last = place.index + len(span.ids) - 1
        path = place.shard.path
        yield f"  {path.parent.name}/{path.name}: document {place.row}, tokens {place.index} to {last} of it"
        facts = [("document", place.doc_id), *about.facts(place.doc_id)]
        if place.doc_id in told:
            facts = [("document", f"{place.doc_id}, as above")]
        told.add(place.doc_id)
        if said := seen.get((array.tokens, place.in_folder, len(span.ids))):
            facts.append(("steps", said))
        yield from (f"    {word:10} {fact}" for word, fact in facts)


def _quoted(sentence: str, span: Span) -> str:
    return f'"{sentence[span.start : span.end].strip()}"'


def _names(arrays: Sequence[SuffixArray]) -> str:
    return " and ".join(str(array.tokens) for array in arrays)


def open_arrays(stages: list[GraphStage]) -> list[SuffixArray]:
    """Open the index of each token folder that the graph indexes. Raises UserError if there is none, or a stale one."""
    indexing = [stage for stage in stages if stage.name.partition("@")[0] == "suffix_array"]
    if not indexing:
        raise UserError(
            "trace: this project has no index of its training tokens; let the graph build one: "
            "python -m pipelines set 'corpus.traced=[train]' && dvc repro suffix_array@train"
        )
    for stage in indexing:
        if not stage.outs[0].exists():
            raise UserError(f"{stage.outs[0]}: not there yet; run dvc repro {stage.name}")
    return [SuffixArray(stage.outs[0], stage.deps[0]) for stage in indexing]


def require_usable(sentence: str, tokenizer: "Tokenizer", min_tokens: int) -> None:
    """Raise ConfigError for a sentence that is no text, or has fewer tokens than `min_tokens`, or too many."""
    try:
        sentence.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"trace: character {error.start} of the sentence is a byte that is not UTF-8, which no token stands for; "
            "leave it out, or convert the sentence"
        ) from None
    if not sentence.strip():
        raise ConfigError(
            "trace: the sentence is empty; give the text to look for, or - to read it from standard input"
        )
    tokens = len(tokenizer.encode(sentence, add_special_tokens=False).ids)
    if tokens < min_tokens:
        size = f"{tokens} tokens" if tokens > 1 else "1 token"
        raise ConfigError(
            f"trace: the sentence has {size}, fewer than --min-tokens {min_tokens}; give more of it, or "
            f"--min-tokens {tokens}"
        )
    if tokens > MOST_TOKENS:
        raise ConfigError(
            f"trace: the sentence has {tokens:,} tokens, more than {MOST_TOKENS:,}; look for a part of it"
        )


@dataclass(frozen=True, slots=True)
class Documents:
    """What is known of some documents."""

    rows: dict[str, list[dict[str, Any]]]
    """Document id in hex -> its rows in the ledger, or in the documents that were split if there is no ledger."""
    duplicates: dict[str, list[dict[str, Any]]]
    """Document id -> the ledger's rows of those that were removed in its favour."""
    passed: tuple[str, ...]
    ledger: Path | None
    """None: there is none."""

    @classmethod
    def of(cls, doc_ids: set[str], stages: list[GraphStage]) -> "Documents":
        """Look documents up."""
        ledgers = [out for stage in stages if stage.name == "ledger" for out in stage.outs if part_files(out)]
        passed = tuple(name for name in PASSED if any(stage.name == name for stage in stages))
        found: dict[str, list[dict[str, Any]]] = {}
        duplicates: dict[str, list[dict[str, Any]]] = {}
        if not ledgers:
            ids = {bytes.fromhex(doc_id) for doc_id in doc_ids}
            files = (
                file for stage in stages if stage.name == "split" for out in stage.outs for file in part_files(out)
            )
            for row in (row for file in files for row in matching_rows(file, ids, set())):
                found.setdefault(row["doc_id"].hex(), []).append(row)
            return cls(found, duplicates, passed, None)
        for file in part_files(ledgers[0]):
            for row in ledger_rows(file, doc_ids):
                if row["doc_id"] in doc_ids:
                    found.setdefault(row["doc_id"], []).append(row)
                elif row["rule"]:
                    duplicates.setdefault(row["survivor"], []).append(row)
        return cls(found, duplicates, passed, ledgers[0])

    def facts(self, doc_id: str) -> Iterator[tuple[str, str]]:
        """Yield (word, fact) pairs about a document."""
        rows = self.rows.get(doc_id, [])
        for url in dict.fromkeys(row["url"] for row in rows):
            sources = sorted({row["source"] for row in rows if row["url"] == url and row["source"]})
            yield "url", f"{url} (source {', '.join(sources) or 'unknown'})"
        if self.ledger is None:
            yield "verdicts", "not known: there is no ledger yet; dvc repro ledger"
            return
        if not rows:
            yield "verdicts", f"not known: {self.ledger} does not have this document; dvc repro ledger"
        for verdict in dict.fromkeys(map(self._verdict, rows)):
            yield "verdicts", verdict
        removed = self.duplicates.get(doc_id, [])
        for row in removed[:MOST_DUPLICATES]:
            yield "duplicate", f"{row['url']} rejected by {row['stage']}: {row['rule']}, {row['value']}"
        if len(removed) > MOST_DUPLICATES:
            yield "duplicate", f"and {len(removed) - MOST_DUPLICATES} more"

    def _verdict(self, row: dict[str, Any]) -> str:
        where = f"row {row['offset']} of {row['shard']}"
        if row["rule"]:
            return f"rejected by {row['stage']}: {row['rule']}, {row['value']} ({where})"
        kept = f"kept by {', '.join(self.passed)}; " if self.passed else ""
        return f"{kept}{row['stage']}: {row['fate']} ({where})"


def ledger_rows(file: Path, doc_ids: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a part of the ledger of these documents, and of what was removed in their favour."""
    wanted = pc.SetLookupOptions(pa.array(sorted(doc_ids), pa.string()))
    with damage_of(file), pq.ParquetFile(str(file)) as opened:
        for group in range(opened.metadata.num_row_groups):
            keys = opened.read_row_group(
                group, columns=list(_KEYS)
            )  # first these: a ledger has every document ever seen
            masks = [pc.call_function("is_in", [keys[name]], wanted) for name in _KEYS]
            mask = pc.call_function("or", masks)
            if pc.call_function("any", [mask]).as_py():
                yield from opened.read_row_group(group, columns=list(_COLUMNS)).filter(mask).to_pylist()


def steps(
    spans: Sequence[Span], at: Sequence[Sequence[tuple[SuffixArray, Place]]], stages: list[GraphStage]
) -> dict[tuple[Path, int, int], str]:
    """Return (token folder, first token, tokens) -> the steps of the graph's pretraining that saw them, in words.

    Nothing is said of folders that the graph does not train on.
    """
    training = next((stage for stage in stages if stage.name == "pretrain"), None)
    if training is None:
        return {}
    tokens, run = training.deps[0], training.outs[0]
    wanted = [
        (place.in_folder, len(span.ids))
        for span, places in zip(spans, at, strict=False)
        for array, place in places
        if array.tokens == tokens
    ]
    if not wanted:
        return {}
    if not run.exists():
        said = [f"not known: {run} is not there yet"] * len(wanted)
    else:
        package = stage_modules()["pretrain"].partition(".")[0]  # in another process: nothing here imports the trainer
        words = [f"{start}:{length}" for start, length in wanted]
        command = [sys.executable, "-m", f"{package}.batches", "--tokens", ",".join(words), str(run), str(tokens)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        lines = done.stdout.splitlines()
        problem = "; ".join(done.stderr.split("\n")).strip("; ").removeprefix("error: ")
        said = (
            [line.partition(" ")[2] for line in lines]
            if not done.returncode
            else [f"not known: {problem}"] * len(wanted)
        )
    return {(tokens, *each): line for each, line in zip(wanted, said, strict=True)}
