"""Fake API server on a real socket: paged lists, watches, patches, and injected failures."""

from __future__ import annotations

import contextlib
import copy
import http.server
import json
import socket
import threading
import urllib.parse
from typing import TYPE_CHECKING, Any

import http_listener
import small_kubelet
import waiting

from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Saved = tuple[dict[str, dict[str, Any]], int]  # objects by path, and the version

FEW = 3  # objects on a page, whatever the limit
RESOURCES = "/apis/resource.k8s.io/v1"
OF_ALL = {  # kinds that are listed across all namespaces
    "pods": "/api/v1/pods",
    "resourceclaims": f"{RESOURCES}/resourceclaims",
    "resourceclaimtemplates": f"{RESOURCES}/resourceclaimtemplates",
}
LISTED = (
    *OF_ALL,
    "nodes",
    "leases",
    "events",
    "poddisruptionbudgets",
    "deviceclasses",
    "resourceslices",
)


class SmallApi:
    """Objects by their paths; every change has a resourceVersion."""

    def __init__(self) -> None:
        self.asked: list[
            tuple[str, str]
        ] = []  # method and path; a watch is WATCH, a list of one PEEK
        self.watched_from: list[int] = []  # resourceVersions at which watches started
        self.retry_after = ""  # Retry-After of every error, seconds
        self.down = False  # requests are counted but not answered
        self.forbidden: tuple[str, ...] = ()  # prefixes of paths that answer 403
        self.texts: dict[str, str] = {}  # plain-text answers by path, as of proxied requests
        self.failing: list[int] = []  # status codes of the next answers
        self.refusing: dict[str, list[int]] = {}  # the same by method
        self.refusals: dict[str, tuple[int, str]] = {}  # code and message of answers, by method
        self.unknown: frozenset[str] = frozenset()  # fields that are dropped from written objects
        self._objects: dict[str, dict[str, Any]] = {}
        self._history: list[tuple[int, str, str, dict[str, Any]]] = []
        self._version = 0
        self._forgotten = 0  # events before this version are compacted
        self._breaks = 0
        self._closed = False
        self._connections: set[socket.socket] = set()
        self._changed = threading.Condition()

    def put(self, path: str, thing: dict[str, Any]) -> dict[str, Any]:
        """Create or change an object."""
        with self._changed:
            return self._put(path, thing)

    def delete(self, path: str) -> None:
        """Delete an object."""
        with self._changed:
            self._note("DELETED", path, self._objects.pop(path))

    def read(self, path: str) -> dict[str, Any]:
        """Return a copy of an object."""
        with self._changed:
            return copy.deepcopy(self._objects[path])

    def under(self, folder: str) -> list[dict[str, Any]]:
        """Return the objects below a collection path."""
        with self._changed:
            return [
                stored
                for path, stored in sorted(self._objects.items())
                if folder in (_folder(path), path.rpartition("/")[0])
            ]

    def forget(self) -> None:
        """Compact the history, and break every watch."""
        with self._changed:
            self._version += 1
            self._forgotten = self._version
        self.break_watches()

    def saved(self) -> Saved:
        """Return a copy of everything, for :meth:`restore`."""
        with self._changed:
            return copy.deepcopy(self._objects), self._version

    def restore(self, saved: Saved) -> None:
        """Go back to *saved*; a watch from a later version is silent until that is reached."""
        with self._changed:
            self._objects, self._version = copy.deepcopy(saved[0]), saved[1]
            self._history = [event for event in self._history if event[0] <= self._version]
        self.break_watches()

    def bookmark(self, folder: str) -> int:
        """Send a bookmark to the watches of a kind; return its version."""
        with self._changed:
            self._version += 1
            thing = {"metadata": {"resourceVersion": str(self._version)}}
            self._history.append((self._version, "BOOKMARK", folder, thing))
            self._changed.notify_all()
            return self._version

    def go_down(self) -> None:
        """Stop answering requests, and break every watch."""
        self.down = True
        self.break_watches()

    def break_watches(self) -> None:
        """Drop the connections of all watches."""
        with self._changed:
            self._breaks += 1
            self._changed.notify_all()

    @contextlib.contextmanager
    def connected(self, connection: socket.socket) -> Iterator[None]:
        """Register a client's connection while it is served."""
        with self._changed:
            self._connections.add(connection)
            if self._closed:
                _hang_up(connection)
        try:
            yield
        finally:
            with self._changed:
                self._connections.discard(connection)

    def close(self) -> None:
        """Close all connections, so that no thread keeps waiting for a request."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            for connection in self._connections:
                _hang_up(connection)

    def wait_for(self, method: str, path: str, times: int = 1) -> None:
        """Wait until there were *times* such requests."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: self.asked.count((method, path)) >= times, waiting.PROMPT
            ), self.asked

    def _put(self, path: str, thing: dict[str, Any]) -> dict[str, Any]:
        kind = "MODIFIED" if path in self._objects else "ADDED"
        self._objects[path] = copy.deepcopy(thing)
        self._note(kind, path, self._objects[path])
        return self._objects[path]

    def _note(self, kind: str, path: str, thing: dict[str, Any]) -> None:
        self._version += 1
        thing.setdefault("metadata", {})["resourceVersion"] = str(self._version)
        self._history.append((self._version, kind, _folder(path), copy.deepcopy(thing)))
        self._changed.notify_all()

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
        """Return the status code and the object for a request."""
        with self._changed:
            self.asked.append(("PEEK" if query.get("limit") == "1" else method, path))
            self._changed.notify_all()
            body = _without(body, self.unknown)
            codes = self.failing or self.refusing.get(method)
            if codes:
                return codes.pop(0), {"message": "as the test wants it"}
            if method in self.refusals:
                code, why = self.refusals[method]
                return code, {"message": why}
            if method == "GET" and path.startswith(self.forbidden):
                return 403, {"message": f"{path} is forbidden"}
            match method:
                case "GET" if path in self.texts:
                    return 200, self.texts[path]
                case "GET" if path in self._objects:
                    return 200, self._objects[path]
                case "GET" if path.rpartition("/")[2] in LISTED:
                    return 200, self._page(path, int(query.get("continue") or 0))
                case "POST" if query.get("dryRun"):
                    return 201, body
                case "POST":
                    meta = body["metadata"]
                    path = (
                        f"{path}/{meta.get('name') or meta['generateName'] + str(self._version)}"
                    )
                    return (409, {}) if path in self._objects else (201, self._put(path, body))
                case "PUT" if path in self._objects:
                    now = self._objects[path]["metadata"]["resourceVersion"]
                    if body["metadata"].get("resourceVersion", now) != now:
                        return 409, {"message": "the object has been modified"}
                    return 200, self._put(path, body)
                case "DELETE" if path in self._objects:
                    now = self._objects[path]["metadata"]
                    wanted = ((body or {}).get("preconditions") or {}).items()
                    if any(now.get(key) != value for key, value in wanted):
                        return 409, {"message": "the object has been modified"}
                    self._note("DELETED", path, self._objects.pop(path))
                    return 200, {}
                case "PATCH" if path in self._objects and isinstance(body, dict):
                    now = self._objects[path]
                    uid = now["metadata"].get("uid")
                    if (body.get("metadata") or {}).get("uid", uid) != uid:
                        return 409, {"message": "the uid is another"}
                    version = now["metadata"]["resourceVersion"]
                    if (body.get("metadata") or {}).get("resourceVersion", version) != version:
                        return 409, {"message": "the object has been modified"}
                    return 200, self._put(path, _merged(now, body))
                case "PATCH" if path in self._objects:
                    try:
                        return 200, self._put(path, small_kubelet.apply(self._objects[path], body))
                    except small_kubelet.WrongError:
                        return 422, {"message": "the server rejected our request"}
            return 404, {"message": f"{path} not found"}

    def _page(self, folder: str, first: int) -> dict[str, Any]:
        found = self.under(folder)
        more = str(first + FEW) if first + FEW < len(found) else ""
        metadata = {"resourceVersion": str(self._version), "continue": more}
        items = found[first : first + FEW]
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}

    def events(self, folder: str, version: int) -> Iterator[dict[str, Any]]:
        """Yield the events of a kind after *version*, until the watch is broken."""
        with self._changed:
            self.asked.append(("WATCH", folder))
            self.watched_from.append(version)
            self._changed.notify_all()
            breaks = self._breaks
            if self.down:  # since the request arrived
                return
        while True:
            with self._changed:
                if version < self._forgotten:
                    yield {"type": "ERROR", "object": {"code": 410, "message": "too old"}}
                    return
                news = [event for event in self._history if event[0] > version]
                if not news:
                    self._changed.wait(1)
                if self._closed or self._breaks != breaks:
                    return
            for number, kind, where, thing in news:
                version = number
                if where == folder:
                    yield {"type": kind, "object": thing}


