"""WARC segments and fetch log of a range of the URL list, written from its plan.

A plan says for each URL of the range, in order, where its outcome is stored, or why it was never requested. Nothing
is compressed or decompressed here: a segment is a `warcinfo` record followed by the members of its pages as they
were packed. Equal plans give equal files, since a `RecordRef` identifies its record by checksum.
"""

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from dataprep.download.outcomes import PAGE, Outcome, Packed
from dataprep.download.record_log import RecordRef, read_outcome, read_packed
from dataprep.download.url_list import FORGET_KEY
from pipelines import store
from pipelines.command import Part
from pipelines.documents import REJECTED, REJECTED_SCHEMA, TableWriter
from pipelines.forgotten import FORGOTTEN, ForgottenPages
from pipelines.manifest import Counts

_OPEN_LOGS = 64
FETCH_LOG_SCHEMA = pa.schema(
    [
        ("url", pa.string()),
        ("rule", pa.string()),
        ("value", pa.string()),
        ("status", pa.int32()),
        ("final_url", pa.string()),
        ("redirects", pa.list_(pa.string())),
        ("bytes", pa.int64()),
        ("sha256", pa.binary(32)),
        ("attempts", pa.int32()),
        ("address", pa.string()),
        ("started", pa.string()),
        ("elapsed_ms", pa.int64()),
        ("note", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Answers:
    """A plan for each segment, and the folder of the logs whose records the plans name."""

    plans: list[Path]
    logs: Path


def plan_line(entry: RecordRef | Outcome) -> bytes:
    """Return one line of a plan: where the outcome of a URL is stored, or the outcome of one that was never fetched."""
    if isinstance(entry, RecordRef):
        return json.dumps([entry.log, entry.offset, entry.checksum]).encode() + b"\n"
    return json.dumps([entry.url, entry.rule, entry.value]).encode() + b"\n"


def read_plan(plan: Path) -> Iterator[RecordRef | Outcome]:
    """Yield the entries of a plan, in order."""
    for line in store.read_lines(plan):
        first, second, third = json.loads(line)
        yield (
            RecordRef(first, second, third) if isinstance(second, int) else Outcome(url=first, rule=second, value=third)
        )


class PlanReader:
    """Reads the outcomes that a plan names, in order; keeps a few logs open.

    A page that is on the list `forget`, under its own URL or the one that answered, has the rule `forgotten`: a listed
    URL may have been redirected there, and a replay of a whole archive has no list.
    """

    def __init__(self, folder: Path, forget: str = "") -> None:
        self._folder = folder
        self._forgotten = ForgottenPages(forget)
        self._logs: OrderedDict[str, BinaryIO] = OrderedDict()

    def outcomes(self, plan: Path) -> Iterator[Outcome]:
        """Yield the outcomes alone, without reading their pages."""
        for entry in read_plan(plan):
            yield self._judged(read_outcome(self._log(entry), entry)) if isinstance(entry, RecordRef) else entry

    def packed(self, plan: Path) -> Iterator[Packed]:
        """Yield the outcomes with their WARC members."""
        for entry in read_plan(plan):
            if isinstance(entry, RecordRef):
                packed = read_packed(self._log(entry), entry)
                yield dataclasses.replace(packed, outcome=self._judged(packed.outcome))
            else:
                yield Packed(entry)

    def _judged(self, outcome: Outcome) -> Outcome:
        covers = self._forgotten.covers
        if outcome.rule != PAGE or not (covers(outcome.url) or covers(outcome.final_url)):
            return outcome
        return dataclasses.replace(outcome, rule=FORGOTTEN, value=FORGET_KEY, bytes=0, sha256="")

    def __enter__(self) -> "PlanReader":
        return self

    def __exit__(self, *trace: object) -> None:
        for log in self._logs.values():
            log.close()

    def _log(self, ref: RecordRef) -> BinaryIO:
        if ref.log in self._logs:
            self._logs.move_to_end(ref.log)
        else:
            self._logs[ref.log] = (self._folder / ref.log).open("rb")
            if len(self._logs) > _OPEN_LOGS:
                self._logs.popitem(last=False)[1].close()
        return self._logs[ref.log]


def write_segment(part: Part, folder: Path, logs: str, segment_bytes: int, forget: str = "") -> Counts:
    """Write the WARC files and the rejected rows of one range."""
    with PlanReader(Path(logs), forget) as reader, SegmentWriter(folder, part.name, segment_bytes) as segment:
        for packed in reader.packed(part.file):
            segment.write(packed)
    return segment.counts


class SegmentWriter:
    """Writes `<name>.warc.gz`, and `<name>_0001.warc.gz` and so on if one file would be too large."""

    def __init__(self, folder: Path, name: str, segment_bytes: int) -> None:
        self.counts = Counts()
        self._folder = folder
        self._name = name
        self._segment_bytes = segment_bytes
        self._files = 0
        self._file: BinaryIO | None = None
        self._rejected: TableWriter | None = None

    def write(self, packed: Packed) -> None:
        """Append a page, or reject a URL without one."""
        self.counts.rows_in += 1
        if packed.outcome.rule != PAGE:
            self._reject(packed.outcome)
            return
        if self._file and self._file.tell() + len(packed.members) > self._segment_bytes:
            self._file.close()
            self._file = None
        self._file = self._file or self._open_file(packed.outcome.started)
        self._file.write(packed.members)
        self.counts.rows_out += 1
        self.counts.total("page_bytes", packed.outcome.bytes)

    def _open_file(self, date: str) -> BinaryIO:
        from dataprep.download.warc_writer import warcinfo

        # "_" sorts after ".", so the files are in the order of the list.
        name = f"{self._name}_{self._files:04d}.warc.gz" if self._files else f"{self._name}.warc.gz"
        file = (self._folder / name).open("wb")
        file.write(warcinfo(name, date))
        self._files += 1
        return file

    def _reject(self, outcome: Outcome) -> None:
        self._rejected = self._rejected or TableWriter(
            self._folder / REJECTED / f"{self._name}.parquet", REJECTED_SCHEMA
        )
        self._rejected.write({"doc_id": None, "url": outcome.url, "rule": outcome.rule, "value": outcome.value})
        self.counts.reject(outcome.rule)
        self.counts.total("transient", int(outcome.transient))

    def __enter__(self) -> "SegmentWriter":
        return self

    def __exit__(self, *trace: object) -> None:
        if self._rejected:
            self._rejected.__exit__(None, None, None)
        if self._file or not self._files:
            (self._file or (self._folder / f"{self._name}.warc.gz").open("wb")).close()


def write_fetch_log(part: Part, folder: Path, logs: str, subfolder: str, forget: str = "") -> Counts:
    """Write one row for every URL of a range: what was requested, what the answer was, how long it took."""
    with (
        PlanReader(Path(logs), forget) as reader,
        TableWriter(folder / f"{subfolder}{part.name}.parquet", FETCH_LOG_SCHEMA) as table,
    ):
        for outcome in reader.outcomes(part.file):
            row = {name: getattr(outcome, name) for name in FETCH_LOG_SCHEMA.names}
            table.write({**row, "sha256": bytes.fromhex(outcome.sha256) or None})
    return Counts() if subfolder else Counts(rows_in=table.rows, rows_out=table.rows)
