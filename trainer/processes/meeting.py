"""Where the processes that torchrun or srun has started meet, before any of them works.

They share a store of torch's. Each says which node it is on and which code and libraries it has; rank 0 answers once,
and a rank that has its answer confirms it. So a rank that never comes, other code on one node, or an address in use
ends all of them within minutes, in a line that names rank and node. A clock that is wrong is only named.

torchrun keeps its store when it starts the processes again, with the keys of those that were there before. What is
said in the answered round is under a prefix of its own, so nothing of an earlier round is taken for one of this.
"""

import datetime
import functools
import hashlib
import json
import logging
import os
import platform
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.errors import UserError
from pipelines.installed import CODE
from trainer.processes.rank import Rank, hosts, rendezvous_environment

logger = logging.getLogger(__name__)

MINUTES = "MILLRACE_MEET_MINUTES"
"""The variable that says how long ranks wait for each other to arrive."""
DEFAULT_MINUTES = 10.0
SAY_SECONDS = 30.0
"""After how long rank 0 says for whom it waits."""
POLL_SECONDS = 0.05
CONNECT_SECONDS = 5.0
"""How long one attempt to connect takes at most: a signal is heard between two of them."""
CLOCK_SECONDS = 5.0
"""How far clocks may differ before it is said."""
PREFIX = "millrace"


@dataclass(frozen=True, slots=True)
class Address:
    """Where processes find the store: host and port of its server, and the prefix of this round's keys."""

    host: str
    port: int
    prefix: str

    def open(self) -> Any:
        """Connect to the store."""
        return _prefixed(_client(self.host, self.port, CONNECT_SECONDS), self.prefix)


@dataclass(frozen=True, slots=True)
class Meeting:
    """A round of processes that have all arrived."""

    store: Any
    """With this round's keys only."""
    address: Address
    nodes: tuple[str, ...]
    """Of each rank; known to rank 0 only."""


def node_name(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of this node: Slurm's, or else the host's."""
    return environment.get("SLURMD_NODENAME") or socket.gethostname()


@functools.cache
def meet(rank: Rank) -> Meeting:
    """Wait until all ranks have arrived. Raises UserError if one does not, or is another version of the code."""
    patience = 60 * minutes()
    environment = {**os.environ, **rendezvous_environment(rank, os.environ)}
    host, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    os.environ.setdefault("LOCAL_RANK", str(rank.local_number))  # torch chooses by it too
    store = _open(rank, host, port, patience)
    try:
        if rank.number:
            prefix, nodes = _arrive(store, rank, patience), ()
        else:
            prefix, nodes = _call_roll(store, rank, patience, f"{host}:{port}")
    except RuntimeError as error:  # torch's errors of a store that is gone
        raise UserError(
            f"rank {rank.number} on {node_name()}: the store of rank 0 at {host}:{port} is gone "
            f"({_first_line(error)}): see the error of rank 0"
        ) from None
    return Meeting(_prefixed(store, prefix), Address(host, port, prefix), nodes)


def minutes() -> float:
    """Return how many minutes ranks wait for each other to arrive."""
    text = os.environ.get(MINUTES, "")
    try:
        value = float(text or DEFAULT_MINUTES)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise UserError(f"{MINUTES} {text}: expected a number of minutes above 0")
    return value


def await_key(store: Any, key: str, patience: float) -> bytes | None:
    """Return the value of a key once it is there, None after `patience` seconds; signals are heard meanwhile."""
    deadline = time.monotonic() + patience
    while not store.check([key]):
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)
    return store.get(key)


def _open(rank: Rank, host: str, port: int, patience: float) -> Any:
    """Return the store: rank 0's own, or under torchrun that of its agent."""
    dist = _torch()
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if rank.number == 0 and not agents:
        try:
            # It listens on all addresses; its own way to itself needs no name service.
            return dist.TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False)
        except RuntimeError as error:
            taken = "in use" in str(error)
            what = "is in use by another process" if taken else f"cannot be listened on ({_first_line(error)})"
            raise UserError(
                f"rank 0 on {node_name()}: port {port} {what}: set MASTER_PORT to a free one, the same for all ranks"
            ) from None
    _await_server(rank, host, port, patience)
    return _client(host, port, CONNECT_SECONDS)


def _await_server(rank: Rank, host: str, port: int, patience: float) -> None:
    """Wait until someone listens there: torch's own attempts to connect hear no signal, and log pages."""
    deadline = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host, port), CONNECT_SECONDS).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"rank {rank.number} on {node_name()}: rank 0 did not answer at {host}:{port} within {minutes():g} "
                    f"minutes ({error.strerror or error}): see whether it has started, whether this node reaches that "
                    f"address (MASTER_ADDR and MASTER_PORT name another one), or raise {MINUTES}"
                ) from None
            time.sleep(POLL_SECONDS)


def _client(host: str, port: int, seconds: float) -> Any:
    dist = _torch()
    # The timeout is also that of each later call.
    store = dist.TCPStore(host, port, None, is_master=False, timeout=datetime.timedelta(seconds=seconds))
    store.set_timeout(datetime.timedelta(hours=1))
    return store


def _prefixed(store: Any, prefix: str) -> Any:
    return _torch().PrefixStore(prefix, store)


