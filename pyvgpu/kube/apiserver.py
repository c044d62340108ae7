"""Kubernetes API client: JSON in, JSON out, on the official client's configuration.

The client library loads the configuration (service account or kubeconfig, with exec plugins,
proxies and TLS server names) and owns the connections. Its models are not used: they take three
times as long as JSON, and drop fields of newer servers. Every request has a timeout; the server
ends a watch before we time out. If the server rejects our credentials, they are reloaded once for
all threads. A throttled request is retried with jittered backoff, for a time that callers choose;
controllers leave retries to their work queues.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import os
import random
import re
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import __version__, errors
from pyvgpu.kube import backoff, kubeconfig_fault, process_tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Object = Mapping[str, Any]

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"

UNAUTHORIZED, NOT_FOUND, TOO_MANY = 401, 404, 429
CONFLICT = 409  # another writer was first: re-read the object
RETRY_SECONDS = 5.0  # for which a throttled request is retried

_SECONDS = 30
_CONNECT_SECONDS = 5
_SLACK_SECONDS = 10  # after a watch's timeoutSeconds
_SILENT_SECONDS = 150  # a watch: the server sends a bookmark a minute, so a silent one is gone
_RENEW_SECONDS = 10.0  # minimum time between two reloads of rejected credentials
_AGENT = f"pyvgpu/{__version__}"  # User-Agent, which the API server's audit log shows
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
PAGE = 500  # objects in a page of a list; decoding 500 pods takes some 170 ms
_HEAD = re.compile(  # the head of a list: the API server writes the metadata before the items
    rb'\{\s*"kind":\s*"[^"]*",\s*"apiVersion":\s*"[^"]*",\s*"metadata":\s*(\{[^{}]*\})'
)
_ITEMS = re.compile(r'\s*,\s*"items":\s*\[\s*')  # after it
_COMMA = re.compile(r"\s*(?:,\s*)?")
_DECODER = json.JSONDecoder()
_CONNECTIONS = 32  # pool size: more than concurrent requests; a new one costs both sides 3 ms
_SOCKET_OPTIONS = [  # detect a dead peer in less than a minute
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 20),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
]


class ServerError(errors.UnavailableError):
    """A request to the API server failed."""

    def __init__(self, text: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status  # 0: no response
        self.retry_after = retry_after

    @property
    def outdated(self) -> bool:
        """Whether our view of the object was outdated; not a failure of server or network."""
        return self.status in backoff.OUTDATED


def _ignore(method: str, status: int, seconds: float) -> None:
    """Do not count requests."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    """A request, and its timeouts."""

    method: str
    path: str
    query: Mapping[str, str | int] | None = None
    body: object = None
    kind: str = JSON  # of the body
    seconds: float = _SECONDS  # read timeout
    connect: float = _CONNECT_SECONDS  # timeout of connecting, and again of the handshake

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class ApiServer:
    """A client of the API server; several threads may use it.

    *asked* is called for every request with its method, the status of the response (0: none), and
    the seconds until it began. *renew* returns a client with reloaded credentials. For
    *retry_seconds* :meth:`call` retries a throttled request.
    """

    def __init__(
        self,
        client: Any,
        asked: Callable[[str, int, float], None] = _ignore,
        renew: Callable[[], Any] | None = None,
        retry_seconds: float = 0.0,
    ) -> None:
        self._client = client  # kubernetes.client.ApiClient, which has no types
        self._asked = asked
        self._renew = renew
        self._retry_seconds = retry_seconds
        self._lock = threading.Lock()
        self._renewed_at = -_RENEW_SECONDS
        self._watches: set[Any] = set()  # responses of active watches
        self._watching_ended = False

    def close(self) -> None:
        """Close idle connections; the next request opens a new one."""
        self._client.rest_client.pool_manager.clear()

    def end_watches(self) -> None:
        """Make every :meth:`watch` fail soon, active and future ones."""
        with self._lock:
            self._watching_ended = True
            for answer in self._watches:
                with contextlib.suppress(OSError, AttributeError):  # it has just ended
                    answer.connection.sock.shutdown(socket.SHUT_RDWR)

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None = None,
        body: object = None,
        kind: str = JSON,
        seconds: float = _SECONDS,
        connect: float = _CONNECT_SECONDS,
        retry_seconds: float | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the object of the response; ServerError if it fails.

        *seconds* is the read timeout, *connect* the timeout of connecting, and again of the
        handshake; *retry_seconds* the time for which a throttled request is retried (None: the
        client's).
        """
        request = _Request(method, path, query, body, kind, seconds, connect)
        return _object(
            request,
            self._with_retries(
                request, self._retry_seconds if retry_seconds is None else retry_seconds
            ),
        )

    def text(self, path: str, seconds: float = _SECONDS) -> str:
        """Return the body of a response, such as of a pod behind the API server's proxy."""
        return self._read(_Request("GET", path, seconds=seconds)).decode("utf-8", "replace")

    def items(self, path: str, query: Mapping[str, str | int]) -> tuple[list[Object], str]:
        """Return a whole list, which is fetched in pages, and its resourceVersion."""
        found: list[Object] = []
        version = ""
        for page, whole in self.pages(path, query):
            found += page
            version = whole
        return found, version

    def pages(
        self, path: str, query: Mapping[str, str | int], size: int = PAGE
    ) -> Iterator[tuple[list[Object], str]]:
        """Yield a list in pages of *size* objects, each with the resourceVersion of the whole.

        Decoding a page holds the interpreter's lock: small pages delay other threads less. While
        one page is decoded and processed, the server prepares the next.
        """
        request = _Request("GET", path, query)
        for content, metadata, _ in self._contents(request, size):
            with process_tuning.gc_disabled():
                page = _object(request, content)
            yield page.get("items") or [], str(metadata["resourceVersion"])

    def each(
        self, path: str, query: Mapping[str, str | int], size: int = PAGE
    ) -> Iterator[Object]:
        """Yield the objects of a list, fetched in pages of *size*, one by one.

        Each is decoded when it is due: so the interpreter's lock is held for one object at a time,
        where :meth:`pages` holds it for a whole page.
        """
        request = _Request("GET", path, query)
        for content, _, end in self._contents(request, size):
            yield from _items(request, content, end)

    def _contents(
        self, request: _Request, size: int
    ) -> Iterator[tuple[bytes, Mapping[str, Any], int]]:
        """Yield the pages of a list undecoded, each with its metadata, and the end of its head.

        The end is 0 if the metadata does not come before the items.
        """

        def ask(token: str) -> bytes:
            asked = {**(request.query or {}), "limit": size, "continue": token}
            return self._read(dataclasses.replace(request, query=asked))

        with concurrent.futures.ThreadPoolExecutor(1) as ahead:
            coming: concurrent.futures.Future[bytes] | None = ahead.submit(ask, "")
            while coming:
                content = coming.result()
                head = _HEAD.match(content)
                metadata = _object(request, head[1] if head else content)
                metadata = metadata if head else metadata.get("metadata") or {}
                if not metadata.get("resourceVersion"):
                    raise ServerError(f"{request}: the response is not a list")
                following = metadata.get("continue")
                coming = ahead.submit(ask, following) if following else None
                yield content, metadata, head.end() if head else 0

    def newest(self, path: str, query: Mapping[str, str | int]) -> str:
        """Return the resourceVersion that a list would have now, without fetching it."""
        listed = self.call("GET", path, {**query, "limit": 1})
        return str((listed.get("metadata") or {}).get("resourceVersion") or "")

    def watch(
        self, path: str, query: Mapping[str, str | int], version: str, seconds: int
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the events after *version*, for so many *seconds*: type and object."""
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
            with self._lock:
                if self._watching_ended:
                    raise ServerError(f"watch of {path}: watching has ended")
                self._watches.add(answer)
            for chunk in answer.stream(1 << 16):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from map(_event, lines)
        except _unreadable() as exc:
            raise ServerError(f"watch of {path}: {_reason(exc)}") from exc
        finally:
            with self._lock:
                self._watches.discard(answer)
            answer.close()

    def _with_retries(self, request: _Request, retry_seconds: float) -> bytes:
        """Return the body of the response; retry while the server throttles the request."""
        end = time.monotonic() + retry_seconds
        for attempt in itertools.count(1):
            try:
                return self._read(request)
            except ServerError as exc:
                chance = random.random()  # noqa: S311
                pause = backoff.delay(attempt, chance, exc.status, exc.retry_after)
                if not _is_retryable(request, exc) or time.monotonic() + pause > end:
                    raise
                time.sleep(pause)
        raise AssertionError  # the count has no end

    def _read(self, request: _Request) -> bytes:
        answer = self._send(request)
        try:
            content: bytes = answer.data
        except _unreadable() as exc:
            raise _no_response(self._client.configuration, request, exc) from exc
        return content

    def _send(self, request: _Request) -> Any:
        client = self._client
        answer = self._send_by(client, request)
        if answer.status == UNAUTHORIZED and self._renew is not None:
            self._renew_after(client, self._renew)
            if self._client is not client:
                answer.close()
                answer = self._send_by(self._client, request)
        if answer.status >= 300:
            raise _refused(request, answer)
        return answer

    def _renew_after(self, refused: Any, renew: Callable[[], Any]) -> None:
        """Reload the credentials, unless another thread has done so, or recently did."""
        with self._lock:
            now = time.monotonic()
            if self._client is refused and now >= self._renewed_at + _RENEW_SECONDS:
                self._renewed_at = now
                try:
                    self._client = renew()
                except errors.DataError as exc:
                    raise ServerError(str(exc), UNAUTHORIZED) from exc
                refused.rest_client.pool_manager.clear()

    def _send_by(self, client: Any, request: _Request) -> Any:
        import urllib3
        from kubernetes import config

        settings = client.configuration
        headers = {"Accept": JSON, "Content-Type": request.kind, "User-Agent": _AGENT}
        url = settings.host + request.path
        if request.query:
            asked = {key: value for key, value in request.query.items() if value != ""}
            url += "?" + urllib.parse.urlencode(asked)
        begun = time.monotonic()
        try:
            for way in settings.auth_settings().values():  # refreshes a token when it is due
                headers[way["key"]] = str(way["value"]).strip()  # a file may end in a newline
        except (config.ConfigException, OSError) as exc:
            self._asked(request.method, 0, time.monotonic() - begun)
            file = f"{exc.filename}: " if isinstance(exc, OSError) and exc.filename else ""
            raise ServerError(f"{request}: {file}{errors.reason_of(exc)}") from exc
        try:
            answer = client.rest_client.pool_manager.request(
                request.method,
                url,
                body=None if request.body is None else json.dumps(request.body),
                headers=headers,
                preload_content=False,
                retries=False,
                timeout=urllib3.Timeout(connect=request.connect, read=request.seconds),
            )
        except (urllib3.exceptions.HTTPError, OSError) as exc:
            self._asked(request.method, 0, time.monotonic() - begun)
            raise _no_response(settings, request, exc) from exc
        self._asked(request.method, answer.status, time.monotonic() - begun)
        return answer


def connect(
    kubeconfig: str | None = None,
    asked: Callable[[str, int, float], None] = _ignore,
    context: str | None = None,
    retry_seconds: float = RETRY_SECONDS,
) -> ApiServer:
    """Connect with the service account if this is a pod, else with kubectl's kubeconfig."""

    def client() -> Any:
        return _client_of(kubeconfig, context)

    return ApiServer(client(), asked, client, retry_seconds)


def _client_of(kubeconfig: str | None, context: str | None) -> Any:
    client, config = _library()
    settings = client.Configuration()
    files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    where = f"kubeconfig {files}"
    if _as_pod(kubeconfig, context):
        where = "service account of this pod"
    import yaml

    try:
        if _as_pod(kubeconfig, context):
            config.load_incluster_config(client_configuration=settings)
        elif not any(kubeconfig_fault.existing(files)):
            raise FileNotFoundError("no such file")
        else:
            config.load_kube_config(kubeconfig, context, client_configuration=settings)
        _check(settings)
    except (OSError, ValueError, yaml.YAMLError) as exc:
        # The kubeconfig may name other files, such as of certificates.
        other = getattr(exc, "filename", None)
        reason = errors.reason_of(exc)
        if other and str(other) not in files:
            reason = f"{other}: {reason}"
        raise errors.DataError(
            f"{where}: {reason}; --kubeconfig FILE names another, such as kubectl's"
        ) from exc
    except (config.ConfigException, TypeError, AttributeError, KeyError, RecursionError) as exc:
        known = isinstance(exc, config.ConfigException)
        reason = errors.reason_of(exc) if known else "is malformed"
        if _as_pod(kubeconfig, context):
            raise errors.DataError(
                f"{where}: {reason}; must be mounted, as by automountServiceAccountToken: true; "
                "--kubeconfig FILE names a kubeconfig in its place"
            ) from exc
        fault = kubeconfig_fault.find(files)
        if fault is None and context is not None:
            there = kubeconfig_fault.contexts(files)
            if context not in there:
                raise errors.UsageError(
                    f"--context {context!r}: is not in {where}; must be one of its contexts: "
                    f"{', '.join(there[:10]) or 'it has none'}"
                ) from exc
        raise errors.DataError(
            f"{where}: {fault or reason}; must be a kubeconfig, such as `kubectl config view "
            "--raw --minify` prints; --kubeconfig FILE names another"
        ) from exc
    settings.connection_pool_maxsize = _CONNECTIONS
    settings.socket_options = _SOCKET_OPTIONS
    return client.ApiClient(settings)


def _check(settings: Any) -> None:
    """Raise ValueError or OSError if the server is not a URL, or a certificate is malformed."""
    url = urllib.parse.urlsplit(settings.host)
    if url.scheme not in ("https", "http") or not url.netloc:
        raise ValueError(f"server {settings.host!r}: must be a URL, such as https://10.0.0.1:6443")
    if url.scheme == "https":
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)


