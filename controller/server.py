"""The API server, by the official client's configuration: JSON in, JSON out.

Where the server is, who we are and how that is renewed are the client library's business. Its
models are not used: they take three times as long as JSON, and drop fields of newer servers. Every
request has a deadline; a watch is ended by the server before we give it up.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import re
import socket
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.controller import cycles, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyvgpu.controller.objects import Object

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"

CONFLICT = 409  # another was first: to read again helps at once
OUTDATED = frozenset({404, CONFLICT, 422})  # what was meant has gone or changed: read it again

_SECONDS = 30
_CONNECT_SECONDS = 5
_SLACK_SECONDS = 10  # beyond the end that the server was asked for
_SILENT_SECONDS = 150  # a watch: the server sends a bookmark a minute, so who is silent is gone
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_PAGE = 500  # objects of a list that are asked for at once
_HEAD = re.compile(  # of a list as the API server writes it: its metadata come before its items
    rb'\{\s*"kind":\s*"[^"]*",\s*"apiVersion":\s*"[^"]*",\s*"metadata":\s*(\{[^{}]*\})'
)
_CONNECTIONS = 32  # that are kept: more than ask at once, for each new one costs both sides 3 ms
_SOCKET_OPTIONS = [  # a peer that went without a word is noticed in less than a minute
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
]


class ServerError(errors.UnavailableError):
    """The API server did not do what it was asked for."""

    def __init__(self, text: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status  # 0: there was no answer
        self.retry_after = retry_after

    @property
    def outdated(self) -> bool:
        """Whether we knew too little of what is there now; no failure of anybody."""
        return self.status in OUTDATED


def _ignore(method: str, status: int, seconds: float) -> None:
    """Nobody counts."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """What is asked of the server, and how long it may take."""

    method: str
    path: str
    query: Mapping[str, str | int] | None = None
    body: object = None
    kind: str = JSON  # of the body
    seconds: float = _SECONDS  # for which it may be silent
    connect: float = _CONNECT_SECONDS  # that a connection may take, and as long its handshake

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Server:
    """A connection to the API server; several threads may use it.

    *asked* is told of every request: its method, the status of the answer (0: there was none), and
    the seconds until that began.
    """

    def __init__(self, client: Any, asked: Callable[[str, int, float], None] = _ignore) -> None:
        self._client = client  # kubernetes.client.ApiClient, which has no types
        self._asked = asked

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: object = None,
        kind: str = JSON,
        seconds: float = _SECONDS,
        connect: float = _CONNECT_SECONDS,
    ) -> dict[str, Any]:
        """Send a request and return the object that is answered; ServerError for any other.

        *seconds* is for how long the server may be silent, *connect* for how long a connection may
        take, and as long again its handshake.
        """
        content = self._read(_Request(method, path, query, body, kind, seconds, connect))
        found: dict[str, Any] = json.loads(content)
        return found

    def text(self, path: str, seconds: float = _SECONDS) -> str:
        """Return what is answered as it is, such as by a pod behind the API server's proxy."""
        return self._read(_Request("GET", path, seconds=seconds)).decode("utf-8", "replace")

    def items(self, path: str, query: Mapping[str, str | int]) -> tuple[list[Object], str]:
        """Return a list in full, which is read in pages, and its resourceVersion."""
        found: list[Object] = []
        version = ""
        for page, whole in self.pages(path, query):
            found += page
            version = whole
        return found, version

    def pages(
        self, path: str, query: Mapping[str, str | int]
    ) -> Iterator[tuple[list[Object], str]]:
        """Yield a list page by page, each with the resourceVersion of the whole.

        While one page is read and looked at, the server makes the next.
        """

        def ask(token: str) -> bytes:
            asked = {**query, "limit": _PAGE, "continue": token}
            return self._read(_Request("GET", path, asked))

        with concurrent.futures.ThreadPoolExecutor(1) as ahead:
            coming: concurrent.futures.Future[bytes] | None = ahead.submit(ask, "")
            while coming:
                content = coming.result()
                head = _HEAD.match(content)
                metadata = json.loads(head[1] if head else content)
                metadata = metadata if head else metadata["metadata"]
                following = metadata.get("continue")
                coming = ahead.submit(ask, following) if following else None
                with cycles.left_alone():
                    page = json.loads(content)
                yield page.get("items") or [], metadata["resourceVersion"]

    def newest(self, path: str, query: Mapping[str, str | int]) -> str:
        """Return the resourceVersion that a list would have now, which is not read."""
        listed = self.call("GET", path, {**query, "limit": 1})
        return str(objects.section(listed, "metadata").get("resourceVersion") or "")

    def watch(
        self, path: str, query: Mapping[str, str | int], version: str, seconds: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield what happens from *version* on, for so many *seconds*: the type and the object."""
        asked = {
            **query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": seconds,
        }
        silent = min(seconds + _SLACK_SECONDS, _SILENT_SECONDS)
        answer = self._send(_Request("GET", path, asked, seconds=silent))
        rest = b""
        try:
            for chunk in answer.stream(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    yield event["type"], event["object"]
        except (OSError, ValueError) as exc:
            raise ServerError(f"watch of {path}: {exc}") from exc
        except Exception as exc:
            if type(exc).__module__.partition(".")[0] != "urllib3":
                raise
            raise ServerError(f"watch of {path}: {exc}") from exc
        finally:
            answer.close()

    def _read(self, request: _Request) -> bytes:
        answer = self._send(request)
        try:
            content: bytes = answer.data
        except Exception as exc:
            raise ServerError(f"{request}: {exc}") from exc
        return content

    def _send(self, request: _Request) -> Any:
        import urllib3
        from kubernetes import config

        settings = self._client.configuration
        headers = {"Accept": JSON, "Content-Type": request.kind}
        url = settings.host + request.path
        if request.query:
            asked = {key: it for key, it in request.query.items() if it != ""}
            url += "?" + urllib.parse.urlencode(asked)
        begun = time.monotonic()
        try:
            for way in settings.auth_settings().values():  # which reads a new token when it is due
                headers[way["key"]] = way["value"]
            answer = self._client.rest_client.pool_manager.request(
                request.method,
                url,
                body=None if request.body is None else json.dumps(request.body),
                headers=headers,
                preload_content=False,
                retries=False,
                timeout=urllib3.Timeout(connect=request.connect, read=request.seconds),
            )
        except (urllib3.exceptions.HTTPError, config.ConfigException, OSError) as exc:
            self._asked(request.method, 0, time.monotonic() - begun)
            raise ServerError(f"{request}: {exc}") from exc
        self._asked(request.method, answer.status, time.monotonic() - begun)
        if answer.status >= 300:
            raise _refused(request, answer)
        return answer


def connect(
    kubeconfig: str | None = None,
    asked: Callable[[str, int, float], None] = _ignore,
    context: str | None = None,
) -> Server:
    """Connect as a pod does, where this is one, else by a kubeconfig as kubectl does."""
    client, config = _library()
    settings = client.Configuration()
    try:
        if _as_pod(kubeconfig, context):
            config.load_incluster_config(client_configuration=settings)
        else:
            config.load_kube_config(kubeconfig, context, client_configuration=settings)
    except (config.ConfigException, OSError, ValueError) as exc:
        raise errors.DataError(
            f"kubeconfig {kubeconfig or os.environ.get('KUBECONFIG') or '~/.kube/config'}: "
            f"{' '.join(str(exc).split())}; --kubeconfig FILE names another, such as kubectl uses"
        ) from exc
    settings.connection_pool_maxsize = _CONNECTIONS
    settings.socket_options = _SOCKET_OPTIONS
    return Server(client.ApiClient(settings), asked)


def own_namespace() -> str:
    """Return the namespace of the pod that this is, an empty text where it is none."""
    return _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else ""


def default_namespace(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return the namespace that is meant where none is said."""
    if _as_pod(kubeconfig, context):
        return own_namespace() or "default"
    _, config = _library()
    known, active = config.list_kube_config_contexts(kubeconfig)
    chosen = active if context is None else next(it for it in known if it["name"] == context)
    return str((chosen or {}).get("context", {}).get("namespace") or "default")


def _as_pod(kubeconfig: str | None, context: str | None) -> bool:
    return kubeconfig is None and context is None and _IN_CLUSTER in os.environ


def _library() -> tuple[Any, Any]:
    with errors.needing("the Kubernetes client", "kubernetes"):
        from kubernetes import client, config
    return client, config


def _refused(request: _Request, answer: Any) -> ServerError:
    try:
        text = json.loads(answer.data).get("message", "")
    except (ValueError, AttributeError):
        text = answer.reason
    after = answer.headers.get("Retry-After", "")
    return ServerError(
        f"{request}: {answer.status} {text}",
        answer.status,
        float(after) if after.isdigit() else None,
    )
