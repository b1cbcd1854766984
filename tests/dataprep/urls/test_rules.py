"""The rules for single URLs and for columns of them, the lists they use, and the registered domain."""

import socket
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.urls.blacklists import LISTS, Blacklists, list_files, load_blacklists
from dataprep.urls.rules import FastPath, Judge, Verdict, blacklisted_domain, path_extension
from dataprep.web.domains import registered_domain
from dataprep.web.url_lists import unescaped
from pipelines.errors import UserError
from pipelines.identity import canonical_url

BUILT_IN = load_blacklists(list_files(LISTS))


def judge(url: str, lists: Blacklists, longest_short: int) -> Verdict:
    return Judge(lists, longest_short)(url)


REJECTED = [
    ("/r/gardens/comments/5abc/a_rose.jpg", "self_post", "relative URL"),
    ("/comments/5abc/roses/", "self_post", "relative URL"),
    ("/r/gardens/wiki/roses", "malformed", "not an http or https URL with a valid host"),
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
    ("http://169.254.169.254/latest/", "malformed", "address 169.254.169.254 is not public"),
    ("http://[::ffff:10.0.0.1]/page", "malformed", "address ::ffff:a00:1 is not public"),
    ("http://2130706433/page", "malformed", "address 127.0.0.1 is not public"),
    ("http://wiki.corp/page", "malformed", "host 'wiki.corp' is no public name"),
    ("http://printer.local/page", "malformed", "host 'printer.local' is no public name"),
]
ACCEPTED = [
    "http://garden.test/r/gardens/comments/5abc/roses",
    "http://garden.test/#!/files/x.pdf",
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
    "http://8.8.8.8/page",
    "http://corp.garden.test/page",
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
    assert len(BUILT_IN.domains) > 1000
    assert len(BUILT_IN.extensions) > 200


def test_no_built_in_entry_stands_twice_or_below_another() -> None:
    """An entry covers everything below it, so a second one would only hide which category applies."""
    entries = [line for file in list_files(LISTS) for line in file.read_text().splitlines() if line[0] != "#"]
    assert len(entries) == len(set(entries))
    for entry in entries:
        parent = entry.partition(".")[2]
        while parent:
            assert parent not in BUILT_IN.domains, entry
            parent = parent.partition(".")[2]


def test_built_in_extensions_are_no_endings_of_hosts_that_stand_in_paths() -> None:
    """`/web/2010/http://www.abc.net.au` is a page; only .ai, .zip, .mov and .ps are both, as in Megatron's lists."""
    for ending in (
        ".com",
        ".org",
        ".net",
        ".au",
        ".br",
        ".pl",
        ".rs",
        ".sh",
        ".uk",
        ".de",
        ".html",
        ".php",
        ".asp",
        ".cgi",
    ):
        assert ending not in BUILT_IN.extensions, ending


def test_a_page_entry_covers_the_pages_below_it_and_nothing_beside_them() -> None:
    lists = Blacklists({}, {}, {"garden.test/~rose": "mine", "garden.test/forum?id=7": "mine"}, {"garden.test": "mine"})
    below = ["/~rose", "/~rose/", "/~rose/thorns?x=1", "/%7Erose", "/forum?id=7", "/forum?id=7&page=2"]
    beside = ["/", "/~rosemary", "/~ros", "/forum", "/forum?id=77", "/x/~rose"]
    for host in ("http://garden.test", "https://www.garden.test"):
        assert [judge(host + path, lists, 8).rule for path in below] == ["url_blacklist"] * len(below)
        assert [judge(host + path, lists, 8).rule for path in beside] == [""] * len(beside)
    assert judge("http://garden.test/~rose/a", lists, 8).value == "garden.test/~rose (mine)"
    assert judge("http://other.garden.test/~rose", lists, 8).rule == ""


def test_hash_bang_pages_have_entries_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("harbour.test/#!/quay # a comment\ngarden.test#all\n")
    lists = load_blacklists([tmp_path / "mine.txt"])
    assert judge("http://harbour.test/#!/quay/1", lists, 8).value == "harbour.test/#!/quay (mine)"
    assert judge("http://harbour.test/#!/pier", lists, 8).canonical == "http://harbour.test/#!/pier"
    assert judge("http://harbour.test/#quay", lists, 8).canonical == "http://harbour.test/"
    assert judge("http://garden.test/", lists, 8).rule == "domain_blacklist"


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


FEW_ENTRIES = Blacklists(
    {"imgur.test": "images", "co.uk": "suffix", "deep.garden.test": "mine"},
    {".pdf": "documents", ".7z": "archives"},
    {"garden.test/~rose": "mine"},
    {"garden.test": "mine"},
)
FRAGMENTS = [
    *("http://", "https://", "HTTP://", "ftp://", "//", ""),
    *("garden.test", "www.garden.test", "a.imgur.test", "x.co.uk", "deep.garden.test", "harbour.test", "GARDEN.test"),
    *(
        "10.0.0.1",
        "8.8.8.8",
        "127.1",
        "intranet",
        "wiki.corp",
        "a_b.test",
        "-a.test",
        "x..test",
        "b\u00fc.test",
        "test.",
    ),
    *("/", "/a", "/~rose", "/..", "/.b", "/b.pdf", "/c.PDF;v=1", "/d.7z/", "/e.html", ".pdf", ":80", ":8080", "@"),
    *(
        "?",
        "&",
        "=",
        "q=1",
        "utm_source=x",
        "UTM_x",
        "gclid",
        "&&",
        "#",
        "#top",
        "#!a",
        "#!",
        "&amp;",
        "&#38;",
        "%20",
        "%c3%a9",
        "%C3%A9",
        "%41",
        "%2F",
        "%",
        " ",
        "\t",
        "\u00e9",
        "'",
    ),
]
LINES = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join),
    st.builds(
        lambda host, path: f"http://{host}{path}",
        st.sampled_from([fragment for fragment in FRAGMENTS if "test" in fragment]),
        st.lists(st.sampled_from([text for text in FRAGMENTS if text[:1] in "/?&=qug#.%"]), max_size=5).map("".join),
    ),
    st.text(max_size=20),
)


