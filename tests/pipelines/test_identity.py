"""The canonical form of a URL and the id of a document."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipelines import identity
from pipelines.identity import canonical_url, document_id, normal_host, split_url

CANONICAL = {
    "http://Garden.Test": "http://garden.test/",
    "HTTP://GARDEN.TEST/Path": "http://garden.test/Path",
    "http://garden.test:80/": "http://garden.test/",
    "https://garden.test:443/": "https://garden.test/",
    "https://garden.test:80/": "https://garden.test:80/",
    "http://garden.test:/a": "http://garden.test/a",
    "http://garden.test./a": "http://garden.test/a",
    "http://user:secret@garden.test/a": "http://garden.test/a",
    "http://garden.test/a#part": "http://garden.test/a",
    "http://garden.test/a?#part": "http://garden.test/a",
    "http://garden.test/#!/a?q=%7e": "http://garden.test/#!/a?q=~",
    "http://garden.test#!a b#c": "http://garden.test/#!a%20b%23c",
    "http://garden.test/?utm_source=x#!é": "http://garden.test/#!%C3%A9",
    "http://garden.test/a#!": "http://garden.test/a",
    "http://garden.test/a#a!": "http://garden.test/a",
    "http://garden.test/a?utm_source=x&UTM_Medium=y&q=1": "http://garden.test/a?q=1",
    "http://garden.test/a?fbclid=1": "http://garden.test/a",
    "http://garden.test/a?gbraid=1&_ga=2&q=1&hsCtaTracking=3&mtm_cid=4": "http://garden.test/a?q=1",
    "http://garden.test/a?utm%5Fsource=x": "http://garden.test/a",
    "http://garden.test/a?utm_=1&gclid_x=2&my_gclid=3": "http://garden.test/a?utm_=1&gclid_x=2&my_gclid=3",
    "http://garden.test/a?q=utm_source": "http://garden.test/a?q=utm_source",
    "http://garden.test/a?b=2&a=1": "http://garden.test/a?b=2&a=1",
    "http://garden.test/a?x=1&&y=2&": "http://garden.test/a?x=1&y=2",
    "http://garden.test/%7euser/%e2%82%ac": "http://garden.test/~user/%E2%82%AC",
    "http://garden.test/café": "http://garden.test/caf%C3%A9",
    "http://garden.test/a b": "http://garden.test/a%20b",
    "http://garden.test/100%": "http://garden.test/100%25",
    "http://garden.test/a/./b/../c": "http://garden.test/a/c",
    "http://garden.test/a/%2e%2e/b": "http://garden.test/b",
    "http://garden.test/../../a": "http://garden.test/a",
    "http://garden.test/a/..": "http://garden.test/",
    "http://garden.test//a//b": "http://garden.test//a//b",
    "  http://garden.test/a\n": "http://garden.test/a",
    "http://gar\tden.test/a": "http://garden.test/a",
    "http://%67arden.test/": "http://garden.test/",
    "http://bücher.test/": "http://xn--bcher-kva.test/",
    "http://BÜCHER.test/": "http://xn--bcher-kva.test/",
    "http://straße.test/": "http://xn--strae-oqa.test/",
    "http://STRASSE.test/": "http://strasse.test/",
    "http://www.fußBÜCHER.test/": "http://www.xn--fubcher-1va6x.test/",
    "hTTps://garden.test/": "https://garden.test/",
    "http://under_score.garden.test/": "http://under_score.garden.test/",
    "http://127.0.0.1/": "http://127.0.0.1/",
    "http://2130706433/": "http://127.0.0.1/",
    "http://0x7f000001/": "http://127.0.0.1/",
    "http://0x7f.1/": "http://127.0.0.1/",
    "http://0177.0.0.01/": "http://127.0.0.1/",
    "http://127.1/": "http://127.0.0.1/",
    "http://１２７.0.0.1/": "http://127.0.0.1/",
    "http://127。0。0。1/": "http://127.0.0.1/",
    "http://[::1]/": "http://[::1]/",
    "http://[0:0:0:0:0:0:0:1]:80/": "http://[::1]/",
    "http://[::FFFF:127.0.0.1]/": "http://[::ffff:7f00:1]/",
}
NOT_URLS = [
    "",
    "garden.test/a",
    "ftp://garden.test/a",
    "javascript:alert(1)",
    "mailto:a@garden.test",
    "http://",
    "http:///a",
    "http:/garden.test",
    "http://gar den.test/",
    "http://garden..test/",
    "http://.garden.test/",
    "http://-garden.test/",
    "http://garden.test:99999/",
    "http://garden.test:0/",
    "http://garden.test:port/",
    "http://[::1/",
    "http://[fe80::1%25eth0]/",
    "http://256.1.1.1/",
    "http://1.2.3.4.5/",
    "http://09.1.1.1/",
    "http://garden.0x/",
    "http://garden.test\\@127.0.0.1/",
    "http://" + "a" * 64 + ".test/",
    "http://" + "a.test" * 60 + "/",
    "http://%ff.test/",
]


@pytest.mark.parametrize(("url", "expected"), CANONICAL.items())
def test_every_spelling_has_one_canonical_form(url: str, expected: str) -> None:
    assert canonical_url(url) == expected
    assert canonical_url(expected) == expected


@pytest.mark.parametrize("text", NOT_URLS)
def test_what_is_no_http_url_has_no_canonical_form(text: str) -> None:
    assert canonical_url(text) is None


@given(st.text(max_size=40), st.text(max_size=40))
def test_canonical_form_is_stable(path: str, query: str) -> None:
    canonical = canonical_url(f"http://garden.test/{path}?{query}")
    assert canonical is not None
    assert canonical_url(canonical) == canonical
    assert canonical.isascii()


@given(st.text(max_size=80))
def test_any_text_at_all_gives_a_url_or_nothing(text: str) -> None:
    for candidate in (text, f"http://{text}", f"http://{text}/"):
        canonical = canonical_url(candidate)
        assert canonical is None or canonical_url(canonical) == canonical


def test_split_keeps_tracking_parameters_and_names_the_origin() -> None:
    address = split_url("https://Garden.test:8443/a?utm_source=x#b")
    assert address is not None
    assert (address.origin, address.port, address.query) == ("https://garden.test:8443", 8443, "utm_source=x")
    assert address.url == "https://garden.test:8443/a?utm_source=x"


def test_hosts_are_names_or_addresses() -> None:
    assert normal_host("GARDEN.test.") == "garden.test"
    assert normal_host("0x7f.1") == "127.0.0.1"
    assert normal_host("a b") is None


def test_document_id_depends_on_canonical_url_and_text_only() -> None:
    assert document_id("HTTP://garden.test:80/a?utm_source=x", "text") == document_id("http://garden.test/a", "text")
    assert document_id("http://garden.test/a", "text") != document_id("http://garden.test/b", "text")
    assert document_id("http://garden.test/a", "text") != document_id("http://garden.test/a", "text.")
    assert document_id("row 1", "text") != document_id("row 2", "text")
    assert document_id("http://garden.test/a", "text").hex() == "bdc19a6c35b1e912348e24c1400aa601"


SPELLINGS = st.lists(
    st.sampled_from(
        [
            *("http://", "HTTPS://", "garden.test", "GARDEN.test.", "127.1", "a_b.test", "ü.test", "x..y", "a" * 64),
            *("/", "//", "..", ".", "%2e", "%2F", "%7e", "%", "%zz", "?", "&", "=", "utm_source=x", "gclid", "q=1"),
            *(
                "#",
                "# b",
                "#!",
                "#!/b",
                ":",
                "80",
                ":443",
                ":99999",
                ":0",
                "@",
                "[::1]",
                "\\",
                " ",
                "\t",
                "é",
                "|",
                "+",
                ";v",
                "\n",
            ),
        ]
    ),
    max_size=9,
).map("".join)


@given(SPELLINGS)
def test_the_quick_way_to_take_a_url_apart_is_the_general_one(text: str) -> None:
    for url in (text, f"http://garden.test{text}"):
        assert split_url(url) == identity._split_any(url)


@given(SPELLINGS)
@example("/a/b.c/d-e_f~g;h")
@example("/a/.b")
def test_a_url_that_is_returned_as_it_is_has_that_form(text: str) -> None:
    for url in (text, f"http://garden.test{text}", f"https://garden.test./{text}", f"http://127.1/{text}"):
        address = identity._split_any(url)
        assert canonical_url(url) == (identity.without_tracking(address).url if address else None)
