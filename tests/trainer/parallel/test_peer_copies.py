"""Exchanges by copies: parts come together and terms are summed as by collectives, over many turns and shapes."""

import contextlib
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.shared_files import SharedFiles
from trainer.config import ParallelConfig
from trainer.model import SequencePart
from trainer.parallel import peer_copies, shared_memory
from trainer.parallel.mesh import Mesh
from trainer.parallel.peer_copies import TURNS, PeerCopies
from trainer.parallel.shared_memory import Parts
from trainer.parallel.token_exchange import Collectives, TokenExchange

SHAPES = [(8, 4), (8, 4), (12, 6), (4, 2), (12, 6), (8, 4), (24, 6), (24, 6)]
"""Tokens and widths of exchanges, one after the other: memory grows, and is used for less."""


def exchanged(tp: int) -> None:
    """Each exchange by copies, beside the same one by collectives."""
    with Mesh(ParallelConfig(tp=tp, device="cpu"), torch.device("cpu")) as mesh:
        memory = SharedFiles(mesh, "tp")
        ways: list[TokenExchange] = [
            PeerCopies(memory, mesh.tp_rank, tp, mesh.device),
            Collectives(mesh, SequencePart(mesh.tp_rank, tp)),
        ]
        for number, (tokens, width) in enumerate(SHAPES * 2):
            tokens *= tp
            chance = torch.Generator().manual_seed(100 * number + mesh.tp_rank)
            own = torch.randn(tokens // tp, width, generator=chance).bfloat16()
            terms = torch.randn(tokens, width, generator=chance).bfloat16()
            wholes = [gathered(way, own) for way in ways]
            assert torch.equal(*wholes)
            sums = [way.scatter(copier(terms), tokens, width, own) for way in ways]
            torch.testing.assert_close(*(finish().float().sum(0) for finish in sums), rtol=2e-2, atol=2e-2)
        assert memory.meetings >= 2 * len(SHAPES) * 2


def written_in_place(tp: int) -> int:
    """Gathers of what was written where others read it, in turn with gathers of other tensors."""
    with Mesh(ParallelConfig(tp=tp, device="cpu"), torch.device("cpu")) as mesh:
        copies = PeerCopies(SharedFiles(mesh, "tp"), mesh.tp_rank, tp, mesh.device)
        copied = 0

        class Watched(TorchDispatchMode):
            def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                nonlocal copied
                copied += call is torch.ops.aten.copy_.default
                return call(*args, **(kwargs or {}))

        for number, (tokens, width) in enumerate(SHAPES * 2):
            chance = torch.Generator().manual_seed(100 * number + mesh.tp_rank)
            own = torch.randn(tokens, width, generator=chance).bfloat16()
            room = copies.room(torch.empty(tokens, width, device="meta"), torch.bfloat16)
            assert room is not None
            assert room is copies.room(own, torch.bfloat16), "each look is for the same gather"
            room.copy_(own)
            with Watched():
                whole, coming = copies.gather(room)
            assert len(list(coming)) == tp
            assert torch.equal(whole, gathered(Collectives(mesh, SequencePart(mesh.tp_rank, tp)), own))
            if number % 3 == 0:
                assert torch.equal(gathered(copies, own + 1), gathered(copies, own) + 1)
        return copied


def test_what_is_written_where_others_read_it_is_not_copied_there(workers: Any) -> None:
    assert workers.run(2, written_in_place, 2) == [2 * 2 * len(SHAPES)] * 2, "one copy into the whole for each process"


def copier(terms: torch.Tensor) -> Callable[[slice, torch.Tensor], Any]:
    return lambda place, out: out.copy_(terms[place])


def gathered(way: TokenExchange, own: torch.Tensor) -> torch.Tensor:
    """The whole, from the parts as they came, which are also where they belong."""
    whole, coming = way.gather(own)
    seen = torch.full_like(whole, torch.nan)
    for place, part in coming:
        seen[place] = part
    assert torch.equal(seen, whole)
    return whole


@pytest.mark.parametrize("tp", [2, 4])
def test_copies_are_what_collectives_are(workers: Any, tp: int) -> None:
    workers.run(tp, exchanged, tp)


def slow_reader() -> None:
    """The last process reads late: the others are then not further than the exchange after."""
    import time

    with Mesh(ParallelConfig(tp=2, device="cpu"), torch.device("cpu")) as mesh:
        copies = PeerCopies(SharedFiles(mesh, "tp"), mesh.tp_rank, 2, mesh.device)
        for number in range(3 * TURNS):
            own = torch.full((2, 2), float(10 * number + mesh.tp_rank))
            if mesh.tp_rank:
                time.sleep(0.05)
            whole, coming = copies.gather(own)
            assert [values.tolist() for _, values in coming]
            assert whole.tolist() == [[10.0 * number + rank] * 2 for rank in (0, 1) for _ in range(2)]


def test_nothing_is_written_that_is_still_read(workers: Any) -> None:
    workers.run(2, slow_reader)


def without_memory(able: int) -> tuple[bool, list[str]]:
    """In two stages of two processes, of which some cannot have such memory: are there copies, and what is said?"""
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # pyright: ignore[reportAttributeAccessIssue]
    parallel = ParallelConfig(pp=2, tp=2, device="cpu")
    with Mesh(parallel, torch.device("cpu")) as mesh, pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_memory.logger, "handlers", [handler])
        patch.setattr(SharedFiles, "allocate", lambda *_: Parts([]))
        if mesh.rank < able:
            patch.setattr(peer_copies, "SymmetricMemory", SharedFiles)
        else:
            mesh.gather("")  # as SharedFiles does in the others
        return peer_copies.peer_copies(mesh) is not None, seen


