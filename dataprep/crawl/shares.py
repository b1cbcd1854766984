"""How hosts, places and rate are shared out to the processes of a crawl."""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

if TYPE_CHECKING:
    from dataprep.download import DownloadConfig


@dataclass(frozen=True, slots=True)
class Share:
    """What process number `index` of `processes` looks after."""

    index: int
    processes: int

    def has(self, host: str) -> bool:
        """Whether a host is ours."""
        return self.processes == 1 or share_of(host, self.processes) == self.index

    def of(self, config: "DownloadConfig") -> "DownloadConfig":
        """The configuration with our part of what holds for all processes together."""
        places, rest = divmod(config.concurrency, self.processes)
        return dataclasses.replace(
            config,
            concurrency=places + (self.index < rest),
            requests_per_second=config.requests_per_second / self.processes,
        )


ONLY_SHARE = Share(0, 1)


def share_of(host: str, processes: int) -> int:
    """The process that looks after a host."""
    return xxhash.xxh3_64_intdigest(host.encode()) % processes
