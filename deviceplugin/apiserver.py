"""The API server, for the few things that a node agent wants of it; with the standard library.

The official client would cost the node three times the memory of the whole agent. In a pod we are
who the pod is, and the token is read anew for each request, since kubelet renews it. Elsewhere a
kubeconfig says.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import ssl
import tempfile
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.deviceplugin import connections, kubeconfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.deviceplugin.grants import Owner

log = logging.getLogger(__name__)

SECONDS = 10.0
GONE = 404
_ENDED = ("Succeeded", "Failed")  # phases in which no container runs, nor will
_MIRROR = "kubernetes.io/config.mirror"  # of a static pod's mirror: the uid that kubelet gave it
_STATIC = re.compile(r"[0-9a-f]{32}")  # such a uid: the digest of a file
MERGE = "application/merge-patch+json"  # the kind of a body that has only what changes

# What of an object is to be answered: all of it, or its metadata, in which annotations are.
ALL = "application/json"
METADATA = f"{ALL};as=PartialObjectMetadata;g=meta.k8s.io;v=v1,{ALL}"
METADATA_OF_LIST = f"{ALL};as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,{ALL}"

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"


class ServerError(errors.UnavailableError):
    """The API server did not do what it was asked for."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status  # 0: there was no answer


class ApiServer:
    """Where the API server is, and who we are."""

    def __init__(
        self, host: str, context: ssl.SSLContext | None, token: Callable[[], str]
    ) -> None:
        # Without a context there is no TLS, which only tests do.
        self._connections = connections.Connections(host, context, SECONDS)
        self._token = token

    def close(self) -> None:
        """Keep no connection any more; a question makes one again."""
        self._connections.close()

    def call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        kind: str = ALL,
        accept: str = ALL,
        *,
        again: bool = False,
    ) -> dict[str, Any]:
        """Send a request and return the object that is answered; ServerError for any other.

        *again*: it changes something, and is the same if it is done twice.
        """
        if query:
            path += "?" + urllib.parse.urlencode(query)
        headers = {"Accept": accept, "Content-Type": kind}
        token = self._token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        content = None if body is None else json.dumps(body).encode()
        request = connections.Request(method, path, headers, content, again)
        try:
            status, text = self._connections.send(request)
        except (OSError, http.client.HTTPException) as exc:
            raise ServerError(f"{method} {path}: {exc}") from exc
        try:
            found = json.loads(text)
        except ValueError:
            found = {}
        if status >= 300 or not isinstance(found, dict):
            said = found.get("message", "") if isinstance(found, dict) else ""
            raise ServerError(f"{method} {path}: {status} {said}", status)
        return found


def find_pod(api: ApiServer, node: str, uid: str, path: str = "") -> dict[str, Any] | None:
    """Return the pod with that *uid*, which is at *path* or somewhere on *node*."""
    if path:
        try:
            found = [api.call("GET", path)]
        except ServerError as exc:
            if exc.status != GONE:
                raise
            return None
    else:
        found = api.call("GET", "/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"})[
            "items"
        ]
    return next((it for it in found if uid in uids_of(it)), None)


def uids_of(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the uids by which a pod is known: to kubelet, a static pod's mirror has another."""
    meta = pod["metadata"]
    own = (str(meta["uid"]), str((meta.get("annotations") or {}).get(_MIRROR, "")))
    return tuple(filter(None, own))


def is_static(uid: str) -> bool:
    """Tell whether a pod is one of kubelet's own, of which the API server has a mirror at most."""
    return _STATIC.fullmatch(uid) is not None


def is_over(api: ApiServer, node: str, owner: Owner) -> bool:
    """Tell whether the pod of a grant is over; what cannot be asked is not known to be."""
    path = f"/api/v1/namespaces/{owner.namespace}/pods/{owner.pod}" if owner.pod else ""
    try:
        pod = find_pod(api, node, owner.uid, path)
    except ServerError as exc:
        log.debug("could not ask for pod %s/%s: %s", owner.namespace, owner.pod, exc)
        return False
    if pod is None:
        return not is_static(owner.uid)  # its mirror comes and goes
    return pod.get("status", {}).get("phase") in _ENDED


def connect(kubeconfig: Path | None = None) -> ApiServer | None:
    """Connect as a pod does, or as *kubeconfig* says; None where there is neither."""
    if kubeconfig is not None:
        return _by_kubeconfig(kubeconfig)
    if _HOST not in os.environ:
        return None
    host = os.environ[_HOST]
    name = f"[{host}]" if ":" in host else host
    try:
        context = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
    except OSError as exc:
        raise errors.UnavailableError(
            f"{_ACCOUNT / 'ca.crt'}: cannot be read ({exc.strerror}): the pod needs its service "
            "account's token, automountServiceAccountToken: true"
        ) from exc
    return ApiServer(f"{name}:{os.environ.get(_PORT, '443')}", context, _token_of_pod)


def _token_of_pod() -> str:
    return _token_in(_ACCOUNT / "token")


def _token_in(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ServerError(f"{file}: the token cannot be read: {exc}") from exc


def _by_kubeconfig(path: Path) -> ApiServer:
    access = kubeconfig.read(path)
    url = urllib.parse.urlsplit(access.server)
    if url.scheme not in ("https", "http") or not url.netloc:
        raise errors.DataError(
            f"{path}: server {access.server!r}: must be a URL, such as https://10.0.0.1:6443"
        )
    try:
        context = _context(access) if url.scheme == "https" else None
    except (ssl.SSLError, ValueError) as exc:
        raise errors.DataError(f"{path}: its certificates are none: {exc}") from exc

    def token() -> str:
        return access.token if access.token_file is None else _token_in(access.token_file)

    return ApiServer(url.netloc, context, token)


def _context(access: kubeconfig.Access) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=access.authority or None)
    if access.certificate:
        with tempfile.TemporaryDirectory() as folder:  # of ours alone; ssl takes files only
            pem = Path(folder) / "user.pem"
            pem.write_bytes(access.certificate)
            context.load_cert_chain(pem)
    return context
