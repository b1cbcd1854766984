"""Names in the download folder: safe, short, in order, and the user's own can be told from them."""

import re

import pytest

from dataprep.readers.records import CUT, PACKED, original_name, passthrough_name


@pytest.mark.parametrize("name", ["a.jsonl", "my.corpus.ndjson.gz", "x-1_2.tar.xz", "crawl-00003.tar", "-.parquet"])
def test_an_ordinary_name_comes_back(name: str) -> None:
    ending = re.sub(r"^.*?(?=\.(jsonl|ndjson|tar|parquet))", "", name)
    linked = passthrough_name(7, name, ending) + ending
    assert linked == f"documents-00007-{name}"
    assert original_name(linked) == name
    assert original_name(f"documents-00007-{name}{CUT}-00012.tar") == name
    assert original_name(f"documents-00007-{name}{PACKED}.tar") == name


def test_an_odd_name_is_made_safe_and_short() -> None:
    assert passthrough_name(0, "../ä b\n.jsonl", ".jsonl") == "documents-00000-..___b_"
    assert passthrough_name(0, "x" * 300) == "documents-00000-" + "x" * 60
    assert passthrough_name(0, "a.rejected.jsonl", ".jsonl") == "documents-00000-a_rejected"
    assert passthrough_name(0, "a.jsonl.warc", ".warc") == "documents-00000-a_jsonl"


@pytest.mark.parametrize("name", ["documents-00000.jsonl", "documents-hub-00000.parquet", "segment-00000.warc.gz", "a"])
def test_other_names_are_what_they_are(name: str) -> None:
    assert original_name(name) == name
