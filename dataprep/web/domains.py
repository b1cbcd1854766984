"""Hosts: their registered domains, and the guard against requests to private addresses (SSRF).

Pure: no name is resolved and nothing is connected here. Registered domains follow the public-suffix snapshot that
comes with tldextract, never one from the network. An address is public if two judges agree: the standard library's
`is_global`, which also calls 64:ff9b::/96, 2002::/16, 224.0.0.0/4, ff00::/8 and 192.0.0.8 global, and the lists
below (IANA special-purpose registries, RFC 6890 and its updates).
"""

import functools
import ipaddress
import re
from typing import Any

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

ALLOWED_PORTS = (80, 443)
_FORBIDDEN_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local, cloud metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_FORBIDDEN_V6 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "::/96",  # unspecified, loopback, IPv4-compatible
        "::ffff:0:0:0/96",  # IPv4-translated
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # local NAT64
        "100::/64",  # discard
        "2001::/23",  # protocol assignments, Teredo
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "fc00::/7",  # unique local
        "fe80::/10",  # link-local
        "fec0::/10",  # site-local
        "ff00::/8",  # multicast
    )
)
_ADDRESS = re.compile(r"[0-9.]+|.*:.*")


@functools.cache
def _suffixes() -> Any:
    import tldextract  # it takes a while to import, and a crawl needs the addresses only

    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


@functools.lru_cache(maxsize=65_536)
def registered_domain(host: str) -> str:
    """Return the registered domain of a host: `www.garden.co.uk` -> `garden.co.uk`.

    An address, or a name without a dot, is its own domain. A name under an unknown suffix (`a.garden.test`) has its
    last two labels, by the default rule `*` of the public-suffix list.
    """
    if _ADDRESS.fullmatch(host):
        return host
    known = _suffixes().extract_str(host).top_domain_under_public_suffix
    return known or ".".join(host.split(".")[-2:])


def second_level_label(domain: str) -> str | None:
    """Return the label before the suffix: `garden.co.uk` -> `garden`; a bare label is returned as it is.

    None for a name below a registered domain.
    """
    parts = _suffixes().extract_str(domain)
    return None if parts.subdomain else parts.domain or None


def megatron_label(url: str) -> str:
    """Return `tldextract.extract(url).domain` of a URL, or of a host alone."""
    return _suffixes().extract_str(url).domain


class RefusedAddressError(OSError):
    """An address that the crawler must not connect to; its text is the address, and the name that resolved to it."""


def parse_address(host: str) -> IPAddress | None:
    """Return `host` as an address, an IPv4-mapped one as IPv4; None for a name.

    Hosts come from `pipelines.identity.split_url`, which has already turned decimal, hexadecimal, octal and short
    notations into dotted IPv4.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_public(address: IPAddress) -> bool:
    """Return whether an address belongs to the public internet."""
    forbidden = _FORBIDDEN_V4 if address.version == 4 else _FORBIDDEN_V6
    return address.is_global and not any(address in network for network in forbidden)


def refuse_private(host: str, name: str = "") -> None:
    """Raise RefusedAddressError if `host` is an address but not a public one; `name` is what resolved to it."""
    address = parse_address(host)
    if address is not None and not is_public(address):
        raise RefusedAddressError(f"{address} (for {name})" if name else str(address))