def own_namespace() -> str:
    """Return the namespace of this pod, empty if we do not run in a pod."""
    return _OWN_NAMESPACE.read_text().strip() if _OWN_NAMESPACE.exists() else ""


def default_namespace(kubeconfig: str | None = None, context: str | None = None) -> str:
    """Return the namespace to use if the user names none."""
    if _as_pod(kubeconfig, context):
        return own_namespace() or "default"
    _, config = _library()
    known, active = config.list_kube_config_contexts(kubeconfig)
    chosen = (
        active
        if context is None
        else next(candidate for candidate in known if candidate["name"] == context)
    )
    return str((chosen or {}).get("context", {}).get("namespace") or "default")


def is_pod() -> bool:
    """Return whether this process runs in a pod."""
    return _IN_CLUSTER in os.environ


def _as_pod(kubeconfig: str | None, context: str | None) -> bool:
    return kubeconfig is None and context is None and is_pod()


def _library() -> tuple[Any, Any]:
    with errors.needing("the Kubernetes client", "kubernetes"):
        from kubernetes import client, config
    return client, config


def _is_retryable(request: _Request, exc: ServerError) -> bool:
    """Return whether a retry is safe: the server has not done it, or it changes nothing.

    A response with Retry-After means that the server did nothing.
    """
    if exc.status == TOO_MANY or (exc.status >= 500 and exc.retry_after is not None):
        return True
    return request.method == "GET" and exc.status >= 500


