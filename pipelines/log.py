"""One logging set-up for all commands: short lines on standard error."""

import logging
import sys


def configure(level: str = "info") -> None:
    """Send log records of `level` (debug, info, warning, error) and above to standard error."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=level.upper(), force=True)
    for noisy in ("trafilatura", "htmldate", "justext", "courlan", "urllib3", "asyncio", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
