"""Documents of Megatron-LM's indexed data sets: NAME.bin with the token ids, NAME.idx with each document's position.

The index (Megatron-LM, `megatron/core/datasets/indexed_dataset.py`): magic, version, dtype code, number of sequences
and of document boundaries; then the sequences' lengths, their byte offsets, and the first sequence of each document.
The exact text can be restored only with a byte-level BPE tokenizer such as GPT-2's; its files lie beside the pair, or
the user names them.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dataprep.readers.records import Broken, Record, Text
from pipelines.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Array = np.ndarray[Any, Any]

BIN, IDX = ".bin", ".idx"
TOKENIZER = ".tokenizer"
"""NAME.tokenizer beside a pair is its tokenizer.json."""
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe")
_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\x00\x00"
_OLD_MAGIC = b"TNTIDX\x00\x00"
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}


@dataclass(frozen=True, slots=True)
class Index:
    """The positions of the documents in a .bin file."""

    dtype: np.dtype[Any]
    lengths: Array
    """Tokens of each sequence."""
    offsets: Array
    """Bytes before each sequence."""
    documents: Array
    """The first sequence of each document, and one past the last."""


def read_megatron(file: Path, tokenizer: Path | None = None) -> Iterator[Record]:
    """Yield the documents of a pair in order, each without its end-of-text; `file` is either file of the pair.

    Raises UserError if a file of the pair is missing, truncated or of another kind, or if there is no byte-level
    tokenizer.
    """
    bin_file = file.with_suffix(BIN)
    index = check_pair(file)
    tokens = TokenBytes.load(tokenizer or find_tokenizer(file))
    data: Any = np.memmap(bin_file, np.uint8, mode="r") if bin_file.stat().st_size else b""
    for number, (first, last) in enumerate(zip(index.documents[:-1], index.documents[1:], strict=True), start=1):
        sequences = zip(index.lengths[first:last].tolist(), index.offsets[first:last].tolist(), strict=True)
        ids = [np.frombuffer(data, index.dtype, length, offset) for length, offset in sequences if length]
        yield _document(f"{bin_file.name}:{number}", np.concatenate(ids) if ids else np.empty(0, int), tokens)


def check_pair(file: Path) -> Index:
    """Return the index of a pair; raise UserError if a file is missing, truncated or of another kind."""
    index = read_index(file.with_suffix(IDX))
    _check_bounds(file.with_suffix(BIN), index)
    return index


def is_tokenizer_file(name: str) -> bool:
    """Return whether a file belongs to a tokenizer, by its name: `vocab.json`, `gpt2-merges.txt`."""
    return name in _TOKENIZER_FILES or name.endswith(tuple(f"-{each}" for each in _TOKENIZER_FILES))


def find_tokenizer(file: Path) -> Path:
    """Return the tokenizer of a pair: NAME.tokenizer, or the folder that should have its files."""
    companion = file.with_suffix(TOKENIZER)
    return companion if companion.is_file() else file.parent


def read_index(file: Path) -> Index:
    """Read an .idx file; raise UserError if it is missing, of another kind, or its size contradicts its header."""
    try:
        with file.open("rb") as opened:
            header = opened.read(_HEADER.size)
    except FileNotFoundError:
        raise UserError(f"{file}: no such file; a Megatron .bin needs its .idx beside it") from None
    magic, version, code, sequences, boundaries = _parse_header(file, header)
    dtype = _DTYPES.get(code)
    if magic != _MAGIC or version != 1 or dtype is None:
        raise UserError(
            f"{file}: not a Megatron index that can be read (version {version}, dtype code {code}); expected version "
            f"1 and token ids, dtype {', '.join(map(str, _DTYPES))}"
        )
    expected = _HEADER.size + 12 * sequences + 8 * boundaries
    size = file.stat().st_size
    # Multimodal indexes have one byte more per sequence.
    if size not in (expected, expected + sequences) or not boundaries:
        raise UserError(f"{file}: {size} bytes where its header says {expected}; copy or make the index again")
    data: Any = np.memmap(file, np.uint8, mode="r")
    lengths = np.frombuffer(data, "<i4", sequences, _HEADER.size)
    offsets = np.frombuffer(data, "<i8", sequences, _HEADER.size + 4 * sequences)
    documents = np.frombuffer(data, "<i8", boundaries, _HEADER.size + 12 * sequences)
    if documents[0] != 0 or documents[-1] != sequences or (np.diff(documents) < 0).any():
        raise UserError(f"{file}: its document boundaries do not cover its {sequences} sequences; make the index again")
    return Index(np.dtype(dtype), lengths, offsets, documents)


def _parse_header(file: Path, header: bytes) -> tuple[bytes, int, int, int, int]:
    if header.startswith(_OLD_MAGIC):
        raise UserError(
            f"{file}: Megatron's older index format (TNTIDX); convert the data with its `mmap` implementation"
        )
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        raise UserError(f"{file}: not a Megatron index (it does not begin with MMIDIDX); name the .idx of the .bin")
    return _HEADER.unpack(header)


def _check_bounds(bin_file: Path, index: Index) -> None:
    try:
        size = bin_file.stat().st_size
    except FileNotFoundError:
        raise UserError(f"{bin_file}: no such file; a Megatron .idx needs its .bin beside it") from None
    ends = index.offsets + index.lengths.astype(np.int64) * index.dtype.itemsize
    reach = max(int(index.offsets.max()), int(ends.max())) if len(ends) else 0  # a sum may overflow, an offset cannot
    if len(ends) and (index.lengths.min() < 0 or index.offsets.min() < 0 or reach > size):
        raise UserError(
            f"{bin_file}: {size} bytes, but its index reaches to byte {reach}; the file is cut off or belongs to "
            "another index: copy it again"
        )


def _document(location: str, ids: Array, tokens: "TokenBytes") -> Record:
    if len(ids) and ids[-1] == tokens.end_of_text:
        ids = ids[:-1]
    if not len(ids):
        return Broken(location, "empty_text", "no token but end-of-text")
    if ids.min() < 0 or ids.max() >= len(tokens.known) or not tokens.known[ids].all():
        return Broken(location, "unknown_token", f"token {ids.max()} of a vocabulary of {len(tokens.known)}")
    try:
        text = tokens.decode(ids)
    except UnicodeDecodeError as error:
        return Broken(location, "invalid_utf8", f"not valid UTF-8 at byte {error.start}")
    return Text("", text) if text.strip() else Broken(location, "empty_text", f"{len(text)} blank characters")


def load_byte_level(path: Path) -> "Tokenizer":
    """Load a tokenizer whose tokens are bytes; raise UserError if there is none at `path`, or one of another kind."""
    from tokenizers.decoders import ByteLevel

    from dataprep.text.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(path)
    if not isinstance(tokenizer.decoder, ByteLevel):
        raise UserError(
            f"{path}: not a byte-level BPE, so its tokens do not give back the exact text; start from the text"
        )
    return tokenizer


class TokenBytes:
    """The bytes of each token of a byte-level BPE."""

    def __init__(self, table: list[bytes | None], end_of_text: int) -> None:
        self.known = np.array([token is not None for token in table])
        self.end_of_text = end_of_text
        self._table = [token or b"" for token in table]

    @classmethod
    def load(cls, path: Path) -> "TokenBytes":
        """Read a tokenizer file or folder; raise UserError if there is none, or if it is not byte-level."""
        from dataprep.text.tokenizers import end_of_text_of

        tokenizer = load_byte_level(path)
        letters = _byte_of_letter()
        table: list[bytes | None] = [None] * tokenizer.get_vocab_size()
        for token, number in tokenizer.get_vocab(with_added_tokens=False).items():
            table += [None] * (number + 1 - len(table))
            table[number] = bytes(letters[letter] for letter in token) if letters.keys() >= set(token) else None
        for number, added in tokenizer.get_added_tokens_decoder().items():
            table += [None] * (number + 1 - len(table))
            table[number] = added.content.encode()
        return cls(table, tokenizer.token_to_id(end_of_text_of(path)) or 0)

    def decode(self, ids: Array) -> str:
        """Return the text of known tokens; raise UnicodeDecodeError if their bytes are not UTF-8."""
        table = self._table
        return b"".join([table[number] for number in ids.tolist()]).decode()


def _byte_of_letter() -> dict[str, int]:
    """Return GPT-2's alphabet: printable bytes stand for themselves, the others are U+0100 and up, in their order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
