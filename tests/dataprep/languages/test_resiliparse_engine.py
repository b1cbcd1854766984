"""Resiliparse alone: nearest languages and their distances."""

from dataprep.languages.resiliparse_engine import ResiliparseDetector, nearest_of, nearest_two

ENGLISH = (
    "The miller told us that the old wheel had not turned since the spring when his father moved to the town. " * 3
)


def test_the_nearest_language_is_the_verdict_and_a_nearer_one_more_probable() -> None:
    detector = ResiliparseDetector()
    long, short = detector.detect(ENGLISH), detector.detect(ENGLISH[:60])
    assert (long.code, short.code) == ("en", "en")
    assert 0 < short.probability < long.probability < 1


def test_a_text_without_letters_is_undetermined() -> None:
    for text in ("", "12 345", "\ud800"):
        assert (ResiliparseDetector().detect(text).code, ResiliparseDetector().detect(text).probability) == ("und", 0.0)


def test_distances_to_chosen_languages_are_those_of_all() -> None:
    (code, distance), (second, further) = nearest_two(ENGLISH)
    assert code == "en"
    assert nearest_of(ENGLISH, ["en", "ko"]) == distance
    assert nearest_of(ENGLISH, [second]) == further
