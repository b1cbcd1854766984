"""`--compat megatron` against the old tool's rules, written again from their description."""

from pathlib import Path

import pytest
import tldextract
from hypothesis import given
from hypothesis import strategies as st

from dataprep.urls.blacklists import compile_blacklists, open_blacklists
from dataprep.urls.megatron import MegatronJudge
from pipelines.command import Part

# Domain labels -> extension (end of the line up to `?`) -> at most 8 characters -> a pattern, checked here by parts.
LABELS = {"apple", "imgur", "spotify"}
EXTENSIONS = (".pdf", ".jpg", ".7z.ai")
EXTRACT = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
PIECES = [
    *("http://", "https://", "HTTP://", "ftp://", ""),
    *(
        "apple.com",
        "apple.co.uk",
        "www.apple.org",
        "apple.garden.test",
        "i.imgur.com",
        "imgur.github.io",
        "garden.test",
    ),
    *("169.254.169.254", "localhost", "internal.corp", "a.pdf", "user@apple.com", "[::1]", "apple.com.", "b\u00fc.de"),
    *(
        "/",
        "/x",
        "/x.pdf",
        "/x.7z",
        "/x.ai",
        "/x.7z.ai",
        "/X.PDF",
        "?y=1",
        "?y=x.jpg",
        "#page=2",
        ":80",
        ":6379",
        " ",
        ".",
    ),
]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> MegatronJudge:
    """Lists of domains, as we have them, and of labels, as the old tool had them."""
    folder = tmp_path_factory.mktemp("lists")
    (folder / "domains-a.txt").write_text("apple.com\nimgur.com\nnews.garden.test\n")
    (folder / "labels.txt").write_text("spotify\n")
    (folder / "extensions-a.txt").write_text(".pdf\n.jpg\n.7z\n.ai\n")
    (folder / "tables").mkdir()
    files = tuple(sorted(folder.glob("*.txt")))
    compile_blacklists(Part("lists", files), folder / "tables", "megatron")
    return MegatronJudge(open_blacklists((folder / "tables").iterdir()), 8)


def oracle(url: str) -> str:
    """The rule that the old tool would name."""
    if EXTRACT(url).domain in LABELS:
        return "domain_blacklist"
    if any(url.split("?")[0].lower().endswith(extension) for extension in EXTENSIONS):
        return "extension_blacklist"
    return "too_short" if len(url) <= 8 else ""


@given(url=st.lists(st.sampled_from(PIECES), max_size=7).map("".join))
def test_lines_are_matched_as_the_old_tool_did(judge: MegatronJudge, url: str) -> None:
    verdict = judge(url)
    expected = oracle(url)
    assert verdict.rule == expected or (not expected and verdict.rule == "malformed"), url
    assert verdict.canonical == ("" if verdict.rule else url)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("http://www.apple.org/x", "domain_blacklist"),  # every ending of a label
        ("http://open.spotify.de/x", "domain_blacklist"),
        ("http://news.garden.test/x", ""),  # a host below a registered domain has no label of its own
        ("http://harbour.test/x.7z", ""),  # the missing comma
        ("http://harbour.test/x.ai", ""),
        ("http://harbour.test/x.7z.ai", "extension_blacklist"),
        ("http://harbour.test/x.pdf#page=2", ""),
        ("http://harbour.pdf", "extension_blacklist"),
        ("http://169.254.169.254/latest/", ""),
        ("http://127.0.0.1:6379/", ""),
        ("http://internal.corp/x", ""),
        ("http://localhost/x", ""),
        ("ftp://harbour.test/x", "malformed"),
        ("harbour.test/page", "malformed"),
        ("http://harbour.test/a b", "malformed"),
        ("http://intranet/x", "malformed"),
        ("http://h.de", ""),
    ],
)
def test_the_old_defects_are_all_there(judge: MegatronJudge, url: str, rule: str) -> None:
    assert judge(url).rule == rule


def test_one_of_the_joined_extensions_alone_is_itself(tmp_path: Path) -> None:
    (tmp_path / "extensions-a.txt").write_text(".7z\n")
    (tmp_path / "tables").mkdir()
    compile_blacklists(Part("lists", (tmp_path / "extensions-a.txt",)), tmp_path / "tables", "megatron")
    judge = MegatronJudge(open_blacklists((tmp_path / "tables").iterdir()), 8)
    assert judge("http://garden.test/x.7z").rule == "extension_blacklist"
