"""The rules for single URLs, the lists they use, and the registered domain."""

import socket
from pathlib import Path

import pytest

from dataprep.url_lists.domains import registered_domain
from dataprep.url_lists.rules import (
    LISTS,
    Blacklists,
    blacklisted_domain,
    judge,
    list_files,
    load_blacklists,
    path_extension,
)
from pipelines.errors import UserError

BUILT_IN = load_blacklists(list_files(LISTS))

REJECTED = [
    # url, rule, value
    ("https://www.youtube.com/watch?v=1", "domain_blacklist", "youtube.com (video)"),
    ("http://YOUTUBE.com", "domain_blacklist", "youtube.com (video)"),
    ("http://a.b.imgur.com/x", "domain_blacklist", "imgur.com (images)"),
    ("http://play.google.com/store", "domain_blacklist", "play.google.com (apps)"),
    # the first rule that applies counts
    ("http://imgur.com/x.jpg", "domain_blacklist", "imgur.com (images)"),
    ("http://garden.test/x.pdf", "extension_blacklist", ".pdf (documents)"),
    ("http://garden.test/X.PDF", "extension_blacklist", ".pdf (documents)"),
    ("http://garden.test/x.pdf#page=2", "extension_blacklist", ".pdf (documents)"),
    ("http://garden.test/x.pdf?download=1", "extension_blacklist", ".pdf (documents)"),
    ("http://garden.test/x.pdf;v=2", "extension_blacklist", ".pdf (documents)"),
    ("http://garden.test/x%2Epdf", "extension_blacklist", ".pdf (documents)"),
    ("http://garden.test/x.7z", "extension_blacklist", ".7z (archives)"),
    ("http://garden.test/x.ai", "extension_blacklist", ".ai (images)"),
    ("http://garden.test/x.tar.gz", "extension_blacklist", ".gz (archives)"),
    ("garden.test/x.zip", "extension_blacklist", ".zip (archives)"),
    ("http://a", "too_short", "8 characters"),
    ("x", "too_short", "1 characters"),
    ("http://ab", "malformed", "host 'ab' is no public name"),
    ("http://localhost/x", "malformed", "host 'localhost' is no public name"),
    ("garden.test/page", "malformed", "not an http or https URL with a valid host"),
    ("ftp://garden.test/a", "malformed", "not an http or https URL with a valid host"),
    ("http://garden.test/a b", "malformed", "white space inside"),
    ("http://garden.test:99999/", "malformed", "not an http or https URL with a valid host"),
]
ACCEPTED = [
    "http://garden.test/",
    "http://garden.test/x.html",
    "http://garden.test/x.7z.ai.html",
    "http://garden.test/.pdf",
    "http://garden.test/x.pdf/",
    "http://garden.test/get?file=x.pdf",
    "http://garden.test/get#x.pdf",
    "http://garden.ai/",
    # the rule is about a registered domain, not about every domain of that name
    "http://youtube.garden.test/",
    "http://imgur.org/",
    "http://notyoutube.com/",
    "http://twitter.com.garden.test/",
    "http://news.google.com/story",
]


@pytest.mark.parametrize(("url", "rule", "value"), REJECTED)
def test_the_first_rule_that_applies_is_named_with_its_value(url: str, rule: str, value: str) -> None:
    verdict = judge(url, BUILT_IN, 8)
    assert (verdict.rule, verdict.value, verdict.canonical) == (rule, value, "")


@pytest.mark.parametrize("url", ACCEPTED)
def test_nothing_else_is_rejected(url: str) -> None:
    verdict = judge(url, BUILT_IN, 8)
    assert verdict.rule == ""
    assert verdict.canonical.startswith("http://")


def test_a_public_suffix_in_a_list_blocks_only_itself() -> None:
    lists = Blacklists({"co.uk": "test", "garden.co.uk": "test"}, {})
    assert blacklisted_domain("www.other.co.uk", lists) is None
    assert blacklisted_domain("www.garden.co.uk", lists) == "garden.co.uk"


def test_the_built_in_lists_are_clean() -> None:
    for file in list_files(LISTS):
        entries = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert entries == [entry.strip().lower() for entry in entries], file.name
        assert len(entries) == len(set(entries)), file.name
        for entry in entries:
            assert entry.startswith(".") == file.name.startswith("extensions"), entry
            assert file.name.startswith("extensions") or registered_domain(entry), entry
    assert {".7z", ".ai"} <= BUILT_IN.extensions.keys()
    assert len(BUILT_IN.domains) > 100


def test_lists_of_ones_own_take_the_place_of_the_built_in_ones(tmp_path: Path) -> None:
    (tmp_path / "domains-mine.txt").write_text("# mine\nGarden.test # all of it\n\n")
    lists = load_blacklists(list_files(tmp_path))
    assert judge("http://a.garden.test/", lists, 8).value == "garden.test (mine)"
    assert judge("https://www.youtube.com/", lists, 8).rule == ""


def test_a_folder_without_lists_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no blacklist"):
        list_files(tmp_path)


@pytest.mark.parametrize(
    ("host", "domain"),
    [
        ("garden.test", "garden.test"),
        ("a.b.garden.test", "garden.test"),
        ("www.garden.co.uk", "garden.co.uk"),
        ("me.blogspot.com", "blogspot.com"),
        ("localhost", "localhost"),
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
    ],
)
def test_registered_domains_come_from_the_public_suffix_list(host: str, domain: str) -> None:
    assert registered_domain(host) == domain


def test_registered_domains_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    registered_domain.cache_clear()
    assert registered_domain("www.garden.org.uk") == "garden.org.uk"


def test_extensions_are_those_of_the_last_segment() -> None:
    assert path_extension("/a.b/c") == ""
    assert path_extension("/a/c.HTML") == ".html"
    assert path_extension("") == ""
