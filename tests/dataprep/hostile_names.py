"""The names and addresses of the hostile web (`hostile_sites`), its URLs, and the rules that they may end with."""

import socket

from dataprep.web.domains import is_public, parse_address
from tests.dataprep.hostile_sites import CASES, DOMAIN, LIMIT, REFUSED

OPTIONS = {
    "connect-seconds": 1.0,
    "read-seconds": 1.0,
    "total-seconds": 2.0,
    "backoff-seconds": 0.02,
    "max-attempts": 2,
    "max-body-bytes": LIMIT,
    "concurrency": 64,
    "urls-per-segment": 100,
    "workers": 1,
    "log-level": "error",
}

WEB, DEAF, BROKEN, PLAIN, GARBAGE, HALF_HELLO, NOBODY, NOWHERE = (f"93.184.216.{i}" for i in range(1, 9))
"""Addresses of the test's internet; at NOBODY no port is open, and NOWHERE nothing ever answers."""
SERVERS = {
    **dict.fromkeys([(WEB, 80)], "web"),
    **{(DEAF, port): "deaf" for port in (80, 443)},
    **{(BROKEN, port): "broken" for port in (80, 443)},
    (PLAIN, 443): "plain",
    (GARBAGE, 443): "garbage",
    (HALF_HELLO, 443): "half-hello",
}
NAMES = {
    f"private-v4.{DOMAIN}": ["10.0.0.5"],
    f"private-v6.{DOMAIN}": ["fd00::5"],
    f"loopback.{DOMAIN}": ["127.0.0.1"],
    f"mapped.{DOMAIN}": ["::ffff:10.0.0.5"],
    f"nat64.{DOMAIN}": ["64:ff9b::a00:5"],
    f"multicast.{DOMAIN}": ["224.0.0.1"],
    f"link-local.{DOMAIN}": ["fe80::5%eth0"],
    f"mixed.{DOMAIN}": [WEB, "10.0.0.5"],
    f"mixed-v6.{DOMAIN}": ["::1", WEB],
    "localhost": ["127.0.0.1", "::1"],
    f"addressless.{DOMAIN}": [],
    f"deaf.{DOMAIN}": [DEAF],
    f"broken.{DOMAIN}": [BROKEN],
    f"plain-http.{DOMAIN}": [PLAIN],
    f"no-tls.{DOMAIN}": [GARBAGE],
    f"half-hello.{DOMAIN}": [HALF_HELLO],
    f"nobody.{DOMAIN}": [NOBODY],
    f"nowhere.{DOMAIN}": [NOWHERE],
}
ERRORS = {f"unknown.{DOMAIN}": socket.EAI_NONAME, f"later.{DOMAIN}": socket.EAI_AGAIN}
SILENT = f"silent-dns.{DOMAIN}"
CHANGING = f"rebinding.{DOMAIN}"
"""A name of two addresses, one after the other: public, then private."""


def hostile_urls() -> dict[str, frozenset[str]]:
    """Every URL of the hostile web, with the rules that are right for it."""
    wanted = {f"http://{name}.{DOMAIN}{path}": case.rules for name, case in CASES.items() for path in case.paths}
    wanted |= {f"http://refused.{DOMAIN}/{i}": rules for i, rules in enumerate(REFUSED.values())}
    for name, addresses in NAMES.items():
        if not addresses or not all(is_public(parse_address(address)) for address in addresses):  # type: ignore[arg-type]
            wanted[f"http://{name}/"] = frozenset({"private_address" if addresses else "dns_error"})
    for name in ERRORS:
        wanted[f"http://{name}/"] = frozenset({"dns_error"})
    for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "[fd00::1]"):
        wanted[f"http://{address}/"] = frozenset({"private_address"})
    for name in (SILENT, *(f"{name}.{DOMAIN}" for name in ("deaf", "broken", "nobody", "nowhere"))):
        wanted[f"http://{name}/"] = frozenset({"robots_unreachable"})
    for name in ("plain-http", "no-tls", "half-hello", "deaf", "broken"):
        wanted[f"https://{name}.{DOMAIN}/"] = frozenset({"robots_unreachable"})
    return wanted
