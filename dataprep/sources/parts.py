"""Parts of the work: a part file in scratch says what is read of which files, and how.

A large archive is several parts. Where it can be begun in the middle is found by reading it once as
the extraction itself would, so that the parts together are what the whole would be, also when it is damaged.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dataprep.sources.finding import ARCHIVES, Input, is_arc
from dataprep.sources.passed_names import given_name
from dataprep.sources.records import Broken, Record
from pipelines import store
from pipelines.command import Part
from pipelines.documents import UNREADABLE_FILE, reason_of
from pipelines.errors import UserError
from pipelines.manifest import Counts
from pipelines.run import StageRun

SPLIT_BYTES = 1 << 27
"""Size of an archive's parts as it lies on disk: part of the result, so a constant and not an option."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one part reads."""

    kind: str
    names: tuple[str, ...]
    """Of the files, as they are called in documents."""
    source: str
    """Where documents come from that say nothing of it."""
    start: int = 0
    end: int | None = None
    """The offsets where the records of an archive begin that belong to this part."""

    def save(self, path: Path) -> None:
        """Write it to a file, which is an input of the part like its data."""
        store.write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> "Reading":
        """The reverse of `save`."""
        value = store.read_json(path)
        value["names"] = tuple(value["names"])
        return cls(**value)


def make_parts(run: StageRun, inputs: Sequence[Input], root: Path, max_bytes: int) -> list[Part]:
    """All parts in order; the first file of each is its Reading."""
    splits = find_splits(run, inputs, max_bytes)
    parts: list[Part] = []
    for each in inputs:
        source = given_name(each.files[0].name) if len(each.files) == 1 else root.name
        starts: list[int] = splits.get(each.files[0], [0])
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            name = f"part-{len(parts):05d}"
            file = run.scratch / "parts" / f"{name}.json"
            Reading(each.kind, each.names, source, start, end).save(file)
            parts.append(Part(name, (file, *each.files)))
    return parts


def find_splits(run: StageRun, inputs: Sequence[Input], max_bytes: int) -> dict[Path, list[int]]:
    """Where the parts of the large archives begin."""
    large = [each for each in inputs if each.kind in ARCHIVES and each.files[0].stat().st_size > SPLIT_BYTES]
    parts = [Part(f"{each.kind}-{i:05d}", each.files) for i, each in enumerate(large)]
    run.map(split_archive, parts, max_bytes, SPLIT_BYTES, into="splits")
    return {part.file: store.read_json(run.scratch / "splits" / f"{part.name}.json") for part in parts}


def split_archive(part: Part, folder: Path, max_bytes: int, split_bytes: int) -> Counts:
    """The offsets of an archive where records begin that can be read without those before, `split_bytes` apart."""
    from dataprep.sources.arc_reader import ARC
    from dataprep.sources.frames import read_frames
    from dataprep.sources.warc_reader import EXTRA_BYTES, WARC

    dialect = ARC if is_arc(part.file) else WARC
    starts = [0]
    with suppress(UserError):  # a file that is no archive is one part, whose reading says so
        for frame in read_frames(part.file, dialect, max_bytes + EXTRA_BYTES):
            if frame.head and frame.offset is not None and frame.offset >= starts[-1] + split_bytes:
                starts.append(frame.offset)
    store.write_json(folder / f"{part.name}.json", starts)
    return Counts()


def read_part(
    reading: Reading, files: Sequence[Path], max_bytes: int, keys: tuple[str, str], tokenizer: Path | None
) -> Iterator[Record]:
    """Every record of a part, in order; `keys` name the text and the URL, `tokenizer` undoes a Megatron .bin.

    A file of another kind than its name says, or one that cannot be read to its end, gives an unreadable_file.
    """
    try:
        yield from _read(reading, files, max_bytes, keys, tokenizer)
    except UserError as error:
        yield Broken(reading.names[0], UNREADABLE_FILE, reason_of(error, files[0]))


def _read(
    reading: Reading, files: Sequence[Path], max_bytes: int, keys: tuple[str, str], tokenizer: Path | None
) -> Iterator[Record]:
    from dataprep.sources import (
        arc_reader,
        html_files,
        jsonl_reader,
        megatron_reader,
        parquet_reader,
        tar_reader,
        text_reader,
        warc_reader,
    )

    file, span = files[0], (reading.start, reading.end)
    match reading.kind:
        case "warc" if is_arc(file):
            yield from arc_reader.read_arc(file, max_bytes, span)
        case "warc" | "wet":
            yield from warc_reader.read_warc(file, max_bytes, span)
        case "html":
            for each, name in zip(files, reading.names, strict=True):
                yield html_files.read_html_file(each, name, max_bytes)
        case "text":
            for each, name in zip(files, reading.names, strict=True):
                yield text_reader.read_plain_file(each, name, max_bytes)
        case "jsonl":
            yield from jsonl_reader.read_json_lines(file, *keys)
        case "parquet":
            yield from parquet_reader.read_parquet(file, *keys)
        case "tar":
            yield from tar_reader.read_tar(file, max_bytes)
        case "megatron":
            yield from megatron_reader.read_megatron(file, tokenizer)
        case unknown:
            raise AssertionError(unknown)
