"""One look at whole columns says exactly what the judge says line by line, or nothing."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dataprep.url_lists.blacklists import Blacklists
from dataprep.url_lists.one_look import OneLook
from dataprep.url_lists.rules import Judge
from pipelines.identity import canonical_url

LISTS = Blacklists(
    {"imgur.test": "images", "co.uk": "suffix", "deep.garden.test": "mine"},
    {".pdf": "documents", ".7z": "archives"},
    {"garden.test/~rose": "mine"},
    {"garden.test": "mine"},
)
PIECES = [
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
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join),
    st.builds(
        lambda host, path: f"http://{host}{path}",
        st.sampled_from([piece for piece in PIECES if "test" in piece]),
        st.lists(st.sampled_from([p for p in PIECES if p[:1] in "/?&=qug#."]), max_size=5).map("".join),
    ),
    st.text(max_size=20),
)


@settings(deadline=None, max_examples=300)
@given(st.lists(LINES, max_size=30))
def test_what_one_look_says_is_what_the_judge_says(lines: list[str]) -> None:
    judge = Judge(LISTS, 8)
    passed, broken = OneLook(judge)(pa.array(lines, pa.large_string()))
    said = dict(broken)
    for row, line in enumerate(lines):
        if passed[row]:
            assert judge(line) == (line, "", ""), line
            assert row not in said
        elif row in said:
            assert judge(line) == said[row], line
            assert canonical_url(line) == line


def test_one_look_settles_ordinary_lines() -> None:
    """Otherwise it would be right and useless."""
    lines = [
        "http://harbour.test/",
        "https://www.harbour.test/2017/01/a-page.html?id=1&x=y'z",
        "http://8.8.8.8/a",
        "http://i.imgur.test/x",
        "http://harbour.test/x.pdf",
    ]
    passed, broken = OneLook(Judge(LISTS, 8))(pa.array(lines, pa.large_string()))
    assert passed.tolist() == [True, True, True, False, False]
    assert [(row, verdict.value) for row, verdict in broken] == [(3, "imgur.test (images)"), (4, ".pdf (documents)")]


def test_nothing_is_said_of_no_lines() -> None:
    passed, broken = OneLook(Judge(LISTS, 8))(pa.array([], pa.large_string()))
    assert (len(passed), broken) == (0, [])
