"""`--compat megatron`: the rules of blacklist_urls.py in Megatron-LM's tools/openwebtext, defects included.

How they differ from `rules`: a domain entry is a second-level label, and covers that label under every public
suffix; an extension is the end of the line before its first `?`, so a fragment hides it and a host can have one;
`.7z` and `.ai` are a single entry, `.7z.ai`; a line is well-formed if it matches Django's old pattern, which accepts
private addresses; nothing is normalised, so only exactly equal lines are duplicates.
"""

import functools
import re

from dataprep.urls.blacklists import Blacklists
from dataprep.urls.rules import CACHED_HOSTS, DOMAIN_BLACKLIST, EXTENSION_BLACKLIST, MALFORMED, TOO_SHORT, Verdict
from dataprep.web.domains import megatron_label

_JOINED = (".7z", ".ai")
# In a line that starts like this, tldextract looks at the host only.
_PLAIN_HOST = re.compile(r"https?://([A-Za-z0-9_-][A-Za-z0-9._-]*)(?=[/?#]|\Z)")
# Django's URLValidator of version 1.0 to 1.3 (django/core/validators.py), without ftp.
_WELL_FORMED = re.compile(
    r"""https?://
    (?:(?:[A-Z0-9](?:[A-Z0-9-]{0,61}[A-Z0-9])?\.)+(?:[A-Z]{2,6}\.?|[A-Z0-9-]{2,}\.?)  # a name
    |localhost
    |\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})  # or an address
    (?::\d+)?
    (?:/?|[/?]\S+)$""",
    re.IGNORECASE | re.VERBOSE,
)


class MegatronJudge:
    """Applies Megatron's rules to one line after another; `lists` were compiled with compat megatron."""

    def __init__(self, lists: Blacklists, longest_short: int) -> None:
        self._lists = lists
        self._longest_short = longest_short
        known = [extension for extension in lists.extensions if extension not in _JOINED]
        joined = all(extension in lists.extensions for extension in _JOINED)
        self._extensions = (*known, *(["".join(_JOINED)] if joined else [e for e in _JOINED if e in lists.extensions]))
        self._label = functools.lru_cache(CACHED_HOSTS)(megatron_label)

    def __call__(self, url: str) -> Verdict:
        """Return the verdict on one line of a list; its canonical form is the line itself."""
        host = _PLAIN_HOST.match(url)
        label = self._label(host[1]) if host else megatron_label(url)
        if category := self._lists.domains.get(label):
            return Verdict(rule=DOMAIN_BLACKLIST, value=f"{label} ({category})")
        bare = url.partition("?")[0].lower()
        if bare.endswith(self._extensions):
            return Verdict(rule=EXTENSION_BLACKLIST, value=next(e for e in self._extensions if bare.endswith(e)))
        if len(url) <= self._longest_short:
            return Verdict(rule=TOO_SHORT, value=f"{len(url)} characters")
        if not _WELL_FORMED.match(url):
            return Verdict(rule=MALFORMED, value="does not match the pattern")
        return Verdict(url)
