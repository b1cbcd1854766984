"""The table of profiles: the library's n-grams, probabilities and languages."""

import numpy as np
from langdetect.detector_factory import DetectorFactory

from dataprep.clean.language.langdetect_profiles import load_profiles, profile_files
from dataprep.clean.language.library import library_detector


def assert_same_ngrams(text: str) -> None:
    detector = library_detector("")
    detector.text = text
    profiles = load_profiles()
    rows = profiles.known_ngrams(np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4"))
    expected = detector._extract_ngrams()
    assert len(rows) == len(expected)
    for row, ngram in zip(rows.tolist(), expected, strict=True):
        assert profiles.rows[row].tolist() == detector.word_lang_prob_map[ngram]


def test_the_languages_stand_in_order_of_name() -> None:
    assert list(load_profiles().languages) == library_detector("").langlist == sorted(load_profiles().languages)


def test_every_character_of_the_basic_plane_counts_as_in_the_library() -> None:
    assert_same_ngrams("".join(f"{chr(code)}a{chr(code)} " for code in range(0x10000)))


def test_every_ngram_of_the_profiles_is_found() -> None:
    ngrams = sorted(library_detector("").word_lang_prob_map)[::5]
    assert_same_ngrams(" ".join(ngrams))


def test_words_in_capitals_and_runs_of_spaces_count_as_in_the_library() -> None:
    assert_same_ngrams("NATO and  the   USA met İstanbul ΑΒΓ αΒΓ  \u00a0 ǅ aB ABc A")
    assert_same_ngrams("")
    assert_same_ngrams("   ")


def test_the_librarys_table_is_the_one_that_it_would_load_itself_in_order_of_name() -> None:
    factory = DetectorFactory()
    factory.load_json_profile([file.read_text("utf-8") for file in profile_files()])
    table = library_detector("").word_lang_prob_map
    assert table.keys() == factory.word_lang_prob_map.keys()
    assert all(table[ngram] == shares for ngram, shares in factory.word_lang_prob_map.items())
