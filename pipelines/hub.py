"""The Hugging Face Hub: pinned commits, listings, downloads that resume where they stopped, one-line errors.

Requests go through `huggingface_hub`, so HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE mean what they always
do. Files are fetched by its `http_get`, because `hf_hub_download` starts a file from scratch in every process.
No code of a repository is ever run.
"""

import functools
import hashlib
import os
import re
import socket
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from pipelines import store
from pipelines.errors import ConfigError, UserError

REACH_SECONDS = 4.0
"""How long the Hub's server is tried before the local cache alone is used."""
PATIENCE = 3
"""Attempts without a byte of progress before a download is given up; in each, the client retries by itself too."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_PASSING = (408, 429, 500, 502, 503, 504)
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a data set at a commit."""

    path: str
    size: int
    digest: str
    """The Hub's digest of its bytes: sha256 in hex for a large file, git's sha1 for others."""


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A data set's repository at a commit."""

    repository: str
    revision: str

    def files(self, patterns: Sequence[str]) -> list[HubFile]:
        """Return the files that match one of `patterns`, in order of path; offline, those of the local cache."""
        from huggingface_hub.constants import is_offline_mode

        unreachable()  # which makes the client work from the cache
        offline = is_offline_mode()
        missing = "unset HF_HUB_OFFLINE to fetch it" if offline else "check the network"
        with explained(self, missing):
            known = self._cached_files(patterns) if offline else self._listed_files()
        chosen = [file for file in known if any(fnmatchcase(file.path, pattern) for pattern in patterns)]
        if not chosen:
            examples = ", ".join(file.path for file in known[:5])
            raise UserError(
                f"{self}: none of its {len(known)} files matches {', '.join(patterns)}; it has {examples} ..."
            )
        return chosen

    def take(self, file: HubFile, partial: Path) -> Path:
        """Return a path to a file, complete and verified: in the local cache, or else `partial`, which is resumed."""
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(self.repository, file.path, revision=self.revision, repo_type="dataset")
        if isinstance(cached, str) and digest_of(Path(cached), file) == file.digest:
            return Path(cached).resolve()
        with explained(self, "run the same command again: it resumes where it stopped"):
            try:
                self._fetch(file, partial)
            except OSError as error:
                store.name_if_full(error, partial)
                raise
        if digest_of(partial, file) != file.digest:
            partial.unlink()
            raise UserError(f"{self}: {file.path} arrived damaged and was removed; run the same command again")
        return partial

    def _listed_files(self) -> list[HubFile]:
        from huggingface_hub import HfApi, RepoFile

        tree = HfApi().list_repo_tree(self.repository, recursive=True, revision=self.revision, repo_type="dataset")
        files = [entry for entry in tree if isinstance(entry, RepoFile)]
        listed = [HubFile(file.path, file.size, file.lfs.sha256 if file.lfs else file.blob_id) for file in files]
        return sorted(listed, key=lambda file: file.path)

    def _cached_files(self, patterns: Sequence[str]) -> list[HubFile]:
        from huggingface_hub import snapshot_download

        # Raises an error if the cache knows that some of them are missing.
        snapshot = snapshot_download(
            self.repository,
            repo_type="dataset",
            revision=self.revision,
            allow_patterns=list(patterns),
            local_files_only=True,
        )
        folder = Path(snapshot)
        # In the cache a blob is named by its digest, and a file is a link to its blob.
        return [
            HubFile(file.relative_to(folder).as_posix(), file.stat().st_size, file.resolve().name)
            for file in store.list_files(folder)
        ]

    def _fetch(self, file: HubFile, partial: Path) -> None:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.file_download import http_get
        from huggingface_hub.utils import build_hf_headers, disable_progress_bars

        disable_progress_bars()  # those of several workers would overwrite each other
        url = hf_hub_url(self.repository, file.path, repo_type="dataset", revision=self.revision)
        # A range of a compressed response would be a range of the compressed bytes.
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        partial.parent.mkdir(parents=True, exist_ok=True)
        failures = 0
        while True:
            done = partial.stat().st_size if partial.exists() else 0
            if done > file.size:
                partial.unlink()
                done = 0
            try:
                with partial.open("ab") as opened:
                    http_get(url, opened, resume_size=done, headers=headers, expected_size=file.size)
                return
            except _client_error() as error:
                failures = 1 if partial.stat().st_size > done else failures + 1
                if failures == PATIENCE or _status(error) not in (0, *_PASSING):
                    raise
                time.sleep(2**failures)

    def __str__(self) -> str:
        return f"{self.repository} at {self.revision[:12]}"


