"""One logging set-up for all commands: short lines on standard error."""

import logging
import sys
from typing import TextIO

from pipelines.called import as_called
from pipelines.terminal import visible


class OneLine(logging.Formatter):
    """Writes a message on one line that cannot control a terminal; a traceback after it keeps its lines.

    Commands in it are named as the user named this one.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the message, with unprintable characters escaped."""
        return visible(as_called(super().formatMessage(record)))


class CurrentStderr(logging.StreamHandler):
    """Writes to what is standard error at the moment: a bar on the terminal, which is that meanwhile, stays below."""

    @property
    def stream(self) -> TextIO:
        """Standard error."""
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        pass  # logging sets what it was created with


def configure(level: str = "info", *, verbose: bool = False) -> None:
    """Send log records of `level` (debug, info, warning, error) and above to standard error; `verbose`: all of ours."""
    handler = CurrentStderr()
    handler.setFormatter(OneLine())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    # Those of HTTP name each request, with what signs it; httpx2 is httpx under the name of its second version.
    http = ("urllib3", "httpx", "httpx2", "httpcore", "httpcore2")
    for noisy in ("trafilatura", "htmldate", "justext", "courlan", "asyncio", "matplotlib", *http):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    for package in ("pipelines", "dataprep", "trainer"):
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.NOTSET)
