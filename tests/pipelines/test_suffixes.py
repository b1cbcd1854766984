"""Suffix arrays: every run of tokens is found at all its places, and only in the tokens that were indexed."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipelines import store
from pipelines.errors import UserError
from pipelines.suffixes import SuffixArray
from pipelines.tokens import open_tokens
from tests.dataprep.corpora import run
from tests.dataprep.test_suffix_array import write_shards


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Tokens and their index of several blocks."""
    folder = tmp_path_factory.mktemp("indexed")
    write_shards(folder / "tokens")
    assert run("dataprep.suffix_array", folder / "tokens", folder / "index", "--tokens-per-block", 500) == 0
    assert len(list((folder / "index").glob("*.arrow"))) > 4
    return folder / "index", folder / "tokens"


def places(stream: Sequence[int], wanted: Sequence[int]) -> list[int]:
    return [at for at in range(len(stream)) if stream[at : at + len(wanted)] == wanted]


def test_every_run_is_found_at_all_its_places(indexed: tuple[Path, Path]) -> None:
    array = SuffixArray(*indexed)
    shards = open_tokens(indexed[1])
    stream = np.concatenate([shard.tokens for shard in shards]).tolist()
    rng = np.random.default_rng(1)
    for _ in range(200):
        start, length = int(rng.integers(len(stream) - 20)), int(rng.integers(1, 20))
        wanted = stream[start : start + length]
        if 299 in wanted[:-1]:  # no run goes over the end of a document
            continue
        expected = places(stream, wanted)
        found = array.first(wanted, 10**6)
        assert [place.in_folder for place in found] == expected
        assert array.count(wanted) == len(expected)
        assert [place.in_folder for place in array.first(wanted, 3)] == expected[:3]
        for place in found[:5]:
            begin = int(place.shard.offsets[place.row]) + place.index
            assert place.shard.tokens[begin : begin + length].tolist() == wanted
            assert bytes.fromhex(place.doc_id) == place.shard.doc_ids[place.row]


def test_the_longest_match_is_the_longest(indexed: tuple[Path, Path]) -> None:
    array = SuffixArray(*indexed)
    stream = np.concatenate([shard.tokens for shard in open_tokens(indexed[1])]).tolist()
    rng = np.random.default_rng(2)
    for _ in range(100):
        query = (rng.integers(0, 4, size=12) * 75).tolist()
        expected = next(length for length in range(12, -1, -1) if places(stream, query[:length]))
        assert array.longest(query) == expected
    assert array.longest([7]) == array.longest([]) == array.count([7]) == 0
    document = stream[: stream.index(299)]
    assert array.longest([*document, 7]) == len(document)


def test_a_run_of_a_whole_long_document_is_found(tmp_path: Path) -> None:
    tokens = write_shards(tmp_path / "tokens", shards=1, documents=3, longest=3000)
    assert run("dataprep.suffix_array", tokens, tmp_path / "index") == 0
    array = SuffixArray(tmp_path / "index", tokens)
    (shard,) = open_tokens(tokens)
    for row in range(len(shard)):
        document = shard.tokens[shard.offsets[row] : shard.offsets[row + 1]].tolist()
        assert array.longest(document) == len(document)
        assert [place.row for place in array.first(document, 2)] == [row]


def test_an_index_of_other_tokens_is_refused_and_named(indexed: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_shards(tmp_path / "tokens", documents=41)
    with pytest.raises(UserError, match=r"suffixes-00000-00000.arrow: of other tokens: .*sha256 .*; build it again"):
        SuffixArray(indexed[0], other)
    fewer = write_shards(tmp_path / "fewer", shards=1)
    with pytest.raises(UserError, match="no shard of that name"):
        SuffixArray(indexed[0], fewer)


def test_an_index_of_a_part_of_the_tokens_is_refused(indexed: tuple[Path, Path], tmp_path: Path) -> None:
    index, tokens = indexed
    more = tmp_path / "tokens"
    write_shards(more, shards=4)
    assert store.sha256(more / "part-00002.arrow") == store.sha256(tokens / "part-00002.arrow")
    with pytest.raises(UserError, match=r"has 3,\d* of the [\d,]* tokens .*build it again"):
        SuffixArray(index, more)


def copied(index: Path, folder: Path) -> Path:
    manifest = json.loads((index / "manifest.json").read_text())
    for name in manifest["files"]:
        store.link_or_copy(index / name, folder / name)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def looked_up(array: SuffixArray, query: list[int]) -> tuple[int, int, list[int]]:
    return array.longest(query), array.count(query), [place.in_folder for place in array.first(query, 3)]


@pytest.mark.parametrize("fill", ["zeros", "shuffled", "beyond"])
def test_a_lookup_meets_no_bytes_that_were_changed_under_their_size_without_saying_so(
    tmp_path: Path, fill: str
) -> None:
    """A file that keeps its size and its Arrow frame opens; each lookup is either right or refused."""
    tokens = write_shards(tmp_path / "tokens", shards=1, documents=200)
    assert run("dataprep.suffix_array", tokens, tmp_path / "whole") == 0
    index, whole = copied(tmp_path / "whole", tmp_path / "index"), SuffixArray(tmp_path / "whole", tokens)
    (file,) = index.glob("*.arrow")
    data = np.frombuffer(file.read_bytes(), np.uint8).copy()
    with pa.ipc.open_file(str(file)) as reader:
        starts = reader.get_batch(0).column("start").to_numpy()
    at = data.tobytes().index(starts.tobytes()) + len(starts) // 2 * 4
    part = data[at : at + len(starts) // 4 * 4].view(np.uint32)
    rng = np.random.default_rng(3)
    part[:] = {"zeros": 0 * part, "shuffled": rng.permutation(part), "beyond": part + np.uint32(2**31)}[fill]
    file.unlink()
    file.write_bytes(data.tobytes())
    damaged = SuffixArray(index, tokens)
    stream = open_tokens(tokens)[0].tokens.tolist()
    refusals: set[str] = set()
    for start in range(0, len(stream) - 8, 7):
        query = stream[start : start + 8]
        try:
            found = looked_up(damaged, query)
        except UserError as error:
            refusals.add(str(error))
            continue
        assert found == looked_up(whole, query)
    (said,) = refusals
    assert said.startswith(f"{file}: damaged: its suffixes are in no order (")
    again = f"python -m dataprep.suffix_array {tokens} {index} --overwrite (in a graph: dvc repro suffix_array@tokens)"
    assert said.endswith(f"build it again: {again}")


def test_damaged_files_are_named(indexed: tuple[Path, Path], tmp_path: Path) -> None:
    copied(indexed[0], tmp_path / "index")
    file = tmp_path / "index" / "suffixes-00002-00001.arrow"
    size = file.stat().st_size
    file.unlink()
    file.write_bytes(bytes(size))
    with pytest.raises(UserError, match=r"suffixes-00002-00001.arrow: not a suffix array .*build it again"):
        SuffixArray(tmp_path / "index", indexed[1])
    file.write_bytes(b"short")
    with pytest.raises(UserError, match=r"suffixes-00002-00001.arrow: 5 bytes, its manifest says"):
        SuffixArray(tmp_path / "index", indexed[1])
