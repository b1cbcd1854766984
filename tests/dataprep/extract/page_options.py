"""The options of a page as tests use them."""

from dataclasses import replace
from typing import Any

from dataprep.extract.contract import Extracted, PageOptions
from dataprep.extract.page_text import page_text

OPTIONS = PageOptions(
    extractor="routed", fallback_chars=1000, max_elements=50_000, max_depth=200, tables=True, seconds=30.0
)


def extracted(body: bytes | str, charset: str | None = None, **changes: Any) -> Extracted:
    """What the extraction of a page gives, in this process."""
    data = body.encode() if isinstance(body, str) else body
    return page_text(data, charset, replace(OPTIONS, **changes))
