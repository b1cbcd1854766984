"""Megatron's pairs: a real one decodes to exactly the known texts; every defect is one clear line."""

import json
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from dataprep.readers.megatron import read_megatron
from dataprep.readers.records import Broken, Record, Text
from dataprep.text.tokenizers import TextEncoder, byte_level
from pipelines.errors import UserError
from tests.samples import Data

TEXTS = ["Plain words.", "déjà vu, 日本語, 🙂!\n\n  Tabs\tand\0more.", "The last <|endoftext|> in the middle."]


def write_pair(
    folder: Path, documents: Sequence[Sequence[Sequence[int]]], code: int = 8, dtype: str = "<u2", **header: int
) -> Path:
    """A pair as Megatron writes it: documents are lists of sequences of ids."""
    sequences = [np.array(ids, dtype) for document in documents for ids in document]
    lengths = np.array([len(ids) for ids in sequences], "<i4")
    offsets = np.array([0, *np.cumsum([ids.nbytes for ids in sequences])[:-1]], "<i8")[: len(sequences)]
    bounds = np.cumsum([0, *(len(document) for document in documents)]).astype("<i8")
    (folder / "a.bin").write_bytes(b"".join(ids.tobytes() for ids in sequences))
    head = struct.pack("<9sQBQQ", b"MMIDIDX", header.get("version", 1), code, len(sequences), len(bounds))
    (folder / "a.idx").write_bytes(head + lengths.tobytes() + offsets.tobytes() + bounds.tobytes())
    return folder / "a.bin"


def pair_of(folder: Path, tokenizer: Path, texts: Sequence[str]) -> Path:
    """A pair of these texts, each ended, with its tokenizer beside it."""
    shutil.copy(tokenizer / "tokenizer.json", folder)
    encoder = TextEncoder.load(tokenizer)
    return write_pair(folder, [[[*ids.tolist(), encoder.meta.end_of_text]] for ids in encoder.encode(texts)])


def texts_of(records: list[Record]) -> list[str]:
    return [record.text for record in records if isinstance(record, Text)]


def test_a_whole_pair_gives_exactly_its_texts(data: Data) -> None:
    records = list(read_megatron(data.openwebtext / "meg-gpt2-openwebtext_text_document.bin"))
    assert len(records) == (1000 if data.real else 200)
    assert texts_of(records) == data.documents()


def test_what_was_encoded_comes_back_to_the_last_byte(tmp_path: Path, trained: Path) -> None:
    assert texts_of(list(read_megatron(pair_of(tmp_path, trained, TEXTS)))) == TEXTS
    assert texts_of(list(read_megatron(tmp_path / "a.idx", trained))) == TEXTS


def test_the_tokenizers_files_may_be_called_as_megatron_calls_them(tmp_path: Path, trained: Path) -> None:
    file = pair_of(tmp_path, trained, TEXTS)
    settings = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").unlink()
    vocabulary = settings["model"]["vocab"] | {each["content"]: each["id"] for each in settings["added_tokens"]}
    (tmp_path / "gpt2-vocab.json").write_text(json.dumps(vocabulary))
    merges = "\n".join(" ".join(pair) for pair in settings["model"]["merges"])
    (tmp_path / "gpt2-merges.txt").write_text(f"#version: 0.2\n{merges}\n")
    assert texts_of(list(read_megatron(file))) == TEXTS


@pytest.mark.parametrize(("code", "dtype"), [(3, "<i2"), (4, "<i4"), (5, "<i8"), (8, "<u2")])
def test_a_document_is_all_its_sequences_in_any_integer_type(
    code: int, dtype: str, tmp_path: Path, trained: Path
) -> None:
    encoder = TextEncoder.load(trained)
    first, second = ([part.tolist() for part in encoder.encode(texts)] for texts in (["One. ", "Two."], ["Three."]))
    end = [encoder.meta.end_of_text]
    file = write_pair(tmp_path, [[*first, end], [second[0] + end], [end], []], code, dtype)
    records = list(read_megatron(file, trained))
    assert texts_of(records) == ["One. Two.", "Three."]
    assert [r.rule for r in records if isinstance(r, Broken)] == ["empty_text", "empty_text"]


