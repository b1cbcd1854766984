"""One logging set-up for all commands: short lines on standard error."""

import logging
import sys

from pipelines.terminal import visible


class OneLine(logging.Formatter):
    """Writes a message on one line that cannot control a terminal; a traceback after it keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the message, with unprintable characters escaped."""
        return visible(super().formatMessage(record))


def configure(level: str = "info", *, verbose: bool = False) -> None:
    """Send log records of `level` (debug, info, warning, error) and above to standard error; `verbose`: all of ours."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for noisy in ("trafilatura", "htmldate", "justext", "courlan", "urllib3", "asyncio", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    for package in ("pipelines", "dataprep", "trainer"):
        logging.getLogger(package).setLevel(logging.DEBUG if verbose else logging.NOTSET)
