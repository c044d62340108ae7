"""Runs one of our HTTPS servers on a real socket, with clients that trust its CA."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from typing import TYPE_CHECKING

from waiting import PROMPT, wait_until

from pyvgpu.controller.certs import certificates, serving_certificate

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.http import tls_server

HOST = "pyvgpu-webhook.pyvgpu.svc"
WANTED = certificates.CertificateSpec((HOST,))
JSON = {"Content-Type": "application/json"}
SECONDS = PROMPT


class HttpsServer:
    """A server built by ``make(address, context, observer)``, and what it has counted."""

    def __init__(self, make: Callable[..., tls_server.TlsServer]) -> None:
        self.bundle = certificates.make(WANTED, serving_certificate.utc())
        self.seen: list[tuple[str, str]] = []
        self.listener = make(("127.0.0.1", 0), self.context, self.observe)
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def context(self) -> ssl.SSLContext:
        """Return the server's TLS context."""
        return serving_certificate.context_of(self.bundle)

    def observe(self, path: str, result: str, seconds: float) -> None:
        """Record a counted request."""
        self.seen.append((path, result))

    def count(self, requests: int) -> list[tuple[str, str]]:
        """Return the counted requests once there are *requests*: counting follows the answer."""
        wait_until(lambda: len(self.seen) >= requests, found=lambda: self.seen)
        return self.seen

    @property
    def address(self) -> tuple[str, int]:
        """The address it listens on."""
        host, port = self.listener.server_address[:2]
        return str(host), port

    def connect(
        self, authorities: str | None = None, trust: ssl.SSLContext | None = None
    ) -> http.client.HTTPConnection:
        """Return a client connection."""
        trust = trust or ssl.create_default_context(cadata=authorities or self.bundle.authorities)
        plain = socket.create_connection(self.address, timeout=SECONDS)
        made = http.client.HTTPConnection(HOST)
        made.sock = trust.wrap_socket(plain, server_hostname=HOST)
        return made

    def close(self) -> None:
        """Stop the server and close its socket."""
        self.listener.shutdown()
        self.listener.server_close()
