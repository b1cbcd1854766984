"""Engine `fasttext`: a supervised fastText model by path, such as lid.176.bin, lid.176.ftz or GlotLID.

Needs the extra: pip install "millrace[fasttext]". fastText: Joulin et al. 2016 (arXiv 1607.01759), read by the
package fasttext-predict. A code is what the model's label says after `__label__`: `en` in lid.176, `eng_Latn` in
GlotLID.
"""

import importlib
from pathlib import Path
from typing import Any

from dataprep.languages.language import UNDETERMINED, Language
from pipelines.errors import ConfigError, UserError

NAME = "fasttext"
_LABEL = "__label__"


class FasttextDetector:
    """Reads the model when it is made; ConfigError without one, UserError when the file is none."""

    def __init__(self, model: Path | None) -> None:
        if model is None:
            raise ConfigError("language_model: the engine fasttext needs a model file, such as lid.176.bin")
        self._model = _load(model)

    def detect(self, text: str) -> Language:
        """The first label for the whole text as one line; `und` for a text of white space alone."""
        line = " ".join(text.encode("utf-8", "replace").decode().split())
        if not line:
            return Language(UNDETERMINED, 0.0, NAME)
        labels, probabilities = self._model.predict(line)
        # Its softmax is in float32 and can end a little above 1.
        return Language(labels[0].removeprefix(_LABEL), min(1.0, float(probabilities[0])), NAME)

    def known_languages(self) -> list[str]:
        """The codes of all labels of the model."""
        labels, _ = self._model.predict(" ", k=-1, threshold=-1.0)
        return sorted(label.removeprefix(_LABEL) for label in labels)


def _load(model: Path) -> Any:
    try:
        fasttext = importlib.import_module("fasttext")
    except ImportError:
        raise ConfigError(
            'the language engine fasttext is not installed; run: pip install "millrace[fasttext]"'
        ) from None
    try:
        return fasttext.load_model(str(model))
    except (ValueError, MemoryError) as error:
        raise UserError(f"{model}: not a fastText model ({error}); lid.176.bin and lid.176.ftz are") from None
