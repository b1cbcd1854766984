"""How commands are called in what they print: as this one was, `millrace clean` or `python -m dataprep.clean`."""

import re
import sys

BY_NAME = "millrace"
"""`python -X millrace -m dataprep.clean` is how `millrace clean` runs it: no child process inherits that."""
_OURS = re.compile(r"python -m ((?:dataprep|trainer)\.\w+|pipelines)\b")


def called(module: str) -> str:
    """Return how the user calls a command: `millrace clean`, or else `python -m dataprep.clean`."""
    if BY_NAME not in sys._xoptions:  # pyright: ignore[reportPrivateUsage] (documented: CPython's -X)
        return f"python -m {module}"
    package, _, name = module.rpartition(".")
    return f"{BY_NAME} {name.replace('_', '-')}" if package else BY_NAME


def as_called(text: str) -> str:
    """Return a text of ours with the commands in it as the user calls them."""
    return _OURS.sub(lambda match: called(match[1]), text)
