"""A pipe with a text in it, as a shell's `<(...)` is one: who opens it a second time finds it empty."""

import contextlib
import os
import threading
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def pipe_with(path: Path, data: bytes) -> Generator[Path, None, None]:
    """Make a pipe that has `data` for the first who opens it, and nothing for the next ones."""
    os.mkfifo(path)
    done = threading.Event()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):  # the reader has had enough
            path.write_bytes(data)
        while not done.wait(0.01):
            path.write_bytes(b"")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield path
    finally:
        done.set()
        while writer.is_alive():  # it waits for a reader
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            writer.join(0.01)
