"""Runs a pyvgpu server (webhook, scheduler...) as a process against a fake API server."""

from __future__ import annotations

import atexit
import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Self

import runner
import small_api
import waiting

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

    from pyvgpu.kube import apiserver

SECONDS = waiting.PROMPT
JSON = {"Content-Type": "application/json"}


def page(address: str, path: str) -> tuple[int, str]:
    """Return the status code and the text of a page; code 0 if nothing answers."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=SECONDS) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()
    except OSError:
        return 0, ""


class Program:
    """An HTTPS server process, and its health port."""

    def __init__(
        self,
        command: str,
        connection: apiserver.ApiServer,
        folder: Path,
        *options: object,
        **environment: str,
    ) -> None:
        self.folder = folder
        self.port, self.health = free_port(), free_port()
        config = folder / "kubeconfig"
        small_api.write_kubeconfig(config, connection)
        self.process = subprocess.Popen(
            [
                *(str(runner.PYVGPU), command, f"--kubeconfig={config}", "--namespace=pyvgpu"),
                *(f"--serve=127.0.0.1:{self.port}", f"--listen={self.health}"),
                *map(str, options),
            ],
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
        )

    def page(self, path: str) -> tuple[int, str]:
        """Return the status code and the text of one of its pages; code 0 if nothing answers."""
        return page(f"127.0.0.1:{self.health}", path)

    def until_ready(self) -> Self:
        """Wait until /readyz answers 200; fail at once if the program has ended."""

        def is_ready() -> bool:
            code = self.process.poll()
            assert code is None, f"exit code {code}: {self.process.communicate()[1].decode()}"
            return self.page("/readyz")[0] == 200

        waiting.wait_until(is_ready, found=lambda: f"/readyz: {self.page('/readyz')}")
        return self

    def until_it_counts(self, line: str) -> None:
        """Wait until its metrics contain *line*: an answer is counted after it was sent."""
        seen = [""]

        def counts() -> bool:
            seen[0] = self.page("/metrics")[1]
            return line in seen[0]

        waiting.wait_until(counts, found=lambda: seen[0])

    @contextlib.contextmanager
    def connected(self, host: str, trust: ssl.SSLContext) -> Iterator[http.client.HTTPConnection]:
        """Yield a TLS connection to it, by its Service's name."""
        made = http.client.HTTPConnection(host)
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        made.sock = trust.wrap_socket(plain, server_hostname=host)
        with contextlib.closing(made):
            yield made

    def refused(self) -> tuple[int, str]:
        """Wait until it ends by itself; return its exit code and stderr."""
        assert self.process.stderr is not None
        return self.process.wait(SECONDS), self.process.stderr.read().decode()

    def end(self) -> tuple[int, str]:
        """Send SIGTERM; return its exit code and stderr."""
        self.process.send_signal(signal.SIGTERM)
        return self.refused()

    def close(self) -> None:
        """Kill it, and close its pipe."""
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.process.stderr.close()


def free_port() -> int:
    """Return a port that no other test gets; it is below the range of ephemeral ports."""
    for port in random.SystemRandom().sample(range(12_000, 28_000), 100):
        said = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            said.bind(f"\0pyvgpu-test-port-{port}")
            with socket.socket() as one:
                one.bind(("", port))
        except OSError:
            said.close()
            continue
        atexit.register(said.close)  # reserves the port for this process's lifetime
        return port
    raise AssertionError("no port is free")
