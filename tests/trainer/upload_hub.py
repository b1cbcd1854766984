"""A small server on loopback in the shape of the Hugging Face Hub, to which models are uploaded.

It creates repositories, keeps large files apart by their digest, takes commits only as a whole, and serves what was
committed, so that transformers can load it. It also misbehaves as told.
"""

import base64
import contextlib
import hashlib
import json
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.http_server import serving

WRITER, READER, STRANGER = "hf_writer", "hf_reader", "hf_stranger"
OWNERS = {WRITER: "mill", READER: "mill", STRANGER: "stranger"}
"""Token -> whose it is; the reader's may not write."""


@dataclass
class Repository:
    """Files by path, and the commit that they are of."""

    files: dict[str, bytes] = field(default_factory=lambda: {".gitattributes": b"*.safetensors filter=lfs\n"})
    commits: list[str] = field(default_factory=lambda: [hashlib.sha1(b"initial").hexdigest()])
    visibility: str = "public"

    @property
    def head(self) -> str:
        return self.commits[-1]


@dataclass
class UploadHub:
    """What was uploaded, and how the server misbehaves."""

    repositories: dict[str, Repository] = field(default_factory=dict[str, Repository])
    storage: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Large files by sha256, also those of no commit."""
    fail: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """create, preupload, batch, storage, commit -> statuses to answer first; 0 breaks the connection."""
    refused: str = ""
    """What the server says is wrong with a card's YAML."""
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(method, path) of every request."""
    endpoint: str = ""

    def sent(self, method: str, part: str) -> int:
        """How many requests of a kind came."""
        return sum(asked == method and part in path for asked, path in self.requests)


class RefusedError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: str = "", message: str = "", body: Any = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.body = status, code, message, body


@contextlib.contextmanager
def serve(hub: UploadHub) -> Generator[UploadHub]:
    """Serve it on a free port; `endpoint` is what HF_ENDPOINT must be."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            handle(hub, self)

        def do_HEAD(self) -> None:
            handle(hub, self)

        def do_POST(self) -> None:
            handle(hub, self)

        def do_PUT(self) -> None:
            handle(hub, self)

        def log_message(self, *_args: object) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
            pass

    with serving(Handler) as hub.endpoint:
        yield hub


def handle(hub: UploadHub, request: BaseHTTPRequestHandler) -> None:
    """Answer one request."""
    path = unquote(urlsplit(request.path).path)
    hub.requests.append((request.command, path))
    body = request.rfile.read(int(request.headers.get("Content-Length", "0")))
    try:
        content, headers = answer(hub, request, path, body)
        send(request, 200, content, headers)
    except RefusedError as refusal:
        if not refusal.status:
            request.connection.close()
            request.close_connection = True
            return
        headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
        send(request, refusal.status, json.dumps(refusal.body or {"error": refusal.message}).encode(), headers)


