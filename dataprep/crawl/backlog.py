"""Jobs that memory has no room for, on disk: a stack for each host, all in one file.

A record knows where the one below it lies, so memory holds two numbers per host and nothing per job.
The file only grows, by one short record for each job that ever had to wait here.
"""

import os
import struct
from pathlib import Path

from dataprep.crawl.jobs import Job

_HEADER = struct.Struct("<QI")  # where the record below starts, bytes of this job
_BOTTOM = 2**64 - 1
_GUESS = 512
"""Bytes to read at first; most records are shorter."""


class Backlog:
    """What waits on disk; the file is made when the first job comes."""

    def __init__(self, file: Path) -> None:
        self._path = file
        self._tops: dict[str, tuple[int, int]] = {}
        """Host -> where its topmost record starts, and how many it has."""
        self._descriptor = -1
        self._end = 0
        self._written = 0
        self._buffer = bytearray()
        self._jobs = 0

    def __len__(self) -> int:
        return self._jobs

    def __contains__(self, host: str) -> bool:
        return host in self._tops

    def push(self, job: Job) -> None:
        """Set a job aside."""
        data = job.to_json()
        below, number = self._tops.get(job.host, (_BOTTOM, 0))
        self._tops[job.host] = (self._end, number + 1)
        self._buffer += _HEADER.pack(below, len(data)) + data
        self._end += _HEADER.size + len(data)
        self._jobs += 1
        if len(self._buffer) > 1 << 16:
            self._flush()

    def pull(self, host: str, most: int) -> list[Job]:
        """Take up to `most` jobs of a host back, the latest first."""
        if host not in self._tops:
            return []
        self._flush()
        jobs: list[Job] = []
        top, number = self._tops.pop(host)
        while number and len(jobs) < most:
            data = os.pread(self._descriptor, _GUESS, top)
            below, size = _HEADER.unpack_from(data)
            if len(data) < _HEADER.size + size:
                data = os.pread(self._descriptor, _HEADER.size + size, top)
            jobs.append(Job.from_json(data[_HEADER.size : _HEADER.size + size]))
            top, number = below, number - 1
        if number:
            self._tops[host] = (top, number)
        self._jobs -= len(jobs)
        return jobs

    def close(self) -> None:
        """Forget everything; the file goes with its folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _flush(self) -> None:
        if self._descriptor < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        rest = memoryview(self._buffer)
        while rest:
            sent = os.pwrite(self._descriptor, rest, self._written)
            self._written += sent
            rest = rest[sent:]
        self._buffer = bytearray()
