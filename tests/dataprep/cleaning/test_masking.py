import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataprep.cleaning.masking import PLACEHOLDERS, mask

KINDS = ("email", "ip", "phone")


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("email", "john.o'neil+news@mail.example.co.uk"),
        ("email", "a@b.io"),
        ("email", "A_B-c%d@sub-domain.example.museum"),
        ("email", "info@xn--mnchen-3ya.xn--p1ai"),
        ("email", "root@[93.184.216.34]"),
        ("ip", "93.184.216.34"),
        ("ip", "8.8.8.84"),
        ("ip", "2001:4860:4860::8888"),
        ("ip", "2606:2800:220:1:248:1893:25c8:1946"),
        ("phone", "(212) 555-0123"),
        ("phone", "212-555-0123"),
        ("phone", "212.555.0123"),
        ("phone", "212 555 0123"),
        ("phone", "1-800-768-8048"),
        ("phone", "+1 (510) 713-5115"),
        ("phone", "+49 69 7565 1311"),
        ("phone", "+61 (0) 7 3369 5760"),
        ("phone", "+491701234567"),
    ],
)
@pytest.mark.parametrize("sentence", ["{}", "Ask {}, or not.", "Is it ({})?", "“{}”", "to: {}.", "<{}>\n"])
def test_what_is_personal_is_masked_and_nothing_around_it(kind, found: str, sentence: str):
    masked, counts = mask(sentence.format(found), KINDS)
    assert masked == sentence.format(PLACEHOLDERS[kind])
    assert counts == {one: int(one == kind) for one in KINDS}


@pytest.mark.parametrize(
    "text",
    [
        # e-mail: handles, pictures, code, prices
        "@somebody wrote", "logo@2x.png", "a @ b.com", "user@localhost", "3 apples @ $1.50", "@property.setter",
        # addresses: private, reserved and documentation, versions, sections, dates, times, names of C++
        "192.168.1.20", "10.0.0.12", "127.0.0.1", "169.254.169.254", "192.0.2.33", "2001:db8::1", "fe80::1", "::1",
        "v1.22.3.4", "version 10.0.190.41", "Version: 11.22.33.44", "kernel 2.6.18.66", "see 1.2.3.4",
        "section 12.1.10.2", "999.12.13.14", "1.2.3.4.5.6", "256.1.1.10", "01.02.03.04", "12:30:45", "2019:10:12",
        "dead::beef", "std::abs", "00:1a:2b:3c:4d:5e", "libfoo-11.22.33.44.so", "11.22.33.44-beta",
        "2262::", "a" * 65 + "@",
        # numbers that are no phones
        "2019-10-12", "12.10.2019", "10/12/2019 12:30", "$1,234,567.89", "1 234 567 890", "12,345,678",
        "3.14159265358979", "978-0-306-40615-7", "ISBN 0-306-40615-2", "ISBN: 306 406 1525", "ISSN 2049-3630",
        "123-45-6789", "2125550123", "1429138289", "4111 1111 1111 1111", "order number 212-555-0123", "#212-555-0123",
        "ID 212-555-0123",
        "212-555-01234", "112-555-0123", "212-155-0123", "212-555-0123-99", "x212-555-0123", "a/212-555-0123",
        "1998-2003", "1 2 3 4 5 6 7 8 9 10", "score 212 - 555 - 0123", "+500", "2+34567890123", "UTC+02:00",
        "+1 000 000 000", "2001-2002 2003-2004", "10.1000/182.212.555", "52.3702, 4.8952",
    ],
)  # fmt: skip
def test_what_only_looks_alike_stays(text: str):
    assert mask(text, KINDS) == (text, {"email": 0, "ip": 0, "phone": 0})
    assert mask(f"We saw {text} there.", KINDS)[0] == f"We saw {text} there."


def test_only_the_kinds_asked_for_are_masked_and_counted():
    text = "a@b.io, c@d.org, 93.184.216.34 and 212-555-0123"
    assert mask(text, ()) == (text, {})
    assert mask(text, ("phone",)) == ("a@b.io, c@d.org, 93.184.216.34 and |||PHONE_NUMBER|||", {"phone": 1})
    assert mask(text, ("ip", "email")) == (
        "|||EMAIL_ADDRESS|||, |||EMAIL_ADDRESS|||, |||IP_ADDRESS||| and 212-555-0123",
        {"email": 2, "ip": 1},
    )


@given(
    st.lists(st.sampled_from(["a@b.io", "93.184.216.34", "2001:4860::8888", "212-555-0123", ".", " ", "1", "a", "@"]))
)
def test_masking_again_changes_nothing_once_the_neighbours_are_apart(pieces: list[str]):
    masked, counts = mask(" ".join(pieces), KINDS)
    assert mask(masked, KINDS) == (masked, dict.fromkeys(KINDS, 0))
    assert sum(counts.values()) == sum(masked.count(placeholder) for placeholder in PLACEHOLDERS.values())


@pytest.mark.parametrize(
    "part",
    [
        "a",
        "a.",
        "a@",
        "@a.",
        "a-",
        "1",
        "1.",
        "1 ",
        "+2",
        "+2(",
        "2001:",
        "2001:0:",
        ":",
        "(212",
        "212-",
        "aA1._%+&'-@",
    ],
)
def test_hostile_texts_take_linear_time(part: str):
    text = "x@" + part * (1_000_000 // len(part))
    started = time.process_time()
    mask(text, KINDS)
    assert time.process_time() - started < 4
