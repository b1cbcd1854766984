"""Outputs that go to a store: each file by one atomic put, the manifest last, so that an output is whole or not there.

A run first claims the place: it puts `staged.json` there, with its fingerprint and the names of what it will replace,
unless there is one. So nobody finds out after hours that he may not write, two machines do not write to one place, and
the same command goes on after a kill: it sends only what is missing. An output that is to be replaced stays until the
new one is complete on this machine; while that is sent, there is none.
"""

import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipelines import store
from pipelines.addresses import split_s3
from pipelines.buckets import Bucket, bucket
from pipelines.documents import is_jsonl
from pipelines.errors import ConfigError, UserError
from pipelines.fetched import AT_ONCE
from pipelines.manifest import MANIFEST, STORED, FileEntry, Manifest, manifest_path
from pipelines.outputs import rejected_name
from pipelines.ownership import STAGED
from pipelines.progress import track

_MARK = "millrace.json"
_FORMAT = {"format": "files by sha256", "version": 1}


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an output goes, and the path that stands for it on this machine until it is sent."""

    address: str
    bucket_name: str
    key: str
    local: Path

    @property
    def bucket(self) -> Bucket:
        """The bucket."""
        return bucket(self.bucket_name)

    @property
    def is_file(self) -> bool:
        """Whether it is one JSONL file, with its companions, and not a folder."""
        return is_jsonl(self.local)

    @property
    def folder(self) -> str:
        """The key of the folder that the names of its files are below."""
        return self.key.rpartition("/")[0] if self.is_file else self.key

    @property
    def manifest(self) -> str:
        """The name of its manifest."""
        return f"{self.local.name}.{MANIFEST}" if self.is_file else MANIFEST

    @property
    def claim(self) -> str:
        """The name of what says that a run writes here."""
        return f"{self.local.name}.{STAGED}" if self.is_file else STAGED

    def key_of(self, name: str) -> str:
        """Return the key of one of its files."""
        return f"{self.folder}/{name}" if self.folder else name

    def present(self) -> dict[str, int]:
        """Return name and size of all that lies in its place."""
        if self.is_file:
            names = (self.local.name, rejected_name(self.local), self.manifest, self.claim)
            found = {name: self.bucket.head(self.key_of(name)) for name in names}
            return {name: each.bytes for name, each in found.items() if each}
        start = f"{self.key}/"
        listed = self.bucket.list(self.key)
        at = self.bucket.head(self.key)
        found = {each.key.removeprefix(start): each.bytes for each in listed if each.key != start}
        return found | ({"": at.bytes} if at else {})


@dataclass(frozen=True, slots=True)
class ShardStore:
    """A place in a bucket that has files by their digests, each once, for folders that keep their manifests alone."""

    address: str
    bucket_name: str
    folder: str

    def key_of(self, sha256: str) -> str:
        """Return the key of the file with a digest."""
        return f"{self.folder}/sha256/{sha256[:2]}/{sha256[2:]}"

    def check(self) -> None:
        """Raise UserError unless this run may write there."""
        source, key = bucket(self.bucket_name), f"{self.folder}/{_MARK}"
        if source.create(key, store.json_bytes(_FORMAT)) != store.json_bytes(_FORMAT):
            raise UserError(f"{source.url(key)}: not of a store of ours; set MILLRACE_STORE to another folder")

    def damage_of_file(self, file: Path, entry: FileEntry) -> str | None:
        """Return what is wrong in the store with a file of a folder, or None; its bytes are not read."""
        key = self.key_of(entry.sha256)
        if bucket(self.bucket_name).holds(key, entry.bytes, entry.sha256):
            return None
        url = bucket(self.bucket_name).url(key)
        return f"{file}: not in the store, or with another size or digest ({url}); make the folder again"

    def take(self, staged: Path) -> None:
        """Send the files of a folder that is complete, each unless it is there, and leave its manifest alone."""
        manifest, source = Manifest.load(staged / MANIFEST), bucket(self.bucket_name)
        files = {entry.sha256: (name, entry) for name, entry in manifest.files.items()}

        def send(digest: str) -> None:
            name, entry = files[digest]
            if not source.holds(self.key_of(digest), entry.bytes, digest):
                source.upload(staged / name, self.key_of(digest), entry.bytes, digest)

        _each(files, send, f"upload {staged.name.removeprefix('staged-')} to {self.address}")
        for child in list(staged.iterdir()):
            if child.name != MANIFEST:
                store.remove(child)
        store.write_json(staged / STORED, {"store": self.address})


def shard_store(address: str) -> ShardStore:
    """Return the store at an address; raise ConfigError if there can be none."""
    return ShardStore(address, *split_s3(address))


class Uploads:
    """The outputs of one run that go to stores."""

    def __init__(
        self, destinations: Mapping[str, Destination], shards: ShardStore | None = None, *, overwrite: bool
    ) -> None:
        self._destinations = destinations
        self._overwrite = overwrite
        self._shards = shards
        self.inputs: dict[str, dict[str, Any]] = {}
        """Address -> what was fetched from it, for the provenance."""

    def require_shared(self, shard_range: str) -> None:
        """Raise ConfigError if an input or output lies in a store: tasks work on files that they all see."""
        for address in (*self.inputs, *(output.address for output in self._destinations.values())):
            raise ConfigError(
                f"--shard-range {shard_range}: {address}: the tasks of an array share files; name a folder that all of "
                "them see, and copy to or from the store afterwards"
            )

    def check(self, fingerprint: str = "") -> dict[str, set[str]]:
        """Return for each output the names of what it replaces; raise UserError for one that this run may not write.

        Without a `fingerprint`, which is known later, any unfinished run may be this one.
        """
        if self._shards and not fingerprint:
            self._shards.check()
        return {name: self._check(each, fingerprint) for name, each in self._destinations.items()}

    def _check(self, output: Destination, fingerprint: str) -> set[str]:
        found = output.present()
        claim = _claim(output.bucket.read(output.key_of(output.claim))) if found.pop(output.claim, None) else None
        if claim and (not fingerprint or claim.get("fingerprint") == fingerprint):
            return {*claim.get("replaces", ())}
        if claim and not self._overwrite:
            raise UserError(
                f"{output.address}: another run writes there, or was stopped while it did; run that one again, choose "
                "another output, or replace what it left with --overwrite"
            )
        if not found:
            return set()
        if claim:  # of a run that was stopped, and is to be replaced with what it replaced
            others = sorted({*found} - {*claim.get("replaces", ()), *claim.get("writes", ()), output.manifest})
            if others:
                raise UserError(
                    f"{output.bucket.url(output.key_of(others[0]))}: no stage made it, so nothing there is replaced; "
                    "move it away, or choose another output"
                )
            return {*found}
        manifest = self._manifest(output) if output.manifest in found else None
        if manifest is None:
            some = ", ".join(sorted(name or output.key for name in found)[:3])
            raise UserError(
                f"{output.address}: not empty ({some}), and no stage made it (no {output.manifest} of ours is there); "
                "nothing was changed: choose another output"
            )
        strangers = sorted({*found} - {*manifest.files, output.manifest})
        if strangers:
            raise UserError(
                f"{output.bucket.url(output.key_of(strangers[0]))}: no stage made it ({output.manifest} does not name "
                "it), so nothing there is replaced; move it away, or choose another output"
            )
        if not self._overwrite:
            raise UserError(f"{output.address}: exists already; choose another output, or replace it with --overwrite")
        return {*found}

    def _manifest(self, output: Destination) -> Manifest | None:
        try:
            return Manifest.parse(json.loads(output.bucket.read(output.key_of(output.manifest))), output.address)
        except (UserError, ValueError):
            return None

    def claim(self, fingerprint: str) -> None:
        """Say in the place of each output that this run writes there."""
        for name, replaces in self.check(fingerprint).items():
            output = self._destinations[name]
            key, data = (
                output.key_of(output.claim),
                store.json_bytes({"fingerprint": fingerprint, "replaces": sorted(replaces)}),
            )
            there = output.bucket.create(key, data)
            if _claim(there).get("fingerprint") != fingerprint:
                if not self._overwrite:
                    raise UserError(
                        f"{output.address}: another run has just begun to write there; choose another output"
                    )
                output.bucket.delete([key])
                output.bucket.create(key, data)

    def release(self) -> None:
        """Take the claims back, of a run that leaves nothing to go on with."""
        for output in self._destinations.values():
            output.bucket.delete([output.key_of(output.claim)])

    def take_away(self, name: str, output: Path) -> bool:
        """Return whether the files of an output are not on this machine in the end."""
        return name in self._destinations or bool(self._shards and not is_jsonl(output))

    def take(self, name: str, output: Path, staged: Path) -> None:
        """Before an output is swapped in: send its files, if they go to a store and its folder stays here."""
        if self._shards and name not in self._destinations and not is_jsonl(output):
            self._shards.take(staged)

    def publish(self, fingerprint: str) -> None:
        """Send all outputs, which are complete on this machine."""
        for name, replaces in self.check(fingerprint).items():
            self._publish(self._destinations[name], fingerprint, replaces)

    def _announce(self, output: Destination, fingerprint: str, replaces: set[str], manifest: Manifest) -> None:
        """Have the claim name what will lie there, so that another run can tell it from what is not ours."""
        key = output.key_of(output.claim)
        claim = {"fingerprint": fingerprint, "replaces": sorted(replaces), "writes": sorted(manifest.files)}
        output.bucket.delete([key])
        if _claim(output.bucket.create(key, store.json_bytes(claim))).get("fingerprint") != fingerprint:
            raise UserError(f"{output.address}: another run has just begun to write there; choose another output")

    def _publish(self, output: Destination, fingerprint: str, replaces: set[str]) -> None:
        path = manifest_path(output.local)
        manifest, data = Manifest.load(path), store.read_json_bytes(path)
        source, key = output.bucket, output.key_of(output.manifest)
        present = output.present()
        if output.manifest in present and source.read(key) != data:
            source.delete([key])  # it must never describe other files
        base = path.parent
        self._announce(output, fingerprint, replaces, manifest)

        def send(name: str) -> None:
            entry = manifest.files[name]
            there = present.get(name) == entry.bytes and source.holds(output.key_of(name), entry.bytes, entry.sha256)
            if not there:
                source.upload(base / name, output.key_of(name), entry.bytes, entry.sha256)

        _each(manifest.files, send, f"upload {output.address}")
        if source.create(key, data) != data:
            raise UserError(
                f"{output.address}: another run has published something else there meanwhile; choose another output"
            )
        gone = replaces - {*manifest.files, output.manifest, output.claim}
        source.delete([output.key_of(name) for name in sorted(gone)] + [output.key_of(output.claim)])

    def remove_local(self) -> None:
        """Remove what stood for the outputs on this machine."""
        for output in self._destinations.values():
            path = manifest_path(output.local)
            if output.is_file:
                for name in (*Manifest.load(path).files, path.name):
                    store.remove(path.parent / name)
            else:
                store.remove(output.local)


def _each(items: Collection[str], send: Callable[[str], None], what: str) -> None:
    """Call a function for each item, several at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for _ in track(pool.map(send, items), what=what, total=len(items), unit="files"):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _claim(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        value = None
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
