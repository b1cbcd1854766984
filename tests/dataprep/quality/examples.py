"""Examples of good and bad documents for tests: sentences of a mill, and what surrounds them on pages."""

import json
from collections.abc import Sequence
from pathlib import Path


def _words(text: str) -> list[str]:
    return text.split()


GOOD_WORDS = _words("the river turned its wheel while a miller ground grain for bread that people of this valley ate")
BAD_WORDS = _words("sign up subscribe newsletter cookies privacy policy login contact us share tweet home menu ads")
BOTH_WORDS = _words("and mill in on more read today new")


def texts(words: Sequence[str], number: int) -> list[str]:
    """Different texts of these words and of those that both classes have, the same each time."""
    every = [*words, *BOTH_WORDS]
    return [
        " ".join(every[(place * place + place * (row + 3) + row * row) % len(every)] for place in range(12 + row % 9))
        for row in range(number)
    ]


def write(path: Path, documents: Sequence[str]) -> Path:
    """Write JSON lines."""
    lines = (json.dumps({"url": f"http://mill.test/{n}", "text": text}) for n, text in enumerate(documents))
    path.write_text("\n".join(lines) + "\n")
    return path
