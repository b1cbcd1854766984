"""Quality and speed of the extractors on real pages, beside those that others use.

    python -m benchmarks.extraction FOLDER [--sets scrapinghub cleaneval l3s] [--rounds 2] [--halves]

FOLDER: see `benchmarks.page_sets`. Ours go through the stage's own function, from bytes to text with decoding
and all caps, and `routed (child)` through the child process as in the stage (CPU time of parent and child).
Every page goes through all extractors before the next one, so that a busy machine hits all alike; figures are
pages per CPU second of one core, and the ratio to trafilatura's fast mode called alone. --halves prints F1 of
`routed` for several thresholds on both halves of each collection instead.
"""

import argparse
import hashlib
import importlib.util
import logging
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import page_sets
from dataprep.pages import resiliparse_text
from dataprep.pages.contract import ExtractorName, PageOptions
from dataprep.pages.html_text import page_text
from dataprep.pages.page_child import PageChild

SETS = ("scrapinghub", "cleaneval", "l3s")
ALONE = "trafilatura alone, fast"
CHILD = "**routed (child)**"
Extract = Callable[[bytes], str]


def options(extractor: ExtractorName, fallback_chars: int = 1000) -> PageOptions:
    return PageOptions(
        extractor=extractor,
        fallback_chars=fallback_chars,
        max_elements=50_000,
        max_depth=200,
        tables=True,
        seconds=30.0,
    )


def ours(extractor: ExtractorName) -> Extract:
    return lambda body: page_text(body, None, options(extractor)).text


def rivals() -> dict[str, Extract]:
    """The libraries by their own calls; newspaper4k and readability-lxml when they are installed."""
    import trafilatura
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.encoding import bytes_to_str, detect_encoding

    def resiliparse(body: bytes) -> str:
        return extract_plain_text(bytes_to_str(body, detect_encoding(body)), main_content=True, alt_texts=False)

    found: dict[str, Extract] = {
        ALONE: lambda body: trafilatura.extract(body, fast=True, include_comments=False) or "",
        "trafilatura alone, default": lambda body: trafilatura.extract(body, include_comments=False) or "",
        "trafilatura alone, precision": lambda body: (
            trafilatura.extract(body, include_comments=False, favor_precision=True) or ""
        ),
        "resiliparse alone, main_content": resiliparse,
    }
    if importlib.util.find_spec("newspaper"):
        found["newspaper4k"] = newspaper
    if importlib.util.find_spec("readability"):
        found["readability-lxml"] = readability
    return found


def newspaper(body: bytes) -> str:
    from newspaper import Article
    from newspaper.exceptions import ArticleException

    article = Article("http://page.test/", fetch_images=False)
    try:
        article.download(input_html=body.decode("utf-8", "replace"))
        article.parse()
    except (ArticleException, ImportError, ValueError, TypeError, AttributeError):
        return ""
    return article.text


def readability(body: bytes) -> str:
    import lxml.html
    from readability import Document
    from readability.readability import Unparseable

    try:
        return lxml.html.fromstring(Document(body.decode("utf-8", "replace")).summary()).text_content()
    except (Unparseable, ValueError, TypeError, AttributeError):
        return ""


class Child:
    """The stage's way: a child process, and the CPU time of both ends."""

    def __init__(self) -> None:
        self._child = PageChild(options("routed"))

    def __call__(self, body: bytes) -> str:
        """The text of one page."""
        return self._child.extract(body, None).text

    def seconds(self) -> float:
        """CPU seconds of the child so far, without this process."""
        self._child.extract(b"<p>", None)
        fields = Path(f"/proc/{self._child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure(pages: list[page_sets.GoldPage], extractors: dict[str, Extract], rounds: int) -> dict[str, float]:
    """CPU seconds of all pages by extractor, mean of the rounds."""
    total = dict.fromkeys(extractors, 0.0)
    child = extractors.get(CHILD)
    before = child.seconds() if isinstance(child, Child) else 0.0
    for _ in range(rounds):
        for page in pages:
            for name, extract in extractors.items():
                started = time.thread_time()
                extract(page.body)
                total[name] += time.thread_time() - started
    if isinstance(child, Child):
        total[CHILD] += child.seconds() - before
    return {name: seconds / rounds for name, seconds in total.items()}


def interval(matches: list[page_sets.Match]) -> float:
    """Half of the 95% confidence interval of F1: 1.96 standard deviations of 1,000 resampled collections."""
    generator = random.Random(0)
    values = [page_sets.scores(generator.choices(matches, k=len(matches)))[0] for _ in range(1000)]
    mean = sum(values) / len(values)
    return 1.96 * (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def compare(folder: Path, names: list[str], rounds: int) -> None:
    """One table per collection."""
    extractors: dict[str, Extract] = {
        "**routed** (default)": ours("routed"),
        CHILD: Child(),
        "trafilatura": ours("trafilatura"),
        "precision": ours("precision"),
        "resiliparse": ours("resiliparse"),
        **rivals(),
    }
    for name in names:
        pages = page_sets.load(folder, name)
        matches = {
            key: [page_sets.match(page.text, extract(page.body)) for page in pages]
            for key, extract in extractors.items()
        }
        seconds = measure(pages, extractors, rounds)
        print(f"\n{name}: {len(pages)} pages, {sum(len(p.body) for p in pages) / 1e6:.1f} MB\n")
        print("| extractor | F1 | precision | recall | pages per CPU second | times trafilatura fast |")
        print("| --- | --- | --- | --- | --- | --- |")
        for key in extractors:
            f1, precision, recall = page_sets.scores(matches[key])
            speed = f"{len(pages) / seconds[key]:.0f} | {seconds[ALONE] / seconds[key]:.2f}"
            print(f"| {key} | {f1:.4f} ± {interval(matches[key]):.3f} | {precision:.3f} | {recall:.3f} | {speed} |")


def halves(folder: Path, names: list[str]) -> None:
    """F1 of `routed` on each half of each collection (by a hash of the page's name) for several thresholds."""
    print("| marked share | fallback chars | " + " | ".join(f"{name} 1 | {name} 2" for name in names) + " |")
    print("| --- | --- |" + " --- | --- |" * len(names))
    collections = {name: page_sets.load(folder, name) for name in names}
    chosen = resiliparse_text.MARKED_SHARE
    for share, fallback in ((0.6, 1000), (0.7, 1000), (0.8, 1000), (0.85, 1000), (0.9, 1000), (0.8, 500), (0.8, 2000)):
        resiliparse_text.MARKED_SHARE = share
        cells: list[str] = []
        for pages in collections.values():
            matches: tuple[list[page_sets.Match], list[page_sets.Match]] = ([], [])
            for page in pages:
                text = page_text(page.body, None, options("routed", fallback)).text
                matches[hashlib.sha256(page.name.encode()).digest()[0] % 2].append(page_sets.match(page.text, text))
            cells += [f"{page_sets.scores(half)[0]:.4f}" for half in matches]
        mark = "**" if (share, fallback) == (chosen, 1000) else ""
        print(f"| {mark}{share}{mark} | {fallback} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--halves", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.halves:
        halves(arguments.folder, arguments.sets)
    else:
        compare(arguments.folder, arguments.sets, arguments.rounds)


if __name__ == "__main__":
    main()
