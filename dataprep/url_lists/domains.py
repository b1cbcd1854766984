"""Registered domains, by the public-suffix snapshot that tldextract brings along: never from the network."""

import functools
import re

import tldextract

_ADDRESS = re.compile(r"[0-9.]+|.*:.*")


@functools.cache
def _suffixes() -> tldextract.TLDExtract:
    return tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


@functools.lru_cache(maxsize=65_536)
def registered_domain(host: str) -> str:
    """`www.garden.co.uk` -> `garden.co.uk`; an address, or a name without a dot, is its own domain.

    A name under an unknown suffix (`a.garden.test`) has its last two labels, the list's default rule `*`.
    """
    if _ADDRESS.fullmatch(host):
        return host
    known = _suffixes().extract_str(host).top_domain_under_public_suffix
    return known or ".".join(host.split(".")[-2:])


def second_level_label(domain: str) -> str | None:
    """`garden.co.uk` -> `garden`, a bare label -> itself; None for a name below a registered domain."""
    parts = _suffixes().extract_str(domain)
    return None if parts.subdomain else parts.domain or None


def megatron_label(url: str) -> str:
    """What `tldextract.extract(url).domain` says of a URL, or of a host alone."""
    return _suffixes().extract_str(url).domain
