"""FastText's models: a stand-in written by hand is read by the real library, where the extra is installed."""

import importlib.util
from pathlib import Path

import pytest

from dataprep.languages.detection import known_languages, make_detector
from pipelines.errors import ConfigError, UserError
from tests.dataprep.languages.fasttext_model import write_model

INSTALLED = importlib.util.find_spec("fasttext") is not None
needs_fasttext = pytest.mark.skipif(not INSTALLED, reason='needs pip install "millrace[fasttext]"')


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
    for mode in ("sampled", "prefilter"):
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


@pytest.mark.skipif(INSTALLED, reason="the extra fasttext is installed")
def test_without_the_extra_the_command_is_named(model: Path) -> None:
    with pytest.raises(ConfigError, match=r'pip install "millrace\[fasttext\]"'):
        make_detector(engine="fasttext", mode="exact", model=model)