@contextlib.contextmanager
def running(api: SmallApi | None = None) -> Iterator[tuple[SmallApi, apiserver.ApiServer]]:
    """Serve an API; yield it and a connection to it."""
    from kubernetes import client

    api = api or SmallApi()
    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(api))
    listener.daemon_threads = True
    settings = client.Configuration(host=f"http://127.0.0.1:{listener.server_address[1]}")
    connection = client.ApiClient(settings)
    try:
        with http_listener.serving(listener):
            yield api, apiserver.ApiServer(connection)
    finally:
        api.close()
        _close(connection.rest_client.pool_manager.pools)


def _close(pools: Any) -> None:
    """Close a client's connections now; clear() alone leaves that to the garbage collector."""
    for key in pools.keys():  # noqa: SIM118 - it cannot be iterated over
        pools[key].close()
    pools.clear()


def write_kubeconfig(path: Path, connection: apiserver.ApiServer, namespace: str = "team") -> None:
    """Write a kubeconfig for the API server of *connection*."""
    where = {"server": connection._client.configuration.host}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": where}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}
        ],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the client has closed it already
        connection.shutdown(socket.SHUT_RDWR)


def _merged(thing: Any, patch: Any) -> Any:
    """Apply a merge patch."""
    if not isinstance(patch, dict):
        return patch
    found = dict(thing) if isinstance(thing, dict) else {}
    found |= {key: _merged(found.get(key), value) for key, value in patch.items()}
    return {key: value for key, value in found.items() if value is not None}