def _arrive(store: Any, rank: Rank, patience: float) -> str:
    """Say who this is, and return the prefix that rank 0 answers."""
    name = uuid.uuid4().hex
    store.set(f"{PREFIX}/hello/{rank.number}", json.dumps({"name": name, "node": node_name(), "versions": versions()}))
    answer = await_key(store, f"{PREFIX}/answer/{name}", patience + SAY_SECONDS)  # rank 0 gives up first, and says why
    if answer is None:
        raise UserError(
            f"rank {rank.number} on {node_name()}: rank 0 did not answer within {minutes():g} minutes: see its error"
        )
    prefix = json.loads(answer)["prefix"]
    store.set(f"{prefix}/confirmed/{name}", json.dumps(time.time()))
    roll = await_key(store, f"{prefix}/roll", patience + SAY_SECONDS)
    if roll is None:
        raise UserError(f"rank {rank.number} on {node_name()}: not all ranks have arrived: see the error of rank 0")
    if error := json.loads(roll)["error"]:
        raise UserError(error)
    return prefix


@dataclass(slots=True)
class _Arrival:
    """What rank 0 knows of another rank."""

    name: str
    node: str
    versions: dict[str, str]
    answered: float
    """When, by this node's clock."""


def _call_roll(store: Any, rank: Rank, patience: float, address: str) -> tuple[str, tuple[str, ...]]:
    """Answer each rank that arrives; return the round's prefix and the node of each rank."""
    prefix = f"{PREFIX}/round-{store.add(f'{PREFIX}/rounds', 1)}"
    arrived: dict[int, _Arrival] = {}
    confirmed: dict[int, float] = {}
    waiting, began, said = list(range(1, rank.size)), time.monotonic(), False
    while waiting:
        for number in waiting:
            _answer(store, prefix, number, arrived, confirmed)
        waiting = [number for number in waiting if number not in confirmed]
        waited = time.monotonic() - began
        if waiting and waited > patience:
            raise _refused(store, prefix, _missing(rank, address, waiting, arrived, f"within {minutes():g} minutes"))
        if waiting and waited > SAY_SECONDS and not said:
            logger.warning("waiting for ranks: %s", _missing(rank, address, waiting, arrived, "yet"))
            said = True
        time.sleep(POLL_SECONDS if waiting else 0)
    own = versions()
    for number, other in sorted(arrived.items()):
        if difference := _difference(other.versions, own):
            raise _refused(
                store,
                prefix,
                f"rank {number} on {other.node} differs from rank 0 on {node_name()}: {difference}; install the same "
                "on all nodes",
            )
    store.set(f"{prefix}/roll", json.dumps({"error": ""}))
    return prefix, (node_name(), *(arrived[number].node for number in range(1, rank.size)))


def _answer(store: Any, prefix: str, number: int, arrived: dict[int, _Arrival], confirmed: dict[int, float]) -> None:
    """Take note of what a rank says by now, and answer it."""
    hello = f"{PREFIX}/hello/{number}"
    if not store.check([hello]):
        return
    # One of an earlier round may stand here until the rank itself writes: only the rank confirms an answer.
    said = json.loads(store.get(hello))
    if number not in arrived or arrived[number].name != said["name"]:
        arrived[number] = _Arrival(said["name"], said["node"], said["versions"], time.time())
        store.set(f"{PREFIX}/answer/{said['name']}", json.dumps({"prefix": prefix}))
    if store.check([f"{prefix}/confirmed/{said['name']}"]):
        confirmed[number] = json.loads(store.get(f"{prefix}/confirmed/{said['name']}"))
        ahead = confirmed[number] - time.time()
        behind = arrived[number].answered - confirmed[number]
        if max(ahead, behind) > CLOCK_SECONDS:
            logger.warning(
                "the clock of rank %d on %s is %.0f s %s that of rank 0 on %s: training bears it, but torchrun's c10d "
                "gives up nodes whose clocks differ by more than 15 s; set both by NTP",
                *(number, said["node"], max(ahead, behind), "ahead of" if ahead > behind else "behind", node_name()),
            )


def _refused(store: Any, prefix: str, error: str) -> UserError:
    """Tell the ranks that have arrived why all of them end; return the error."""
    store.set(f"{prefix}/roll", json.dumps({"error": error}))
    time.sleep(10 * POLL_SECONDS)  # until they have read it: the store ends with this process
    return UserError(error)


def _missing(rank: Rank, address: str, waiting: list[int], arrived: dict[int, _Arrival], when: str) -> str:
    """Say which ranks are missing, and on which nodes they may be."""
    others = {other.node for number, other in arrived.items() if number not in waiting}
    silent = [name for name in hosts(os.environ.get("SLURM_STEP_NODELIST", "")) if name not in {*others, node_name()}]
    where = f" (no rank of {', '.join(silent)} is there)" if silent else ""
    return (
        f"{', '.join(map(str, waiting))} of {rank.size} did not arrive {when}{where}; see their own errors, whether "
        f"their nodes reach {address}, or raise {MINUTES}"
    )


def _difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str:
    names = [name for name in ours if theirs.get(name) != ours[name]]
    return ", ".join(f"{name} {theirs.get(name)} instead of {ours[name]}" for name in names)


@functools.cache
def versions() -> dict[str, str]:
    """Return what has to be the same on all nodes."""
    import numpy
    import torch

    digest = hashlib.sha256()
    for package in ("pipelines", "trainer"):
        for file in sorted((CODE / package).rglob("*.py")):
            digest.update(file.relative_to(CODE).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return {
        "code": digest.hexdigest()[:12],
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
    }


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _torch() -> Any:
    import torch.distributed

    return torch.distributed
