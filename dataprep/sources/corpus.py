"""Whether a corpus can be had from what its parameters name: refused in one line before anything runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dataprep.sources.finding import KINDS, find_inputs, kind_as
from dataprep.sources.hub_client import check_commit
from pipelines.config import given
from pipelines.errors import ConfigError, UserError

_NEEDS = {"urls": "corpus.urls", "replay": "download.replay", "hub": "download.hub_repository"}
_TAKES = {"replay": ("corpus.urls", "download.replay")}
_EXAMPLES = {
    "corpus.urls": "corpus.urls=FILE or a folder of URL lists",
    "corpus.documents": "corpus.documents=FILE or a folder",
    "download.replay": "download.replay=ARCHIVE, a WARC file or a folder of them",
    "download.hub_repository": "download.hub_repository=OWNER/NAME",
}


def check_corpus(params: Mapping[str, Any]) -> None:
    """Refuse a kind of source whose source is not named, sources that it would not read, and files of another kind."""
    corpus, download = params["corpus"], params["download"]
    kind: str = corpus["source"]["kind"]
    named = {key: given(_value(params, key)) for key in _EXAMPLES}
    _check_named(kind, {key for key, value in named.items() if value})
    if kind in KINDS and download["source"] != kind:
        raise ConfigError(f"download.source: {download['source']!r}, but corpus.source.kind is {kind!r}; change one")
    if named["download.hub_repository"]:
        _check_hub(download)
    if (documents := named["corpus.documents"]) and documents.exists():
        _check_documents(documents, kind)


def _value(params: Mapping[str, Any], key: str) -> str:
    section, _, name = key.partition(".")
    return params[section][name]


def _check_named(kind: str, named: set[str]) -> None:
    if kind == "auto":
        if not named:
            raise ConfigError(f"corpus: names no source; give one of {', '.join(_EXAMPLES.values())}")
        return
    needed = _NEEDS.get(kind, "corpus.documents")
    if needed not in named:
        raise ConfigError(f"{needed}: corpus.source.kind is {kind!r}, so give {_EXAMPLES[needed]}")
    if extra := sorted(named - {*_TAKES.get(kind, (needed,))}):
        raise ConfigError(
            f"{extra[0]}: corpus.source.kind is {kind!r}, which does not read it; leave it out, or take all that is "
            "given with corpus=local"
        )


def _check_hub(download: Mapping[str, Any]) -> None:
    check_commit("download.hub_revision", download["hub_repository"], download["hub_revision"])
    if not download["hub_files"]:
        raise ConfigError("download.hub_files: empty; say which files of the data set, such as [plain_text/*.parquet]")


def _check_documents(path: Path, kind: str) -> None:
    try:
        if path.is_file() and not (read := kind_as(path, kind))[0]:
            raise UserError(f"{path}: {read[1]}; name a file of this kind, or choose the profile of the file's own")
        find_inputs(path, kind)
    except UserError as error:
        raise ConfigError(f"corpus.documents, of kind {kind!r}: {error}") from None
