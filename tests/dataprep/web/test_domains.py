"""Which addresses the crawler may talk to."""

import pytest

from dataprep.web.domains import RefusedAddressError, is_public, parse_address, refuse_private
from pipelines.identity import split_url

PRIVATE_URLS = [
    # loopback, in every notation
    "http://127.0.0.1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0x7F.0x0.0x0.0x1/",
    "http://0177.0.0.1/",
    "http://017700000001/",
    "http://0x7f.1/",
    "http://127.255.255.254/",
    "http://１２７.0.0.1/",
    "http://127。0。0。1/",
    "http://%31%32%37.0.0.1/",
    "http://127.0.0.1./",
    "http://[::1]/",
    "http://[0000::0001]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[::127.0.0.1]/",
    "http://[::ffff:0:127.0.0.1]/",
    # this network, unspecified
    "http://0/",
    "http://0.0.0.0/",
    "http://0.1.2.3/",
    "http://[::]/",
    # private, carrier-grade NAT, link-local and cloud metadata
    "http://10.0.0.1/",
    "http://10.1/",
    "http://172.16.0.1/",
    "http://172.31.255.255/",
    "http://192.168.1.1/",
    "http://3232235777/",
    "http://100.64.0.1/",
    "http://100.127.255.255/",
    "http://169.254.169.254/latest/meta-data/",
    "http://0xa9fea9fe/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://[fe80::1]/",
    "http://[fec0::1]/",
    "http://[fc00::1]/",
    # special purpose
    "http://192.0.0.8/",
    "http://192.0.0.9/",
    "http://192.0.2.1/",
    "http://192.88.99.1/",
    "http://198.18.0.1/",
    "http://198.51.100.7/",
    "http://203.0.113.9/",
    "http://224.0.0.1/",
    "http://239.255.255.255/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b::808:808]/",
    "http://[64:ff9b:1::1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:808:808::1]/",
    "http://[2001::1]/",
    "http://[2001:db8::1]/",
    "http://[3fff::1]/",
    "http://[100::1]/",
    "http://[ff02::1]/",
    "http://[ff0e::1]/",
]
PUBLIC_URLS = [
    "http://8.8.8.8/",
    "http://1.1.1.1/",
    "http://134744072/",
    "http://172.32.0.1/",
    "http://100.128.0.1/",
    "http://[2606:4700:4700::1111]/",
    "http://[::ffff:8.8.8.8]/",
    "http://garden.test/",
]


@pytest.mark.parametrize("url", PRIVATE_URLS)
def test_a_private_address_is_refused_in_every_notation(url: str) -> None:
    address = split_url(url)
    assert address is not None
    with pytest.raises(RefusedAddressError):
        refuse_private(address.host)


@pytest.mark.parametrize("url", PUBLIC_URLS)
def test_public_addresses_and_names_are_not_refused(url: str) -> None:
    address = split_url(url)
    assert address is not None
    refuse_private(address.host)


def test_the_refusal_says_which_name_resolved_to_what() -> None:
    with pytest.raises(RefusedAddressError, match=r"10\.0\.0\.1 \(for inside\.test\)"):
        refuse_private("10.0.0.1", "inside.test")


def test_a_mapped_address_is_unwrapped() -> None:
    address = parse_address("::ffff:8.8.8.8")
    assert str(address) == "8.8.8.8"
    assert address is not None
    assert is_public(address)
    assert parse_address("garden.test") is None