def check_commit(key: str, repository: str, revision: str) -> None:
    """Raise ConfigError for a branch or tag: only a full commit hash always names the same bytes."""
    if not _COMMIT.fullmatch(revision):
        raise ConfigError(
            f"{key}: expected a commit of {repository} (40 hexadecimal digits), got {revision!r}; its page on the Hub "
            "has them under 'History', `git ls-remote` lists those of its branches"
        )


def commit_of(repository: str, revision: str) -> str:
    """Return the commit that a branch or tag of a data set is at now; a commit is its own."""
    from huggingface_hub import HfApi

    if _COMMIT.fullmatch(revision):
        return revision
    with explained(f"{repository} at {revision}", "name a commit of it, 40 hexadecimal digits, to work from the cache"):
        commit = HfApi().dataset_info(repository, revision=revision).sha
    if commit is None:
        raise UserError(f"{repository}: the Hub names no commit for {revision}; name one yourself")
    return commit


def digest_of(path: Path, file: HubFile) -> str:
    """Return the digest of the bytes at `path`, of the kind that the Hub lists for `file`."""
    if len(file.digest) == 64:
        return store.sha256(path)
    # Git hashes a blob with its kind and size in front of its bytes.
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as opened:
        while data := opened.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


@contextmanager
def explained(what: object, advice: str) -> Generator[None]:
    """Turn errors of the Hub's client into one line that says what to do; errors of this machine pass through."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils import logging

    logging.disable_propagation()  # the client logs every retry to its own handler, and would again to ours
    problem = unreachable()
    try:
        yield
    except HFValidationError as error:
        raise UserError(f"{what}: not the name of a repository ({error}); expected OWNER/NAME") from None
    except GatedRepoError:
        raise UserError(
            f"{what}: its owner grants access on request; ask for access on its page on the Hub, then set HF_TOKEN"
        ) from None
    except RepositoryNotFoundError:
        raise UserError(
            f"{what}: the Hub has no such repository, or hides it; check the name, or set HF_TOKEN"
        ) from None
    except RevisionNotFoundError:
        raise UserError(f"{what}: the repository has no such commit; check the revision") from None
    except (OSError, _client_error()) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
            raise  # such as a full disk or missing rights: the error says what and where
        if problem:
            missing = f"not in the local cache, and {problem}"
            raise UserError(f"{what}: {missing}; check the network, or give local files") from None
        if type(error) is LocalEntryNotFoundError:  # it advises programmers; those below it say what is missing
            raise UserError(f"{what}: not in the local cache; {advice}, or give local files") from None
        reason = " ".join(str(error).split()) or type(error).__name__
        if _status(error) in (401, 403):
            advice = "check the name, and set HF_TOKEN if it is private"
        raise UserError(f"{what}: cannot be fetched from the Hub ({reason}); {advice}") from None


@functools.cache
def unreachable() -> str:
    """Return why the Hub cannot be reached, and have its client work from the local cache; empty if it can be.

    The client itself finds out after half a minute of retries, and again in each worker. Behind a proxy, or offline by
    HF_HUB_OFFLINE, nothing is tried.
    """
    from huggingface_hub import constants

    address, found, proxies = urlsplit(constants.ENDPOINT), list[str](), getproxies()
    if constants.is_offline_mode() or proxies.get(address.scheme) or proxies.get("all"):
        return ""
    # In a thread, since a search for the name of a host has no limit of its own.
    searching = threading.Thread(target=_connect, args=(address, found), daemon=True)
    searching.start()
    searching.join(REACH_SECONDS)
    reason = found[0] if found else f"no answer within {REACH_SECONDS:g} s"
    if not reason:
        return ""
    constants.HF_HUB_OFFLINE = True
    os.environ["HF_HUB_OFFLINE"] = "1"  # for the library datasets, which reads it when it is imported
    return f"{address.hostname} cannot be reached ({reason})"


def _connect(address: SplitResult, found: list[str]) -> None:
    """Append what keeps this process from the address; an empty text if nothing does."""
    try:
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname, port), timeout=REACH_SECONDS).close()
        found.append("")
    except OSError as error:
        found.append(error.strerror or str(error))


def _status(error: Exception) -> int:
    """Return the HTTP status of an error; 0 for a connection error."""
    from huggingface_hub.errors import HfHubHTTPError

    return error.response.status_code if isinstance(error, HfHubHTTPError) else 0


def _client_error() -> type[Exception]:
    """Return the base class of all errors of the Hub's HTTP client, whichever client its version uses."""
    from huggingface_hub.errors import HTTPError  # pyright: ignore[reportPrivateImportUsage]

    return HTTPError
