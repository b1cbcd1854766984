"""The engines: resiliparse, and, if their extras are installed, lingua and fasttext with a model written by hand."""

import importlib.util
import sys
from pathlib import Path

import pytest

from dataprep.clean.language.detector import known_languages, make_detector
from dataprep.clean.language.engines import ResiliparseEngine, nearest_of, nearest_two
from pipelines.errors import ConfigError, UserError
from tests.dataprep.clean.language.fasttext_model import write_model

FASTTEXT = importlib.util.find_spec("fasttext") is not None
needs_fasttext = pytest.mark.skipif(not FASTTEXT, reason="needs pip install fasttext-predict")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "lid.bin", {"en": ["the", "river", "mill"], "de": ["der", "Fluss", "Mühle"]})


@needs_fasttext
def test_the_label_is_the_language_and_lines_are_read_as_one(model: Path) -> None:
    detector = make_detector(engine="fasttext", mode="exact", model=model)
    english, german = detector.detect("the river\nand the mill\n"), detector.detect("der Fluss\r\n\tund die Mühle")
    assert (english.code, german.code) == ("en", "de")
    assert english.engine == "fasttext"
    assert 0.9 < english.probability <= 1


@needs_fasttext
def test_odd_texts_have_a_verdict(model: Path) -> None:
    detector = make_detector(engine="fasttext", mode="exact", model=model)
    assert [detector.detect(text).code for text in ("", " \n", "\u2028")] == ["und"] * 3
    for text in ("\ud800 the", "\x00", "word " * 100_000):
        assert detector.detect(text).code in ("en", "de")


@needs_fasttext
def test_the_languages_are_the_models_labels_and_every_mode_works(model: Path) -> None:
    assert known_languages("fasttext", model) == ["de", "en"]
    for mode in ("exact", "prefilter"):
        detector = make_detector(engine="fasttext", mode=mode, model=model, languages=("en",))
        assert detector.detect("der Fluss").code == "de"


@needs_fasttext
def test_a_file_that_is_no_model_is_the_users_to_mend(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a model")
    for path in (file, tmp_path / "missing.bin", tmp_path):
        with pytest.raises(UserError, match="not a fastText model") as error:
            make_detector(engine="fasttext", mode="exact", model=path)
        assert str(path) in str(error.value)


def test_a_model_must_be_named() -> None:
    with pytest.raises(ConfigError, match="language_model: the engine fasttext needs a model file"):
        make_detector(engine="fasttext", mode="exact")


def test_without_the_extra_fasttext_the_command_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fasttext", None)
    with pytest.raises(ConfigError, match="pip install fasttext-predict"):
        make_detector(engine="fasttext", mode="exact", model=model)


LINGUA = importlib.util.find_spec("lingua") is not None
needs_lingua = pytest.mark.skipif(not LINGUA, reason="needs pip install lingua-language-detector")


@needs_lingua
def test_short_texts_are_told_and_the_codes_are_iso_639_1() -> None:
    detector = make_detector(engine="lingua", mode="exact")
    texts = ("Der Fluss dreht das Rad der Mühle.", "The river turns the wheel.", "La rivière tourne la roue.")
    assert [detector.detect(text).code for text in texts] == ["de", "en", "fr"]
    assert {"de", "en", "zh"} <= set(known_languages("lingua"))


@needs_lingua
def test_probabilities_are_the_same_every_time() -> None:
    detector = make_detector(engine="lingua", mode="exact")
    assert len({detector.detect("the miller\nlives here") for _ in range(50)}) == 1


@needs_lingua
def test_texts_without_letters_are_undetermined() -> None:
    detector = make_detector(engine="lingua", mode="exact")
    for text in ("", "12345", "\x00", "\ud800", "😀"):
        assert (detector.detect(text).code, detector.detect(text).probability) == ("und", 0.0)


def test_without_the_extra_lingua_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lingua", None)
    with pytest.raises(ConfigError, match="pip install lingua-language-detector"):
        make_detector(engine="lingua", mode="exact")


ENGLISH = (
    "The miller told us that the old wheel had not turned since the spring when his father moved to the town. " * 3
)


def test_the_nearest_language_is_the_verdict_and_a_nearer_one_more_probable() -> None:
    detector = ResiliparseEngine()
    long, short = detector.detect(ENGLISH), detector.detect(ENGLISH[:60])
    assert (long.code, short.code) == ("en", "en")
    assert 0 < short.probability < long.probability < 1


def test_a_text_without_letters_is_undetermined() -> None:
    for text in ("", "12 345", "\ud800"):
        assert (ResiliparseEngine().detect(text).code, ResiliparseEngine().detect(text).probability) == ("und", 0.0)


def test_distances_to_chosen_languages_are_those_of_all() -> None:
    (code, distance), (second, further) = nearest_two(ENGLISH)
    assert code == "en"
    assert nearest_of(ENGLISH, ["en", "ko"]) == distance
    assert nearest_of(ENGLISH, [second]) == further
