"""Copies of checkpoints in a bucket, made beside the training, and the way back on another machine.

With `MILLRACE_CHECKPOINTS=s3://BUCKET/FOLDER`, the checkpoints of a pretraining are also sent to
`FOLDER/<fingerprint of the run>/step-00001000/`, with the run's curves beside them as `step-00001000.curve.csv`, and
`files.json` last: a checkpoint without it does not count. A thread of the first process sends them, always the newest
that the store lacks; training waits for it only at its end, for LAST_WAIT seconds. A store that fails costs a warning.
A run that has no checkpoint on its disk begins by looking for one there, and what it publishes in the end and lacks
comes from there too.
"""

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines import store
from pipelines.addresses import split_s3
from pipelines.buckets import Object, bucket
from pipelines.errors import UserError
from trainer.weights.records import FILES, checkpoints, damage, step_folder

logger = logging.getLogger(__name__)

CHECKPOINTS = "MILLRACE_CHECKPOINTS"
LAST_WAIT = 15.0
"""Seconds that the end of a training waits for its last checkpoint to be sent. Between SIGTERM and SIGKILL, Slurm
(KillWait), torchrun and Kubernetes leave 30 s if nobody has set more: half of it is for the last step and its save."""
_STEP = re.compile(r"step-(\d{8})/(.+)")


@dataclass(frozen=True, slots=True)
class Offsite:
    """Where the checkpoints of one run lie in a bucket."""

    address: str
    run: str
    """The run's fingerprint: other parameters and other data have other checkpoints."""

    @property
    def folder(self) -> str:
        """The key of the run's folder."""
        return f"{split_s3(self.address)[1]}/{self.run}"

    @property
    def bucket_name(self) -> str:
        """The bucket."""
        return split_s3(self.address)[0]

    def listed(self) -> dict[int, dict[str, Object]]:
        """Return step -> name -> object of each checkpoint that is there, complete or not, oldest first."""
        found: dict[int, dict[str, Object]] = {}
        for each in bucket(self.bucket_name).list(self.folder):
            if match := _STEP.fullmatch(each.key.removeprefix(f"{self.folder}/")):
                found.setdefault(int(match[1]), {})[match[2]] = each
        return dict(sorted(found.items()))

    def restore(self, root: Path, sides: Sequence[Path]) -> int | None:
        """Fetch the newest whole checkpoint into `root`, and the run's files beside it; return its step, if any.

        Raises UserError if the store cannot be asked: a training that began anew would cost what is there.
        """
        source = bucket(self.bucket_name)
        for step, objects in reversed(self.listed().items()):
            if FILES not in objects or not self._fetch(root, step, objects):
                continue
            for side in sides:
                if found := source.head(self._side(step, side)):
                    source.download(found, side)
            return step
        return None

    def fetch(self, root: Path, steps: Collection[int]) -> None:
        """Fetch those of some checkpoints that are there into `root`. Raises UserError if the store cannot be asked."""
        for step, objects in self.listed().items():
            if step in steps and FILES in objects:
                self._fetch(root, step, objects)

    def _fetch(self, root: Path, step: int, objects: dict[str, Object]) -> bool:
        """Fetch a checkpoint; return whether its files are those that were written."""
        final = step_folder(root, step)
        partial = final.with_name(f".{final.name}.fetched")
        store.remove(partial)
        for name, each in objects.items():
            bucket(self.bucket_name).download(each, partial / name)
        if problem := damage(partial):
            logger.warning("%s/%s: %s; it is not used", self.address, self.run, problem)
            store.remove(partial)
            return False
        store.rename(partial, final)
        logger.info("the checkpoint of step %d is fetched from %s/%s", step, self.address, self.run)
        return True

    def send(self, folder: Path, step: int, sides: Sequence[Path], wanted: Callable[[], bool] = lambda: True) -> bool:
        """Send a checkpoint, `files.json` last; return whether all of it was still `wanted` before each file."""
        source, start = bucket(self.bucket_name), f"{self.folder}/step-{step:08d}"
        source.delete([f"{start}/{FILES}"])  # of the same step before, which it must not describe
        names = [file.name for file in store.list_files(folder) if file.name != FILES]
        for file, key in [
            *((side, self._side(step, side)) for side in sides if side.is_file()),
            *((folder / name, f"{start}/{name}") for name in [*names, FILES]),
        ]:
            if not wanted():
                return False
            source.upload(file, key, file.stat().st_size, store.sha256(file))
        return True

    def forget(self, steps: Iterable[int]) -> None:
        """Remove the checkpoints of these steps, each one's `files.json` first."""
        source = bucket(self.bucket_name)
        for step in sorted(steps):
            source.delete([f"{self.folder}/step-{step:08d}/{FILES}"])
            start = f"{self.folder}/step-{step:08d}"
            source.delete([each.key for each in source.list(self.folder) if each.key.startswith(start)])

    def _side(self, step: int, file: Path) -> str:
        return f"{self.folder}/step-{step:08d}.{file.name}"


