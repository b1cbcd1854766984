"""Makes a site folder and a URL list of real pages, to run the road on real input without a network.

From the collections in a folder like ../shared/data/html: scrapinghub's article extraction
benchmark (181 pages), L3S-GN1 (621 news pages) and CleanEval (740 pages). Every page keeps its own
URL; where a collection does not say it, or a second page has it, http://<collection>.test/<id>
stands in. `download.local_site` then serves the pages under their own host names.

    python benchmarks/make_real_site.py ../shared/data/html inputs/real
    python -m dataprep.urls inputs/real/urls.txt data/real/urls
    python -m dataprep.download data/real/urls data/real/download --local-site inputs/real/site
"""

import argparse
import gzip
import html
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dataprep.crawl.addresses import parse_address
from pipelines.identity import canonical_url, split_url


@dataclass(frozen=True)
class Page:
    """One page of a collection; `url` is empty where the collection does not say it."""

    collection: str
    name: str
    url: str
    body: bytes


def scrapinghub(folder: Path) -> Iterator[Page]:
    truth = json.loads((folder / "scrapinghub" / "ground-truth.json").read_bytes())
    for name in sorted(truth):
        body = gzip.decompress((folder / "scrapinghub" / "html" / f"{name}.html.gz").read_bytes())
        yield Page("scrapinghub", name, truth[name].get("url", ""), body)


def l3s(folder: Path) -> Iterator[Page]:
    files = archive_files(folder / "l3s-gn1.tar.gz")
    mapping = next(content for name, content in files.items() if name.endswith("url-mapping.txt")).decode()
    urls = dict(re.findall(r"<urn:uuid:([^>]+)>\s+(\S+)", mapping))
    for name in sorted(name for name in files if "/original/" in name):
        yield Page("l3s", Path(name).stem, urls.get(Path(name).stem, ""), files[name])


def cleaneval(folder: Path) -> Iterator[Page]:
    """CleanEval wraps each page in <text id=URL title=... encoding=...>."""
    files = archive_files(folder / "cleaneval-final.tar.gz")
    for name in sorted(name for name in files if "/input/" in name and name.endswith(".html")):
        match = re.match(rb'\s*<text id="([^"]*)"[^>]*>(.*?)(?:</text>\s*)?$', files[name], re.DOTALL)
        url = html.unescape(match[1].decode("utf-8", "replace")) if match else ""
        yield Page("cleaneval", Path(name).stem, url, match[2] if match else files[name])


def archive_files(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        members = [member for member in archive if member.isfile()]
        return {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def servable(url: str) -> str | None:
    """The http URL under which a local site can serve `url`, or None."""
    address = split_url(canonical_url(url) or "")
    if address is None or address.port not in (80, 443) or parse_address(address.host):
        return None
    return address.url.replace("https://", "http://", 1)


def make_site(data: Path, output: Path) -> Counter[str]:
    """Write `output/site` and `output/urls.txt`; returns the number of pages and of invented URLs per collection."""
    counts: Counter[str] = Counter()
    index: dict[str, str] = {}
    listed: list[str] = []
    for page in (*scrapinghub(data), *l3s(data), *cleaneval(data)):
        url = servable(page.url)
        if url is None or url in index:
            counts[f"{page.collection}: URL invented"] += 1
            listed.append(f"http://{page.collection}.test/{page.name}")
            url = listed[-1]
        else:
            listed.append(page.url)
        file = f"pages/{page.collection}/{page.name}.html"
        index[url] = file
        (output / "site" / file).parent.mkdir(parents=True, exist_ok=True)
        (output / "site" / file).write_bytes(page.body)
        counts[page.collection] += 1
    entries = [json.dumps({"url": url, "file": file}) + "\n" for url, file in index.items()]
    (output / "site" / "index.jsonl").write_text("".join(entries))
    (output / "urls.txt").write_text("".join(f"{url}\n" for url in listed))
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with scrapinghub/, l3s-gn1.tar.gz and cleaneval-final.tar.gz")
    parser.add_argument("output", type=Path, help="folder to write site/ and urls.txt into")
    arguments = parser.parse_args()
    for what, number in sorted(make_site(arguments.data, arguments.output).items()):
        print(f"{what}: {number}")