def _object(request: _Request, content: bytes) -> dict[str, Any]:
    """Parse the object of a response; ServerError if it is not one, such as a proxy's page."""
    try:
        found = json.loads(content)
    except ValueError as exc:
        raise ServerError(f"{request}: the response is not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ServerError(f"{request}: the response is not an object")
    return found


def _items(request: _Request, content: bytes, end: int) -> Iterator[Object]:
    """Yield the objects of a page whose head ends at *end*; 0: it must be decoded as a whole."""
    try:
        text = str(memoryview(content)[end:], "utf-8")
        begun = _ITEMS.match(text) if end else None
        if begun is None:
            yield from _object(request, content).get("items") or []
            return
        at = begun.end()
        while not text.startswith("]", at):
            found, at = _DECODER.raw_decode(text, at)
            yield found
            comma = _COMMA.match(text, at)
            at = comma.end() if comma else at
    except ValueError as exc:
        raise ServerError(f"{request}: the response is not JSON: {exc}") from exc


def _event(line: bytes) -> tuple[str, dict[str, Any]]:
    """Parse an event of a watch: its type and object; ValueError if it is not one."""
    event = json.loads(line)
    if not isinstance(event, dict) or not isinstance(event.get("object"), dict):
        raise ValueError("the response is not a stream of events")
    return str(event.get("type")), event["object"]


def _unreadable() -> tuple[type[Exception], ...]:
    """Return the errors of reading a response that breaks off, or is malformed."""
    import urllib3

    return urllib3.exceptions.HTTPError, OSError, ValueError


def _no_response(settings: Any, request: _Request, exc: Exception) -> ServerError:
    """Return the error of a request whose response did not come, or only in part."""
    import urllib3

    by = f" through the proxy {_host(settings.proxy)}" if settings.proxy else ""
    remedy = "check that it runs, and that the address is right"
    if isinstance(exc, urllib3.exceptions.SSLError):
        remedy = "check that the kubeconfig has the address and the certificate authority of it"
    return ServerError(
        f"{request}: no response from the API server {_host(settings.host)}{by}: {_reason(exc)}; "
        f"{remedy}"
    )


def _host(url: str) -> str:
    """Return *url* without a password, which a proxy's may have."""
    parts = urllib.parse.urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _reason(exc: BaseException) -> str:
    """Return why a response did not come, in one line without the error's number."""
    import urllib3

    inner: BaseException | None = exc
    while isinstance(inner, urllib3.exceptions.HTTPError):
        inner = inner.__cause__ or inner.__context__
    if isinstance(inner, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {inner.verify_message}"
    if isinstance(inner, ssl.SSLError) and inner.reason:
        return f"TLS: {inner.reason.replace('_', ' ').lower()}"
    return errors.reason_of(inner if isinstance(inner, OSError) else exc)


def _refused(request: _Request, answer: Any) -> ServerError:
    try:
        text = json.loads(answer.data).get("message", "")
    except AttributeError:  # it is JSON, but not an object
        text = answer.reason
    except _unreadable():
        text = answer.reason
    return ServerError(f"{request}: {answer.status} {text}", answer.status, _retry_after(answer))


def _retry_after(answer: Any) -> float | None:
    """Return the seconds that Retry-After, a number or a date, asks for; None without them."""
    import urllib3

    try:
        seconds: float | None = urllib3.Retry().get_retry_after(answer)
    except urllib3.exceptions.InvalidHeader:
        return None
    return seconds