@pytest.mark.parametrize("able", [0, 2, 4])
def test_copies_are_made_by_all_processes_or_by_none(workers: Any, able: int) -> None:
    """Torch has no such memory on CPUs. If only one stage had copies, stages would divide tokens in two ways."""
    (_, said), *others = found = workers.run(4, without_memory, able)
    assert [made for made, _ in found] == [able == 4] * 4
    assert not any(lines for _, lines in others)
    assert len(said) == (able < 4)
    assert all("so they exchange by NCCL" in line for line in said)
    assert ("(in another process)" in "".join(said)) == (able == 2)


class Streams:
    """A GPU's streams, which only note what they are given, in order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.given: list[Any] = []
        self._current = "computing"
        self._events = 0
        patch.setattr(torch.cuda, "Stream", lambda *_, **__: self._stream("beside"))
        patch.setattr(torch.cuda, "current_stream", lambda: self._stream(self._current))
        patch.setattr(torch.cuda, "stream", self._inside)
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)

    def _stream(self, name: str) -> Any:
        def record_event() -> str:
            self._events += 1
            self.given.append((name, "records", self._events))
            return str(self._events)

        return SimpleNamespace(
            wait_stream=lambda other: self.given.append((name, "waits for", other.name)),
            wait_event=lambda event: self.given.append((name, "waits for", int(event))),
            record_event=record_event,
            name=name,
        )

    @contextlib.contextmanager
    def _inside(self, stream: Any) -> Any:
        self._current, before = stream.name, self._current
        yield
        self._current = before

    def note(self, what: str) -> None:
        self.given.append((self._current, what))

    def begin(self) -> None:
        self.given.clear()
        self._events = 0


class OneGpu:
    """Three processes' memory in one."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def allocate(self, size: int) -> Parts:
        return Parts([torch.zeros(size, dtype=torch.uint8) for _ in range(3)])

    def meet(self) -> None:
        self._streams.note("meets")


class Noted(TorchDispatchMode):
    """Notes copies."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._streams = streams

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call is torch.ops.aten.copy_.default:
            self._streams.note("copies")
        return call(*args, **(kwargs or {}))


def test_a_gpu_copies_beside_products_and_waits_for_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(monkeypatch)
    copies = PeerCopies(OneGpu(streams), 1, 3, torch.device("cuda", 0))
    copies.gather(torch.zeros(2, 4))
    copies.scatter(lambda place, out: out, 6, 4, torch.zeros(()))()
    streams.begin()
    with Noted(streams):
        whole, coming = copies.gather(torch.zeros(2, 4))
        for place, part in coming:
            streams.note(f"multiplies {place.start // 2}")
            assert part.shape == whole[place].shape
        streams.note("reads all")
    assert streams.given == [
        ("computing", "copies"),  # its own tokens, to where others read them
        ("computing", "meets"),
        ("beside", "waits for", "computing"),
        *[each for event in (1, 2) for each in (("beside", "copies"), ("beside", "records", event))],
        *(("beside", "copies"), ("beside", "records", 3)),  # its own, into the whole
        ("computing", "multiplies 1"),
        *(("computing", "waits for", 1), ("computing", "multiplies 2")),
        *(("computing", "waits for", 2), ("computing", "multiplies 0")),
        *(("computing", "waits for", 3), ("computing", "reads all")),
    ]
    streams.begin()
    with Noted(streams):
        finish = copies.scatter(lambda place, _: streams.note(f"multiplies {place.start // 2}"), 6, 4, torch.zeros(()))
        streams.note("something else")
        finish()
    one = [("beside", "waits for", "computing"), ("beside", "copies")]
    assert streams.given == [
        *[("computing", "multiplies 2"), *one, ("computing", "multiplies 0"), *one, ("computing", "multiplies 1")],
        ("computing", "something else"),
        *[("beside", "records", 1), ("computing", "waits for", 1), ("computing", "meets")],
    ]
