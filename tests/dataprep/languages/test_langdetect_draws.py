"""Random numbers in bulk are those that `random.Random` gives one by one."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.languages.langdetect_draws import Draws


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**70), st.lists(st.integers(1, 40_000), min_size=1, max_size=6))
def test_choices_and_gauss_equal_random(seed: int, sizes: list[int]) -> None:
    expected, draws, place = random.Random(seed), Draws(seed), 0
    for size in sizes:
        assert draws.gauss_pair(place) == (expected.gauss(0.0, 1.0), expected.gauss(0.0, 1.0))
        place += 4
        chosen, places = draws.choices(place, 20, size)
        assert chosen.tolist()[:20] == [expected.choice(range(size)) for _ in range(20)]
        place = int(places[19])


def test_any_number_of_words_is_read() -> None:
    expected = random.Random(5)
    words = [expected.getrandbits(32) for _ in range(20_000)]
    assert Draws(5).words(15_000, 5_000).tolist() == words[15_000:]
