"""Prints what a quality model says of documents, and which of their words speak most for and against each.

    python -m dataprep.show_quality quality/model.arrow raw.jsonl
    python -m dataprep.show_quality quality/model.arrow data/web/extract --only http://mill.test/wheel --words 20
    python -m dataprep.show_quality quality/model.arrow data/web/clean/rejected --documents 3

Documents are JSON lines, or a folder of shards, such as an output of `extract`, or `rejected` of `clean`. After each
word or pair of neighbouring words stands what it adds to the logit of the quality; every distinct one of the document
adds something, and the bias is added once. The texts are judged as they are: `clean` judges them after its edits.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from dataprep.quality.model import DIGITS, QualityModel, Word
from pipelines import exits
from pipelines.arguments import Parser
from pipelines.called import called
from pipelines.config import Count
from pipelines.documents import Row, is_jsonl, jsonl_files, part_files, read_rows
from pipelines.errors import ConfigError, UserError
from pipelines.jsonl import BrokenLineError, read_jsonl
from pipelines.terminal import print_error, print_line

DOCUMENTS, WORDS = 10, 8
_COLUMNS = ("doc_id", "url", "text")


def main(arguments: Sequence[str]) -> int:
    """Print each document; return the exit status."""
    parser = Parser(prog=called("dataprep.show_quality"), description=__doc__)
    parser.add_argument("model", type=Path, help="model file that train_quality wrote")
    parser.add_argument("documents", type=Path, help="JSONL file, or folder of JSONL files or of document shards")
    parser.add_argument("--documents", dest="most", type=int, default=DOCUMENTS, help="most documents (default: 10)")
    parser.add_argument("--words", type=int, default=WORDS, help="most words and pairs on each side (default: 8)")
    parser.add_argument("--only", default="", help="only the documents of this URL or document id")
    parser.hints = {"--documents": Count, "--words": Count}
    try:
        call = parser.parse_args(arguments)
        model = QualityModel.load(call.model)
        found = 0
        for row in islice(chosen(call.documents, call.only), call.most):
            found += 1
            for line in explained(model, row, call.words):
                print_line(line)
        if not found:
            what = f"no document {call.only}" if call.only else "holds no document"
            raise UserError(f"{call.documents}: {what}")
    except UserError as error:
        print_error(error)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


def chosen(path: Path, document: str) -> Iterator[Row]:
    """Yield the documents of a URL or id, or all."""
    for row in rows(path):
        if not document or document in (row["url"], row["doc_id"].hex()):
            yield row


def rows(path: Path) -> Iterator[Row]:
    """Yield the documents of a file or folder; lines that are none are passed over."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; check the path")
    if path.is_dir() and (shards := part_files(path)):
        for shard in shards:
            yield from read_rows(shard, _COLUMNS)
        return
    files = jsonl_files(path)[0] if path.is_dir() else [path]
    if not files or not all(map(is_jsonl, files)):
        raise UserError(f"{path}: holds neither document shards (part-*.parquet) nor JSON lines (.jsonl)")
    for file in files:
        yield from (row for _, row in read_jsonl(file) if not isinstance(row, BrokenLineError))


def explained(model: QualityModel, row: Row, most: int) -> Iterator[str]:
    """Yield the lines about one document."""
    found = model.explain(row["text"], most)
    name = f"{row['doc_id'].hex()} {row['url'] or ''}".rstrip()
    yield f"{name}: quality {model.quality(row['text']):.{DIGITS}f}"
    if not found.number:
        yield "  no words"
        return
    yield f"  for:     {_listed(found.speaking_for)}"
    yield f"  against: {_listed(found.against)}"
    yield f"  all {found.number:,} words and pairs: {found.total:+.3f}, bias: {model.scale * model.bias:+.3f}"


def _listed(words: Sequence[Word]) -> str:
    return ", ".join(f"{word.text} {word.weight:+.3f}" for word in words) or "nothing"


if __name__ == "__main__":
    exits.run(lambda: main(sys.argv[1:]))
