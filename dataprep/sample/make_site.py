"""Makes the sample's web site, its URL list, and the expected result for every URL.

The articles become pages in three designs on six hosts. From them this module generates everything that a pipeline
must handle: exact and near copies, mojibake, other languages, teasers, pages without text, errors, redirects, pages
that robots.txt forbids, private addresses, blacklisted and malformed URLs. `expected.jsonl` gives for each line of
`urls.txt` the stage and the rule that reject it, or `kept`; it follows from how the page was made, not from a run of
the pipeline.

Run: python -m dataprep.sample.make_site [FOLDER]
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

from dataprep.sample.other_pages import add_other_pages, add_other_spellings
from dataprep.sample.pages import SEED, add_article_pages
from dataprep.sample.site_folder import SiteFolder
from dataprep.sample.texts import SAMPLE
from pipelines.errors import UserError
from pipelines.terminal import print_error


def make_site() -> SiteFolder:
    """Make the whole site. The list is shuffled, except that URLs come after those they repeat."""
    site = SiteFolder()
    add_article_pages(site)
    add_other_pages(site)
    random.Random(SEED).shuffle(site.answers)
    add_other_spellings(site)
    return site


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status."""
    try:
        make_site().write(Path(arguments[0]) if arguments else SAMPLE / "site")
    except UserError as error:
        print_error(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
