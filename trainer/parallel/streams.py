"""A side stream of a GPU, for copies beside what the device computes; on a CPU it is None, and all is done at once."""

import contextlib
from typing import Any

import torch


def beside(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Copy after everything that the device has got until now, and beside what it gets from now on."""
    after_device(stream)
    return on(stream)


def after_device(stream: Any) -> None:
    """Let what the stream gets from now on come after everything that the device has got until now."""
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())


def on(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """Copy after what the stream has got, and beside everything else."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def mark(stream: Any) -> Any:
    """Return an event after which everything that the stream has got until now is done; None: it is."""
    return None if stream is None else stream.record_event()


def wait_for(event: Any) -> None:
    """Let what the device gets from now on come after this event; None: it has been."""
    if event is not None:
        torch.cuda.current_stream().wait_event(event)
