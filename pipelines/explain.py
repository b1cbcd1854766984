"""What every stage said of one document: looked up in the published outputs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.documents import REJECTED
from pipelines.graph import GraphStage
from pipelines.identity import canonical_url, split_url, without_tracking
from pipelines.tokens import TokenShard

_ID_COLUMNS = ("doc_id", "doc_id_a", "doc_id_b")
_URL_COLUMNS = ("url", "original", "canonical", "final_url", "url_a", "url_b")
_PLACE_COLUMNS = ("original", "file", "line")
_PORTS = {"http": 80, "https": 443}
_HIDDEN = {"text", "doc_id", "url", "signature", "sha256", "text_hash", *_ID_COLUMNS}


def explain(key: str, stages: list[GraphStage]) -> Iterator[tuple[str, str]]:
    """(stage, verdict) for each row about `key`, a URL in any spelling or a document id in hex.

    A URL found with its document id is followed by that id from then on, so that stages that keep
    no URLs (token shards) are found too. The URL lists are looked up by the line as it stands and by its
    canonical form, so that each spelling leads to all lines of the same page.
    """
    ids = {bytes.fromhex(key)} if _is_id(key) else set[bytes]()
    urls = _urls_of(ids, stages) if ids else _spellings(key, stages)
    for stage in stages:
        for out in stage.outs:
            for file in sorted(out.rglob("*.parquet")):
                for row in _matching_rows(file, ids, urls):
                    if isinstance(row.get("doc_id"), bytes):
                        ids.add(row["doc_id"])
                    if row.get("final_url") and not row.get("rule"):  # a page under the URL that answered
                        urls.add(canonical_url(row["final_url"]) or row["final_url"])
                    yield stage.name, _verdict(file, out, row)
            for file in sorted(out.glob("part-*.arrow")):
                yield from ((stage.name, line) for line in _token_rows(file, ids))


def _urls_of(ids: set[bytes], stages: list[GraphStage]) -> set[str]:
    """The URLs that documents of these ids came from."""
    files = (file for stage in stages for out in stage.outs for file in sorted(out.glob("part-*.parquet")))
    rows = (row for file in files for row in _matching_rows(file, ids, set()))
    return {row["url"] for row in rows if row.get("url")}


def _spellings(key: str, stages: list[GraphStage]) -> set[str]:
    """The URL, its canonical form, and what URL lists took lines of this very spelling, or of this page, for."""
    canonical = canonical_url(key) or key
    scheme, mark, rest = canonical.partition("://")
    other_scheme = {f"{'http' if scheme == 'https' else 'https'}{mark}{rest}"} if mark else set[str]()
    urls = {key, canonical}
    files = (file for stage in stages for out in stage.outs for file in sorted(out.rglob("*.parquet")))
    for file in files:
        names = pq.read_schema(str(file)).names
        if "original" in names or "canonical" in names:
            rows = _matching_rows(file, set(), urls | other_scheme)
            urls |= {form for row in rows if (form := row["canonical" if "canonical" in names else "url"])}
    return urls


def nearest(key: str, stages: list[GraphStage]) -> str | None:
    """The URL that is known and was most likely meant by `key`, which is not; None where there is none."""
    variants = _variants(key)
    files = (file for stage in stages for out in stage.outs for file in sorted(out.rglob("*.parquet")))
    rows = (row for file in files for row in _matching_rows(file, set(), set(variants)))
    known = {row[column] for row in rows for column in _URL_COLUMNS if column in row}
    return next((variant for variant in variants if variant in known), None)


def _variants(key: str) -> list[str]:
    """`key` with and without scheme, last slash and `www.`, in canonical form, the likeliest first."""
    address = split_url(key if "://" in key else f"http://{key}")
    if address is None or _is_id(key):
        return []
    address = without_tracking(address)
    host, path = address.host.removeprefix("www."), address.path.rstrip("/")
    hosts = sorted((host, f"www.{host}"), key=lambda other: other != address.host)
    paths = sorted((path or "/", f"{path}/"), key=lambda other: other != address.path)
    schemes = sorted(_PORTS, key=lambda other: other != address.scheme)
    found = [
        address._replace(scheme=s, host=h, path=p, port=_PORTS[s] if address.port in _PORTS.values() else address.port)
        for h in hosts
        for p in paths
        for s in schemes
    ]
    return list(dict.fromkeys(variant.url for variant in found))


def _is_id(key: str) -> bool:
    return len(key) == 32 and all(character in "0123456789abcdefABCDEF" for character in key)


def _matching_rows(file: Path, ids: set[bytes], urls: set[str]) -> Iterator[dict[str, Any]]:
    schema = pq.read_schema(str(file))
    filters: list[pc.Expression] = []
    for column in schema.names:
        if column in _ID_COLUMNS and ids:
            filters.append(pc.field(column).isin(pa.array(sorted(ids), schema.field(column).type)))
        elif column in _URL_COLUMNS and urls:
            filters.append(pc.field(column).isin(pa.array(sorted(urls))))
    if not filters:
        return
    either = filters[0]
    for more in filters[1:]:
        either |= more
    columns = [name for name in schema.names if name not in ("text", "signature")]
    yield from pq.read_table(str(file), columns=columns, filters=either).to_pylist()


def _verdict(file: Path, out: Path, row: dict[str, Any]) -> str:
    line = f"{row['file']}:{row['line']} {row.get('original') or row['url']}" if {"file", "line"} <= row.keys() else ""
    if file.parent.name == REJECTED:
        against = f"; the threshold is {row['threshold']}" if row.get("threshold") else ""
        return f"rejected by {row['rule']}: {row['value']}{against}{f' ({line})' if line else ''}"
    hidden = _HIDDEN.union(_PLACE_COLUMNS) if line else _HIDDEN
    shown = {name: _plain(value) for name, value in row.items() if name not in hidden and value not in (None, "")}
    details = ", ".join([*([line] if line else []), *(f"{name}={value}" for name, value in shown.items())])
    place = file.relative_to(out.parent)
    return f"{'kept in ' if 'source' in row else ''}{place}{': ' + details if details else ''}"


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _token_rows(file: Path, ids: set[bytes]) -> Iterator[str]:
    shard = TokenShard(file)
    for row, doc_id in enumerate(shard.doc_ids if ids else ()):
        if doc_id in ids:
            start, stop = int(shard.offsets[row]), int(shard.offsets[row + 1])
            yield f"{file.parent.name}/{file.name}: document {row}, tokens {start} to {stop - 1}"