class Sender:
    """Sends what the store lacks of a run's checkpoints, in a thread of its own.

    The newest goes first, older ones while there is no newer one, and those that are left at the end of a run when it
    goes on. What this machine had and has deleted is deleted there too.
    """

    def __init__(self, offsite: Offsite, root: Path, sides: Sequence[Path]) -> None:
        self._offsite = offsite
        self._root = root
        self._sides = sides
        self._changed = threading.Condition()
        self._due = True
        """Whether there may be something to send."""
        self._busy = False
        self._closing = False
        self._had: set[int] = set()
        """Steps that this machine has or had: those alone may leave the store when they leave the machine."""
        self._begun: set[int] = set()
        """Steps of which the store has something."""
        self._sent: set[int] | None = None
        """Steps that are whole in the store; None until it has been asked."""

    def start(self) -> None:
        """Begin to send, first what the last run of this machine has left."""
        self._had = {*checkpoints(self._root)}
        # A daemon: a store that hangs must not keep the process from ending.
        threading.Thread(target=self._work, name="checkpoints to the store", daemon=True).start()

    def offer(self, step: int) -> None:
        """Say that the checkpoint of `step` is complete. Costs nothing, and never raises."""
        with self._changed:
            self._had.add(step)
            self._due = True
            self._changed.notify_all()

    def close(self) -> None:
        """Wait for the newest checkpoint, but not long; older ones are left for the next start."""
        with self._changed:
            self._closing = True
            if not self._changed.wait_for(self._is_done, LAST_WAIT):
                logger.warning(
                    "%s is slow: the last checkpoint is not there; it is sent when the run goes on from this disk",
                    self._offsite.address,
                )

    def _is_done(self) -> bool:
        return not (self._due or self._busy) or self._newest() in (self._sent or ())

    def _newest(self) -> int | None:
        return max(checkpoints(self._root), default=None)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._due)
                self._due, self._busy = False, True
            try:
                self._send_lacking()
            except Exception as error:  # noqa: BLE001 (nothing in this thread may end a training, or go unsaid)
                known = isinstance(error, (UserError, OSError))
                logger.warning("checkpoints are not sent, training goes on: %s", error if known else repr(error))
                bucket.cache_clear()  # credentials in files may have been renewed by the next try

    def _send_lacking(self) -> None:
        if self._sent is None:
            there = self._offsite.listed()
            self._begun, self._sent = {*there}, {step for step, objects in there.items() if FILES in objects}
        while (step := self._next(self._sent)) is not None:
            self._begun.add(step)
            if self._send(step):
                with self._changed:
                    self._sent.add(step)
                    self._changed.notify_all()
                self._forget(step, self._sent)

    def _next(self, sent: set[int]) -> int | None:
        """Return the step to send next, at the end of a training the newest alone."""
        lacking = {*checkpoints(self._root)} - sent
        return max((step for step in lacking if self._is_wanted(step)), default=None)

    def _is_wanted(self, step: int) -> bool:
        return not self._closing or step == self._newest()

    def _send(self, step: int) -> bool:
        """Send a checkpoint with the curves as they are now; return whether it is there."""
        links = self._root / f".{step_folder(self._root, step).name}.sent"
        try:
            return self._link(step, links) and self._offsite.send(
                links / "files", step, [links / side.name for side in self._sides], lambda: self._is_wanted(step)
            )
        finally:
            store.remove(links)

    def _link(self, step: int, links: Path) -> bool:
        """Link a checkpoint's files, which may be deleted while they are sent; return whether they all were there."""
        store.remove(links)
        folder = step_folder(self._root, step)
        try:
            for file in store.list_files(folder):
                store.link_or_copy(file, links / "files" / file.name)
        except FileNotFoundError:
            return False
        for side in self._sides:
            if side.is_file():
                (links / side.name).write_bytes(side.read_bytes())
        return folder.exists()  # it is renamed before its files are deleted

    def _forget(self, step: int, sent: set[int]) -> None:
        """Delete in the store what is deleted here, but not the checkpoint of `step`, which has just been sent."""
        with self._changed:
            had = {*self._had}
        gone = had - {*checkpoints(self._root), step}
        if left_out := sorted(gone - sent):
            logger.warning(
                "%s is slow: not sent while they were here: the checkpoints of steps %s",
                self._offsite.address,
                ", ".join(map(str, left_out)),
            )
        self._offsite.forget(gone & self._begun)
        with self._changed:
            self._had -= gone
        self._begun -= gone
        sent -= gone