def test_tokens_that_are_no_text_are_counted(tmp_path: Path, trained: Path) -> None:
    encoder = TextEncoder.load(trained)
    half = encoder.encode(["🙂"])[0].tolist()[:1]
    file = write_pair(tmp_path, [[half], [[60_000]], [encoder.encode(["good"])[0].tolist()]])
    records = list(read_megatron(file, trained))
    assert [getattr(record, "rule", "text") for record in records] == ["invalid_utf8", "unknown_token", "text"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "a.bin").write_bytes((f / "a.bin").read_bytes()[:-2]), "the file is cut off or belongs to"),
        (lambda f: (f / "a.bin").unlink(), r"a.bin: no such file; a Megatron .idx needs its .bin"),
        (lambda f: (f / "a.idx").unlink(), r"a.idx: no such file; a Megatron .bin needs its .idx"),
        (lambda f: (f / "a.idx").write_bytes((f / "a.idx").read_bytes()[:-8]), "where its header says"),
        (lambda f: (f / "a.idx").write_bytes(b"MMIDIDX"), "does not begin with MMIDIDX"),
        (lambda f: (f / "a.idx").write_bytes(b"PK\x03\x04" + bytes(60)), "does not begin with MMIDIDX"),
        (lambda f: (f / "a.idx").write_bytes(b"TNTIDX\x00\x00" + bytes(60)), "older index format"),
        (lambda f: write_pair(f, [[[1]]], code=6, dtype="<f8"), "dtype code 6"),
        (lambda f: write_pair(f, [[[1]]], version=2), "version 2"),
        (lambda f: (f / "tokenizer.json").unlink(), "holds no tokenizer"),
    ],
)
def test_a_defect_is_one_clear_line(damage: object, message: str, tmp_path: Path, trained: Path) -> None:
    folder = tmp_path / "pair"
    folder.mkdir()
    file = pair_of(folder, trained, TEXTS)
    assert callable(damage)
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        list(read_megatron(file))
    assert "\n" not in str(caught.value)


def test_boundaries_that_make_no_sense_are_refused(tmp_path: Path, trained: Path) -> None:
    file = pair_of(tmp_path, trained, TEXTS)
    data = bytearray((tmp_path / "a.idx").read_bytes())
    data[-16:-8] = struct.pack("<q", 9)
    (tmp_path / "a.idx").write_bytes(data)
    with pytest.raises(UserError, match="document boundaries do not cover"):
        list(read_megatron(file))


def test_a_tokenizer_that_loses_text_is_refused(tmp_path: Path, trained: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    file = pair_of(tmp_path, trained, TEXTS)
    Tokenizer(WordLevel({"<|endoftext|>": 0, "word": 1}, unk_token="word")).save(str(tmp_path / "words.json"))
    with pytest.raises(UserError, match="not a byte-level BPE"):
        list(read_megatron(file, tmp_path / "words.json"))


def test_gpt2s_alphabet_is_the_one_that_tokenizers_uses() -> None:
    """Each byte alone, through the library's own alphabet and back through ours."""
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    from dataprep.readers.megatron import _byte_of_letter

    letters = _byte_of_letter()
    assert letters.keys() == set(ByteLevel.alphabet())
    pieces = byte_level(BPE()).pre_tokenizer
    assert pieces is not None
    for text in ("é\x00\x7f\xad 日🙂\n\t", "".join(map(chr, range(0x20, 0x3000, 7)))):
        mapped = "".join(piece for piece, _ in pieces.pre_tokenize_str(text))
        assert bytes(letters[letter] for letter in mapped) == text.encode()


def test_an_offset_near_the_end_of_all_numbers_is_one_clear_line(tmp_path: Path) -> None:
    """Offset and length together overflow, and look small."""
    file = write_pair(tmp_path, [[[1, 2, 3]]])
    index = bytearray((tmp_path / "a.idx").read_bytes())
    struct.pack_into("<q", index, len(index) - 24, 2**63 - 2)
    (tmp_path / "a.idx").write_bytes(index)
    with pytest.raises(UserError, match=r"its index reaches to byte 9223372036854775806"):
        list(read_megatron(file, tmp_path))
