"""HTML files, one page each, as a crawler or `wget --mirror` leaves them in folders.

A page's URL is the path of its file below the folder that was given: it is unique, it leads back to
the file, and in a mirror it is the real URL without its scheme. What a page says of itself
(rel=canonical, og:url) is often the site's front page, or missing.
"""

from pathlib import Path

from dataprep.sources.records import Broken, Page, Record
from dataprep.sources.text_reader import HTML_SUFFIXES, plain_suffix, read_body


def read_html_file(file: Path, name: str, max_bytes: int) -> Record:
    """The page in one file, decompressed by its last suffix; `name` stands for its URL.

    The charset is what the page itself says. A file that is called otherwise than HTML (`index.php`)
    is judged by its first bytes.
    """
    body = read_body(file, name, max_bytes)
    if isinstance(body, Broken):
        return body
    if len(body) > max_bytes:
        return Broken(name, "too_large", f"more than {max_bytes} bytes")
    return Page(name, body, "text/html" if plain_suffix(name) in HTML_SUFFIXES else None)
