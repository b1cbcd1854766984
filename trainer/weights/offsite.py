"""Copies of checkpoints in a bucket, made beside the training, and the way back on another machine.

With `MILLRACE_CHECKPOINTS=s3://BUCKET/FOLDER`, each checkpoint of a pretraining is also sent to
`FOLDER/<fingerprint of the run>/step-00001000/`, with the run's curves beside it as `step-00001000.curve.csv`, and
`files.json` last: a checkpoint without it does not count. A thread of the first process sends them; training never
waits for it but for LAST_WAIT seconds at its end. While one is on its way, only the newest of the others waits. A store
that fails costs a warning. A run that has no checkpoint on its disk begins by looking for one there.
"""

import logging
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines import store
from pipelines.addresses import split_s3
from pipelines.buckets import Object, bucket
from pipelines.errors import UserError
from trainer.weights.records import FILES, checkpoints, damage, step_folder

logger = logging.getLogger(__name__)

CHECKPOINTS = "MILLRACE_CHECKPOINTS"
LAST_WAIT = 120.0
"""Seconds that the end of a training waits for a checkpoint that is still being sent."""
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

    def listed(self) -> dict[int, list[Object]]:
        """Return step -> objects of each checkpoint that is there, complete or not, oldest first."""
        found: dict[int, list[Object]] = {}
        for each in bucket(self.bucket_name).list(self.folder):
            if match := _STEP.fullmatch(each.key.removeprefix(f"{self.folder}/")):
                found.setdefault(int(match[1]), []).append(each)
        return dict(sorted(found.items()))

    def restore(self, root: Path, sides: Sequence[Path]) -> int | None:
        """Fetch the newest whole checkpoint into `root`, and the run's files beside it; return its step, if any.

        Raises UserError if the store cannot be asked: a training that began anew would cost what is there.
        """
        source = bucket(self.bucket_name)
        for step, objects in reversed(self.listed().items()):
            names = {each.key.rpartition("/")[2]: each for each in objects}
            if FILES not in names:
                continue
            final = step_folder(root, step)
            partial = final.with_name(f".{final.name}.fetched")
            store.remove(partial)
            for name, each in names.items():
                source.download(each, partial / name)
            if problem := damage(partial):
                logger.warning("%s; an earlier one is looked for", problem)
                store.remove(partial)
                continue
            for side in sides:
                if found := source.head(self._side(step, side)):
                    source.download(found, side)
            store.rename(partial, final)
            logger.info("the checkpoint of step %d is fetched from %s/%s", step, self.address, self.run)
            return step
        return None

    def send(self, folder: Path, step: int, sides: Sequence[Path]) -> None:
        """Send a checkpoint, `files.json` last."""
        source, start = bucket(self.bucket_name), f"{self.folder}/step-{step:08d}"
        source.delete([f"{start}/{FILES}"])  # of the same step before, which it must not describe
        names = [file.name for file in store.list_files(folder) if file.name != FILES]
        for file, key in [
            *((side, self._side(step, side)) for side in sides if side.is_file()),
            *((folder / name, f"{start}/{name}") for name in [*names, FILES]),
        ]:
            source.upload(file, key, file.stat().st_size, store.sha256(file))

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
    """Sends checkpoints in a thread of its own."""

    def __init__(self, offsite: Offsite, root: Path, sides: Sequence[Path]) -> None:
        self._offsite = offsite
        self._root = root
        self._sides = sides
        self._lock = threading.Condition()
        self._waiting: int | None = None
        """The step of the checkpoint that is to be sent next, of which links are kept."""
        self._busy = False
        self._known = {*checkpoints(root)}
        """Steps that this machine has, or has sent: those alone may leave the store when they leave the machine."""
        self._thread: threading.Thread | None = None

    def offer(self, step: int) -> None:
        """Have the checkpoint of `step` sent as soon as the one before is. Costs a few links, and never raises."""
        try:
            self._link(step)
        except OSError as error:
            logger.warning("the checkpoint of step %d is not sent to %s (%s)", step, self._offsite.address, error)
            return
        with self._lock:
            if self._waiting is not None:
                logger.warning(
                    "%s is slow: the checkpoint of step %d is left out", self._offsite.address, self._waiting
                )
                store.remove(self._links(self._waiting))
            self._waiting = step
            if self._thread is None:
                # A daemon: a store that hangs must not keep the process from ending.
                self._thread = threading.Thread(target=self._work, name="checkpoints to the store", daemon=True)
                self._thread.start()
            self._lock.notify_all()

    def close(self) -> None:
        """Wait for what is being sent, but not long."""
        with self._lock:
            if not self._lock.wait_for(lambda: self._waiting is None and not self._busy, LAST_WAIT):
                logger.warning("%s is slow: the last checkpoint is not there", self._offsite.address)

    def _links(self, step: int) -> Path:
        return self._root / f".{step_folder(self._root, step).name}.sent"

    def _link(self, step: int) -> None:
        """Keep a checkpoint's files, which may be deleted while they are sent, and the curves as they are now."""
        links = self._links(step)
        store.remove(links)
        for file in store.list_files(step_folder(self._root, step)):
            store.link_or_copy(file, links / "files" / file.name)
        for side in self._sides:
            if side.is_file():
                (links / side.name).write_bytes(side.read_bytes())

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting is not None)
                step, self._waiting, self._busy = self._waiting, None, True
            assert step is not None  # what was waited for
            links = self._links(step)
            try:
                self._offsite.send(links / "files", step, [links / side.name for side in self._sides])
                # Others in the store are another machine's, or were sent before this one went on from there.
                self._known |= {*checkpoints(self._root), step}
                gone = self._known - {*checkpoints(self._root), step}
                self._offsite.forget(gone)
                self._known -= gone
            except (UserError, OSError) as error:
                logger.warning("the checkpoint of step %d is not in the store, training goes on: %s", step, error)
            except Exception as error:  # noqa: BLE001 (nothing in this thread may end a training, or go unsaid)
                logger.warning("the checkpoint of step %d is not in the store, training goes on: %r", step, error)
            store.remove(links)
            with self._lock:
                self._busy = False
                self._lock.notify_all()