@given(st.lists(LINES, max_size=30))
def test_the_fast_path_gives_the_verdicts_of_the_judge_or_none(lines: list[str]) -> None:
    judge = Judge(FEW_ENTRIES, 8)
    canonical, passed, broken = FastPath(judge)(pa.array(lines, pa.large_string()))
    rejected = dict(broken)
    for row, (line, form) in enumerate(zip(lines, canonical.to_pylist(), strict=True)):
        if passed[row]:
            assert judge(line) == (form, "", ""), line
            assert row not in rejected
        elif row in rejected:
            assert judge(line) == rejected[row], line
        if passed[row] or row in rejected:
            assert canonical_url(line) == form
            assert unescaped(line) == line


def test_the_fast_path_judges_ordinary_lines() -> None:
    """Otherwise it would be correct and useless."""
    lines = {
        "http://harbour.test/": "http://harbour.test/",
        "https://www.harbour.test/2017/01/a-page.html?id=1&x=y'z": "",
        "http://8.8.8.8/a": "",
        "https://harbour.test": "https://harbour.test/",
        "http://harbour.test?a=1": "http://harbour.test/?a=1",
        "http://harbour.test/caf%C3%A9?q=a%20b#top": "http://harbour.test/caf%C3%A9?q=a%20b",
        "https://harbour.test/a?#": "https://harbour.test/a",
        "http://i.imgur.test/x": "",
        "http://harbour.test/x.pdf#page=2": "http://harbour.test/x.pdf",
    }
    canonical, passed, broken = FastPath(Judge(FEW_ENTRIES, 8))(pa.array(lines, pa.large_string()))
    assert canonical.to_pylist() == [form or line for line, form in lines.items()]
    assert passed.tolist() == [True] * 7 + [False, False]
    assert [(row, verdict.value) for row, verdict in broken] == [(7, "imgur.test (images)"), (8, ".pdf (documents)")]


def test_the_fast_path_leaves_what_has_to_be_read_one_by_one() -> None:
    lines = ["http://harbour.test/#!/a", "http://harbour.test/%7ea", "http://harbour.test/?a=1&#38;b=2", "/r/a/"]
    _, passed, broken = FastPath(Judge(FEW_ENTRIES, 8))(pa.array(lines, pa.large_string()))
    assert (passed.any(), broken) == (False, [])


def test_the_fast_path_takes_no_lines_at_all() -> None:
    _, passed, broken = FastPath(Judge(FEW_ENTRIES, 8))(pa.array([], pa.large_string()))
    assert (len(passed), broken) == (0, [])
