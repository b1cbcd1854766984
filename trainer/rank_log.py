"""The log of each training process, for the day when one fails: its last lines, and what every thread was doing.

`rank-N.log` gets the process's log records, the traceback of what ended it, and all threads' stacks when it crashes
(also by SIGABRT, with which NCCL's watchdog ends a process that hangs), when it is asked to end, and on SIGUSR2.
"""

import contextlib
import faulthandler
import logging
import signal
import traceback
from collections.abc import Generator
from pathlib import Path

STACKS = signal.SIGUSR2
"""Writes all threads' stacks to the log of a process, wherever it hangs."""


@contextlib.contextmanager
def rank_log(folder: Path | None, rank: int) -> Generator[None, None, None]:
    """Inside this block everything is logged to `rank-N.log` in `folder` too; None: nowhere."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"rank-{rank}.log").open("w") as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(handler)
        faulthandler.enable(file)
        faulthandler.register(STACKS, file)
        # The handler written in Python runs only once Python gets a word in, which in a hanging exchange is never.
        faulthandler.register(signal.SIGTERM, file, chain=True)
        try:
            yield
        except BaseException as error:
            error.add_note(f"the log of each process: {folder}")
            traceback.print_exc(file=file)
            raise
        finally:
            faulthandler.unregister(signal.SIGTERM)
            faulthandler.unregister(STACKS)
            faulthandler.disable()
            logging.getLogger().removeHandler(handler)
