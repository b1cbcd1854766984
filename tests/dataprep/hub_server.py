"""A small server on loopback in the shape of the Hugging Face Hub: listings, commits, large files behind a redirect."""

import contextlib
import hashlib
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

from tests.http_server import serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "owner/corpus"
PAGE_FILES = 2
"""Files in one page of a listing."""


@dataclass
class Hub:
    """One data set at one commit, and how the server misbehaves."""

    files: dict[str, bytes]
    small: frozenset[str] = frozenset()
    """Files that git keeps itself: sent without a redirect, known by git's sha1."""
    cut: dict[str, int] = field(default_factory=dict[str, int])
    """Path -> the bytes after which its connection breaks, once."""
    fail: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Path -> statuses to answer first; "tree" is the listing."""
    corrupt: set[str] = field(default_factory=set[str])
    """Paths whose bytes arrive changed, once."""
    ranges: bool = True
    branch: str = ""
    """What the commit is called too, where it is asked for by name."""
    requests: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """(method, path, Range) of every request."""
    endpoint: str = ""

    def sent(self, path: str) -> list[str]:
        """The Range of every request for the bytes of a file, "" for the whole."""
        return [range_ for method, asked, range_ in self.requests if method == "GET" and asked.endswith(f"/{path}")]

    def entry(self, path: str) -> dict[str, object]:
        """The file in a listing."""
        body = self.files[path]
        git = hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
        known: dict[str, object] = {"type": "file", "path": path, "size": len(body), "oid": git}
        if path not in self.small:
            known["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 134}
        return known


@contextlib.contextmanager
def serve_hub(hub: Hub) -> Generator[Hub]:
    """Serve it on a free port; `endpoint` is what HF_ENDPOINT must be."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(hub, self, body=True)

        def do_HEAD(self) -> None:
            answer(hub, self, body=False)

        def log_message(self, *_args: object) -> None:
            pass

    with serving(Handler) as hub.endpoint:
        yield hub


def answer(hub: Hub, request: BaseHTTPRequestHandler, *, body: bool) -> None:
    """One request, whatever it is for."""
    url = urlsplit(request.path)
    parts = unquote(url.path).strip("/").split("/")
    hub.requests.append((request.command, unquote(url.path), request.headers.get("Range", "")))
    if parts[0] == "large":
        send_file(hub, request, "/".join(parts[1:]), body=body)
        return
    is_listing = parts[0] == "api"
    if parts[0] not in ("api", "datasets"):
        parts = ["models", *parts]  # whose files need no such word
    if len(parts) < 5:  # the client asks for more than files now and then, and does without
        send(request, 404, {})
        return
    repository, revision = ("/".join(parts[2:4]), parts[5]) if is_listing else ("/".join(parts[1:3]), parts[4])
    if is_listing and parts[4:] == ["revision", hub.branch]:
        revision = COMMIT
    path = "" if is_listing else "/".join(parts[5:])
    if problem := problem_of(hub, repository, revision, path or "tree"):
        send(request, *problem)
    elif is_listing and parts[4] == "revision":
        send_info(hub, request)
    elif is_listing:
        send_listing(hub, request, parts[1], parse_qs(url.query))
    elif path in hub.small:
        send_file(hub, request, path, body=body)
    else:
        entry = hub.entry(path)
        headers = {"Location": f"{hub.endpoint}/large/{path}", "X-Repo-Commit": COMMIT}
        headers |= {
            "X-Linked-Size": str(entry["size"]),
            "X-Linked-ETag": f'"{hashlib.sha256(hub.files[path]).hexdigest()}"',
        }
        send(request, 302, headers)


def problem_of(hub: Hub, repository: str, revision: str, what: str) -> tuple[int, dict[str, str]] | None:
    """Why this request is refused: its status, and the header that says why."""
    if waiting := hub.fail.get(what):
        return waiting.pop(0), {}
    if repository == "owner/gated":
        return 403, {"X-Error-Code": "GatedRepo"}
    if repository == "owner/private":
        return 401, {"X-Error-Message": "Invalid username or password."}
    if repository != REPOSITORY:
        return 404, {"X-Error-Code": "RepoNotFound"}
    if revision != COMMIT:
        return 404, {"X-Error-Code": "RevisionNotFound"}
    return None


def send_info(hub: Hub, request: BaseHTTPRequestHandler) -> None:
    """What the Hub says of a repository at a commit: the names of its files."""
    info = {"id": REPOSITORY, "sha": COMMIT, "siblings": [{"rfilename": path} for path in sorted(hub.files)]}
    send(request, 200, {"Content-Type": "application/json"}, json.dumps(info).encode())


def send_listing(hub: Hub, request: BaseHTTPRequestHandler, kind: str, query: dict[str, list[str]]) -> None:
    """One page of the files, the last one first as nobody promises an order."""
    start = int(query.get("cursor", ["0"])[0])
    paths = sorted(hub.files, reverse=True)
    headers = {"Content-Type": "application/json"}
    if start + PAGE_FILES < len(paths):
        here = f"{hub.endpoint}/api/{kind}/{REPOSITORY}/tree/{COMMIT}"
        headers["Link"] = f'<{here}?recursive=True&cursor={start + PAGE_FILES}>; rel="next"'
    entries = [hub.entry(path) for path in paths[start : start + PAGE_FILES]]
    send(request, 200, headers, json.dumps([{"type": "directory", "path": "data", "oid": "0" * 40}, *entries]).encode())


def send_file(hub: Hub, request: BaseHTTPRequestHandler, path: str, *, body: bool) -> None:
    """The bytes of a file, or those of a range, or as many of them as come before the connection breaks."""
    data = hub.files[path]
    if path in hub.corrupt:
        hub.corrupt.remove(path)
        data = bytes(len(data))
    first = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0]) if hub.ranges else 0
    headers = {"ETag": f'"{hub.entry(path)["oid"]}"', "X-Repo-Commit": COMMIT, "Content-Length": str(len(data) - first)}
    if first:
        headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
    send(request, 206 if first else 200, headers)
    if not body:
        return
    last = hub.cut.pop(path, len(data))
    request.wfile.write(data[first:last])
    if last < len(data):
        request.wfile.flush()
        request.connection.close()
        request.close_connection = True


def send(request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes = b"") -> None:
    """A status, headers, and perhaps a body."""
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)
