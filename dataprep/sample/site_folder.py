"""A site folder under construction: pages, the index of the local server, the URL list and the expected results."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dataprep.download.crawler.local_site import INDEX
from pipelines import store
from pipelines.errors import UserError

KEPT = "kept"
"""The stage of a URL whose text passes all stages."""


@dataclass(slots=True)
class SiteFolder:
    """The files, index entries and expected results collected so far."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    index: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    answers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    def serve(self, url: str, **how: Any) -> str:
        """Add an entry to the index (see `dataprep.download.crawler.local_site`) and return the URL."""
        self.index.append({"url": url, **how})
        return url

    def add_file(self, name: str, content: bytes) -> str:
        """Add a file to the folder and return its name."""
        self.files[name] = content
        return name

    def add_page(self, url: str, name: str, page: str, encoding: str = "utf-8", **how: Any) -> str:
        """Add a page file and its index entry, and return the URL."""
        host = url.split("/")[2]
        return self.serve(url, file=self.add_file(f"pages/{host}/{name}.html", page.encode(encoding)), **how)

    def expect(self, url: str, stage: str, rule: str = "", *, kind: str) -> None:
        """List a URL with the stage and the rule that reject it, and the kind of case it is."""
        self.answers.append({"url": url, "stage": stage, "rule": rule, "kind": kind})

    def write(self, folder: Path) -> None:
        """Write the folder; files of an earlier site that this one lacks are removed.

        Raises UserError if there are other files in it.
        """
        lists = {
            INDEX: _json_lines(self.index),
            "expected.jsonl": _json_lines(self.answers),
            "urls.txt": url_list([answer["url"] for answer in self.answers]),
        }
        old = store.list_files(folder) if folder.exists() else []
        index = (folder / INDEX).read_text().splitlines() if folder / INDEX in old else []
        earlier = {*lists, *(json.loads(line).get("file") for line in index)} if index else set[str]()
        for file in old:
            if file.relative_to(folder).as_posix() not in earlier:
                raise UserError(f"{file}: not of an earlier site; name another folder, or move it away")
        for file in old:
            file.unlink()
        for name, content in {**self.files, **{name: text.encode() for name, text in lists.items()}}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def _json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def url_list(urls: list[str]) -> str:
    """Return the list as people write them: with comments, blank lines and stray spaces."""
    lines = ["# The pages of the sample, made by dataprep/sample/make_site.py", ""]
    for number, url in enumerate(urls):
        lines.append(f"{url}  " if number % 17 == 3 else url)
        if number % 23 == 22:
            lines += ["", f"# {number + 1} so far"]
    return "\n".join(lines) + "\n"


def with_parameter(url: str, parameter: str) -> str:
    """Return the URL with one more query parameter."""
    return f"{url}{'&' if '?' in url else '?'}{parameter}"
