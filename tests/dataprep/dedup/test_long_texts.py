"""Character shingles of long texts: the same piece by piece, in a fraction of the memory."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.dedup import long_texts
from dataprep.dedup.minhash import EMPTY, Permutations, sign_texts
from dataprep.dedup.shingles import Shingle, distinct_shingles
from dataprep.text.folding import raw_texts

pytestmark = pytest.mark.usefixtures("each_kernel")


@settings(deadline=None)
@given(st.lists(st.text() | st.text(alphabet="aé日😀\0"), max_size=4), st.integers(1, 9), st.integers(4, 20))
def test_a_long_text_has_the_same_shingles_and_signature_piece_by_piece(
    texts: list[str], size: int, piece_bytes: int
) -> None:
    raw, shingle, permutations = raw_texts(texts), Shingle("char", size), Permutations.draw(16, 1)
    expected, signatures = distinct_shingles(raw, shingle), sign_texts(raw, shingle, permutations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_texts, "PIECE", piece_bytes)
        found = distinct_shingles(raw, shingle)
        np.testing.assert_array_equal(sign_texts(raw, shingle, permutations), signatures)
    np.testing.assert_array_equal(found.hashes, expected.hashes)
    np.testing.assert_array_equal(found.first, expected.first)


def test_the_characters_of_a_long_text_are_not_hashed_all_at_once() -> None:
    texts = raw_texts([" ".join(map(str, range(1_300_000)))])
    permutations, shingle = Permutations.draw(4, 1), Shingle("char", 5)
    tracemalloc.start()
    try:
        distinct = distinct_shingles(texts, shingle)
        assert sign_texts(texts, shingle, permutations).max() < EMPTY
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(distinct.hashes) > 10**5
    assert 8 * len(texts.data) > 70 << 20
    assert peak < 50 << 20