def _without(thing: Any, fields: frozenset[str]) -> Any:
    """Return *thing* without these fields, at any depth."""
    if isinstance(thing, dict):
        return {key: _without(value, fields) for key, value in thing.items() if key not in fields}
    return [_without(element, fields) for element in thing] if isinstance(thing, list) else thing


def _folder(path: str) -> str:
    """Return the collection path of an object: across namespaces for the kinds in OF_ALL."""
    folder = path.rpartition("/")[0]
    return OF_ALL.get(folder.rpartition("/")[2], folder)


def _handler(api: SmallApi) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle(self) -> None:
            with api.connected(self.connection), contextlib.suppress(ConnectionError):
                super().handle()

        def _answer(self) -> None:
            path, _, text = self.path.partition("?")
            query = dict(urllib.parse.parse_qsl(text))
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if api.down:
                api.asked.append((self.command, path))
                self.close_connection = True
                return
            if query.get("watch"):
                self._stream(path, int(query["resourceVersion"]))
                return
            code, thing = api.answer(self.command, path, query, json.loads(body or b"null"))
            if not code:  # drop the answer
                self.close_connection = True
                return
            content = (thing if isinstance(thing, str) else json.dumps(thing)).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            if code >= 300 and api.retry_after:
                self.send_header("Retry-After", api.retry_after)
            self.end_headers()
            self.wfile.write(content)

        def _stream(self, path: str, version: int) -> None:
            self.close_connection = True
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with contextlib.suppress(OSError):
                for event in api.events(path, version):
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler
