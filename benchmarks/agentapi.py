"""Fake API server of one node, with TLS, in which every requested pod exists. Argument: a folder.

It writes a kubeconfig to the folder. Pods' UIDs are derived from their names: see :func:`uid_of`.
Its watches never deliver events, so the agent requests each pod.
"""

from __future__ import annotations

import base64
import datetime
import http.server
import json
import ssl
import sys
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import Any

from pyvgpu.controller.certs import certificates

NODE, NAMESPACE = "node-1", "default"
HOST = "localhost"


def uid_of(name: str) -> str:
    """Return the uid of the pod of that name."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, name))


class Handler(http.server.BaseHTTPRequestHandler):
    """The subset of the API server that a node's agent uses."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer is sent as one
    kind = "pods"  # of which it has every one

    def have(self, name: str) -> dict[str, Any]:
        """Return the one of that name."""
        return pod(name)

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, text = self.path.partition("?")
        query = dict(urllib.parse.parse_qsl(text))
        if query.get("watch"):
            self._watch(float(query["timeoutSeconds"]))
            return
        found: Any = {"items": [], "metadata": {"resourceVersion": "1"}}
        if path == "/api/v1/nodes":
            found["items"] = [{"metadata": {"name": NODE, "uid": "n", "annotations": {}}}]
        elif self.command == "GET" and f"/{self.kind}/" in path:
            found = self.have(path.rpartition("/")[2])
        elif body:
            found = json.loads(body)
        content = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _watch(self, seconds: float) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        time.sleep(seconds)
        self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def pod(name: str) -> dict[str, Any]:
    """Return the pod of that name."""
    meta = {"name": name, "namespace": NAMESPACE, "uid": uid_of(name), "annotations": {}}
    return {"metadata": meta, "spec": {"nodeName": NODE}, "status": {"phase": "Running"}}


def main() -> None:
    """Serve until the parent process stops it or ends."""
    folder = Path(sys.argv[1])
    bundle = certificates.make(
        certificates.CertificateSpec((HOST,)), datetime.datetime.now(datetime.UTC)
    )
    pem = folder / "server.pem"
    pem.write_text(bundle.key + bundle.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    (folder / "kubeconfig").write_text(json.dumps(config(server.server_port, bundle.authorities)))
    print("serves", flush=True)
    server.serve_forever()


def config(port: int, authorities: str) -> dict[str, Any]:
    """Return a kubeconfig by which the server is reached."""
    trusted = base64.b64encode(authorities.encode()).decode()
    where = {"server": f"https://{HOST}:{port}", "certificate-authority-data": trusted}
    return {
        "clusters": [{"name": "c", "cluster": where}],
        "users": [{"name": "u", "user": {"token": "none"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


if __name__ == "__main__":
    main()
