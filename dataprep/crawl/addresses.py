"""The guard against requests to private places (SSRF): which addresses the crawler may talk to.

Pure: no name is resolved and nothing is connected here. The standard library's `is_global` is one
vote only, because it calls 64:ff9b::/96, 2002::/16, 224.0.0.0/4, ff00::/8 and 192.0.0.8 global; the
lists below (IANA special-purpose registries, RFC 6890 and its updates) are the other.
"""

import ipaddress

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


class RefusedAddressError(OSError):
    """An address that the crawler must not connect to; its text is the address (and the name it came from)."""


def parse_address(host: str) -> IPAddress | None:
    """`host` as an address, with an IPv4-mapped one unwrapped; None for a name.

    Hosts come from `pipelines.identity.split_url`, which has already turned decimal, hexadecimal,
    octal and short notations into dotted IPv4.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_public(address: IPAddress) -> bool:
    """Whether an address is a host of the public internet."""
    forbidden = _FORBIDDEN_V4 if address.version == 4 else _FORBIDDEN_V6
    return address.is_global and not any(address in network for network in forbidden)


def refuse_private(host: str, name: str = "") -> None:
    """Raise RefusedAddressError when `host` is an address and not a public one; `name` is what resolved to it."""
    address = parse_address(host)
    if address is not None and not is_public(address):
        raise RefusedAddressError(f"{address} (for {name})" if name else str(address))
