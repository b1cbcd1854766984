"""What every use of the Hub shares: pinned commits, digests, and errors that say what to do."""

import errno
import hashlib
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from pipelines import hub
from pipelines.errors import ConfigError, UserError
from pipelines.hub import HubFile, check_commit, digest_of, explained


@pytest.mark.parametrize(
    "revision", ["main", "", "0123abc", "0" * 39, "0" * 41, "G" * 40, "A" * 40, "refs/convert/parquet"]
)
def test_only_a_full_commit_is_pinned(revision: str) -> None:
    with pytest.raises(ConfigError, match=r"key: expected a commit of owner/name \(40 hexadecimal digits\).*History"):
        check_commit("key", "owner/name", revision)
    check_commit("key", "owner/name", "0123456789abcdef" * 2 + "01234567")


def test_both_of_the_hubs_digests_are_computed(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"hello\n")
    # What `git hash-object` says of it.
    assert digest_of(file, HubFile("a", 6, "c" * 40)) == "ce013625030ba8dba906f756967f9e9ca394464a"
    assert digest_of(file, HubFile("a", 6, "c" * 64)) == hashlib.sha256(b"hello\n").hexdigest()


def test_the_networks_errors_become_one_line_and_the_machines_own_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipelines.hub.unreachable", lambda: "")
    line = r"^owner/name: cannot be fetched from the Hub \(no route\); check the network$"
    with pytest.raises(UserError, match=line), explained("owner/name", "check the network"):
        raise ConnectionError("no\n  route")
    with pytest.raises(OSError, match="No space left"), explained("owner/name", "check the network"):
        raise OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("pipelines.hub.unreachable", lambda: "hub.test cannot be reached (no answer)")
    line = (
        r"^owner/name: not in the local cache, and hub.test cannot be reached \(no answer\); check the network, or give"
    )
    with pytest.raises(UserError, match=line), explained("owner/name", "check the network"):
        raise ConnectionError("no\n  route")


def test_offline_a_data_set_that_is_not_cached_is_told_without_the_clients_advice_to_programmers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "unreachable", lambda: "")  # as it says where HF_HUB_OFFLINE is set
    leaked = "Cannot find a snapshot. To enable repo look-ups and downloads online, pass 'local_files_only=False'"
    line = r"^owner/name: not in the local cache; unset HF_HUB_OFFLINE to fetch it, or give local files$"
    with pytest.raises(UserError, match=line), explained("owner/name", "unset HF_HUB_OFFLINE to fetch it"):
        raise LocalEntryNotFoundError(leaked)
