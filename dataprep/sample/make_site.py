"""Makes the sample's web site, its URL list, and the right answer for every URL of it.

From the written articles: pages in three designs on six hosts, and generated from them whatever a
pipeline must deal with: exact and near copies, mojibake, other languages, teasers, pages without
text, errors, redirects, pages that robots.txt forbids, private addresses, blacklisted and malformed
URLs. `expected.jsonl` says for each line of `urls.txt` at which stage it ends and by which rule, or
`kept`; it follows from what was made here, not from running anything.

Run: python -m dataprep.sample.make_site [FOLDER]
"""

import random
import sys
from pathlib import Path

from dataprep.sample.article_pages import SEED, add_article_pages
from dataprep.sample.other_pages import add_other_pages, add_other_spellings
from dataprep.sample.site_folder import SiteFolder
from dataprep.sample.texts import SAMPLE


def make_site() -> SiteFolder:
    """The whole site. The list is in a random order, but URLs stay behind those that they repeat."""
    site = SiteFolder()
    add_article_pages(site)
    add_other_pages(site)
    random.Random(SEED).shuffle(site.answers)
    add_other_spellings(site)
    return site


if __name__ == "__main__":
    make_site().write(Path(sys.argv[1]) if len(sys.argv) > 1 else SAMPLE / "site")
