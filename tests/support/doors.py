"""An HTTPS server of ours on a real socket, and clients that know its authority."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from typing import TYPE_CHECKING

from waiting import PROMPT, wait_until

from pyvgpu.controller import certificates, identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller import https

HOST = "pyvgpu-webhook.pyvgpu.svc"
WANTED = certificates.Wanted((HOST,))
JSON = {"Content-Type": "application/json"}
SECONDS = PROMPT


class Door:
    """A server, which *make* makes of address, context and observer; what it has counted."""

    def __init__(self, make: Callable[..., https.Server]) -> None:
        self.bundle = certificates.make(WANTED, identity.utc())
        self.seen: list[tuple[str, str]] = []
        self.listener = make(("127.0.0.1", 0), self.context, self.observe)
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def context(self) -> ssl.SSLContext:
        """Return what is served with."""
        return identity.context_of(self.bundle)

    def observe(self, path: str, result: str, seconds: float) -> None:
        """Keep what is counted."""
        self.seen.append((path, result))

    def count(self, requests: int) -> list[tuple[str, str]]:
        """Return what was counted once there are *requests*: it comes after their answers."""
        wait_until(lambda: len(self.seen) >= requests, found=lambda: self.seen)
        return self.seen

    @property
    def address(self) -> tuple[str, int]:
        """Return where it listens."""
        host, port = self.listener.server_address[:2]
        return str(host), port

    def connect(
        self, authorities: str | None = None, trust: ssl.SSLContext | None = None
    ) -> http.client.HTTPConnection:
        """Return a client's connection."""
        trust = trust or ssl.create_default_context(cadata=authorities or self.bundle.authorities)
        plain = socket.create_connection(self.address, timeout=SECONDS)
        made = http.client.HTTPConnection(HOST)
        made.sock = trust.wrap_socket(plain, server_hostname=HOST)
        return made

    def close(self) -> None:
        """Let nobody in any more."""
        self.listener.shutdown()
        self.listener.server_close()