def send(request: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str]) -> None:
    """Send a status, headers, and a body unless only its length was asked for."""
    request.send_response(status)
    for name, value in {"Content-Type": "application/json", **headers}.items():
        if value:
            request.send_header(name, value)
    request.send_header("Content-Length", str(len(content)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(content)


def answer(hub: UploadHub, request: BaseHTTPRequestHandler, path: str, body: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a successful answer; raise RefusedError for any other."""
    parts = path.strip("/").split("/")
    if parts[0] == "storage":
        return store_large(hub, parts[1], body), {}
    if path == "/api/validate-yaml":
        if hub.refused:
            raise RefusedError(400, body={"errors": [{"message": hub.refused}], "warnings": []})
        return b'{"errors": [], "warnings": []}', {}
    if path == "/api/repos/create":
        return create(hub, request, json.loads(body)), {}
    if path.endswith(".git/info/lfs/objects/batch"):
        require_writer(hub, request, "/".join(parts[:2]).removesuffix(".git"))
        misbehave(hub, "batch")
        return batch(hub, json.loads(body)), {}
    if parts[:2] == ["api", "models"] and len(parts) >= 4:
        return ask_api(hub, request, "/".join(parts[2:4]), parts[4:], body), {}
    if len(parts) > 4 and parts[2] == "resolve":
        return resolve(hub, "/".join(parts[:2]), "/".join(parts[4:]))
    raise RefusedError(404)


def misbehave(hub: UploadHub, what: str) -> None:
    """Refuse, or break the connection, if that was told."""
    if waiting := hub.fail.get(what):
        raise RefusedError(waiting.pop(0), message=f"{what} fails")


def token_of(request: BaseHTTPRequestHandler) -> str:
    """Return the token of a request; an unknown one is refused."""
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if token and token not in OWNERS:
        raise RefusedError(401, message="Invalid credentials in Authorization header")
    return token


def require_writer(hub: UploadHub, request: BaseHTTPRequestHandler, name: str) -> None:
    """Refuse who may not write there."""
    token = token_of(request)
    if name not in hub.repositories:
        raise RefusedError(404, "RepoNotFound", "Repository not found")
    if token != WRITER or OWNERS[token] != name.partition("/")[0]:
        raise RefusedError(403, message="Forbidden: pass `create_pr=1` as a query parameter to create a Pull Request")


def create(hub: UploadHub, request: BaseHTTPRequestHandler, asked: dict[str, Any]) -> bytes:
    """Make a repository."""
    misbehave(hub, "create")
    token = token_of(request)
    owner = asked.get("organization") or OWNERS.get(token, "")
    if not token:
        raise RefusedError(401, message="Invalid username or password.")
    if token == READER or owner != OWNERS[token]:
        raise RefusedError(403, message=f'You don\'t have the rights to create a model under the namespace "{owner}"')
    name = f"{owner}/{asked['name']}"
    if name in hub.repositories:
        raise RefusedError(409, message="You already created this model repo", body={"url": f"{hub.endpoint}/{name}"})
    hub.repositories[name] = Repository(visibility=asked.get("visibility", "public"))
    return json.dumps({"url": f"{hub.endpoint}/{name}"}).encode()


def ask_api(hub: UploadHub, request: BaseHTTPRequestHandler, name: str, rest: list[str], body: bytes) -> bytes:
    """Answer a question about a repository, or change it."""
    token_of(request)
    if name not in hub.repositories:
        raise RefusedError(404, "RepoNotFound", "Repository not found")
    repository = hub.repositories[name]
    if request.command == "POST":
        require_writer(hub, request, name)
        misbehave(hub, rest[0])
        return preupload(repository, body) if rest[0] == "preupload" else commit(hub, name, body)
    if not rest or rest[0] == "revision":
        siblings = [{"rfilename": path} for path in sorted(repository.files)]
        private = repository.visibility == "private"
        return json.dumps({"id": name, "sha": repository.head, "private": private, "siblings": siblings}).encode()
    if rest[0] == "tree" and len(rest) == 2:
        return json.dumps([entry(path, repository.files[path]) for path in sorted(repository.files)]).encode()
    raise RefusedError(404, "EntryNotFound", "Entry not found")


def is_large(path: str) -> bool:
    """Whether the server keeps a file apart."""
    return path.endswith(".safetensors")


def git_digest(content: bytes) -> str:
    """The digest by which git knows a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def entry(path: str, content: bytes) -> dict[str, Any]:
    """A file in a listing."""
    known: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git_digest(content)}
    if is_large(path):
        known["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return known


def preupload(repository: Repository, body: bytes) -> bytes:
    """Say how each file is to be sent."""
    files: list[dict[str, Any]] = []
    for file in json.loads(body)["files"]:
        path = file["path"]
        known = entry(path, repository.files[path]) if path in repository.files else {}
        digest = known["lfs"]["oid"] if "lfs" in known else known.get("oid")
        mode = "lfs" if is_large(path) else "regular"
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": digest})
    return json.dumps({"files": files}).encode()


def batch(hub: UploadHub, asked: dict[str, Any]) -> bytes:
    """Say where large files are to be sent; nothing for one that is there."""
    objects: list[dict[str, Any]] = []
    for each in asked["objects"]:
        known = {"oid": each["oid"], "size": each["size"]}
        actions = {"upload": {"href": f"{hub.endpoint}/storage/{each['oid']}"}}
        objects.append(known if each["oid"] in hub.storage else {**known, "actions": actions})
    return json.dumps({"transfer": "basic", "objects": objects}).encode()


def store_large(hub: UploadHub, digest: str, body: bytes) -> bytes:
    """Keep a large file."""
    misbehave(hub, "storage")
    if hashlib.sha256(body).hexdigest() != digest:
        raise RefusedError(400, message="other bytes")
    hub.storage[digest] = body
    return b""


def commit(hub: UploadHub, name: str, body: bytes) -> bytes:
    """Take a commit: all of it or nothing."""
    repository, files = hub.repositories[name], dict[str, bytes]()
    for line in map(json.loads, body.splitlines()):
        value = line["value"]
        if line["key"] == "header" and value.get("parentCommit", repository.head) != repository.head:
            raise RefusedError(412, message="A commit has happened since. Please refresh and try again.")
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        if line["key"] == "lfsFile":
            files[value["path"]] = hub.storage[value["oid"]]
    repository.files |= files
    repository.commits.append(hashlib.sha1(repository.head.encode() + body).hexdigest())
    url = f"{hub.endpoint}/{name}/commit/{repository.head}"
    return json.dumps({"success": True, "commitOid": repository.head, "commitUrl": url}).encode()


def resolve(hub: UploadHub, name: str, path: str) -> tuple[bytes, dict[str, str]]:
    """Serve a file."""
    if name not in hub.repositories:
        raise RefusedError(404, "RepoNotFound", "Repository not found")
    repository = hub.repositories[name]
    if path not in repository.files:
        raise RefusedError(404, "EntryNotFound", "Entry not found")
    content = repository.files[path]
    headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": repository.head}
    return content, {**headers, "Content-Type": "application/octet-stream"}
