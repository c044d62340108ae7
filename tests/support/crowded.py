"""A process that has run out of file descriptors; tests start it as a program.

The first argument selects its work: ``grpc`` serves the socket in the second argument and checks
that it serves at each line of its input; ``http`` serves a port; ``token`` and ``certificate``
maintain a certificate with the API server in the second argument. The process opens descriptors up
to its limit, with ``certificate`` only once there is a certificate to load, and frees them as soon
as anything is logged. It prints ``full`` once it serves without descriptors, or before it starts
on a certificate. It ends at the end of its input, or once it has the certificate, and prints what
was logged as JSON.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import threading
from typing import TYPE_CHECKING

from pyvgpu.deviceplugin import grpc_socket
from pyvgpu.http import endpoints

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_FILES = 64


class Files(logging.Handler):
    """Logging handler that holds all descriptors until anything is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[int] = []
        self.said: list[str] = []

    def fill(self) -> None:
        """Open descriptors up to the limit."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, most))
        with contextlib.suppress(OSError):
            while True:
                self.held.append(os.open("/dev/null", os.O_RDONLY))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message, and free the descriptors."""
        self.said.append(record.getMessage())
        while self.held:
            os.close(self.held.pop())


class Starved:
    """Handle of the starved process in a test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def problem(self) -> str:
        """Return the next line of its stderr; only ``grpc`` has a pipe there."""
        assert self._process.stderr is not None
        return self._process.stderr.readline()

    def poll(self) -> None:
        """Make it check that it serves."""
        assert self._process.stdin is not None
        self._process.stdin.write("poll\n")
        self._process.stdin.flush()

    def report(self) -> tuple[list[str], bool]:
        """End it; return what it logged, and whether its server was healthy."""
        out, _ = self._process.communicate(timeout=60)
        found = json.loads(out)
        return found["said"], found["well"]


@contextlib.contextmanager
def starved(kind: str, *arguments: str) -> Iterator[tuple[Starved, str]]:
    """Start the process; yield it and its address once it has no descriptor left."""
    with subprocess.Popen(
        [sys.executable, __file__, kind, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if kind == "grpc" else None,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            place = process.stdout.readline().removeprefix("at ").strip()
            assert process.stdout.readline() == "full\n"
            yield Starved(process), place
        finally:
            process.kill()


def keep(kind: str, host: str, folder: str, files: Files) -> bool:
    """Maintain a certificate as a pod does until there is one; return whether there is."""
    from kubernetes import client
    from kubernetes.config import incluster_config

    from pyvgpu.controller.certs import certificates, serving_certificate
    from pyvgpu.kube import apiserver

    token = pathlib.Path(folder, "token")
    token.write_text("a token")
    at = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1"}
    loader = incluster_config.InClusterConfigLoader(str(token), str(token), environ=at)
    loader._token_refresh_period = datetime.timedelta(0)  # reread at every request
    settings = client.Configuration()
    loader.load_and_set(settings)
    loader.host = settings.host = host
    place = serving_certificate.ServerObjects("pyvgpu", "pyvgpu-webhook")
    api = apiserver.ApiServer(client.ApiClient(settings))
    made = serving_certificate.own(api, place)

    def source(served: certificates.Bundle) -> certificates.Bundle:
        bundle = made(served)
        if not files.said:
            files.fill()
        return bundle

    known = serving_certificate.Identity(api, source if kind == "certificate" else made)

    class Once(threading.Event):
        """Stop event that is set as soon as there is a certificate."""

        def wait(self, timeout: float | None = None) -> bool:
            if known.ready.is_set():
                self.set()
            return super().wait(timeout)

    if kind == "token":
        files.fill()
    known.run(Once())
    return known.ready.is_set()


def main(kind: str, path: str = "") -> None:
    """Serve, or maintain a certificate, without descriptors."""
    files = Files()
    logging.getLogger().addHandler(files)
    if kind in ("token", "certificate"):
        print("at", path, flush=True)
        print("full", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            well = keep(kind, path, folder, files)
        print(json.dumps({"said": files.said, "well": well}), flush=True)
        return
    with contextlib.ExitStack() as stack:
        if kind == "grpc":
            made = grpc_socket.listen(pathlib.Path(path), lambda _: None)
            stack.callback(made.stop)
            print("at", path, flush=True)
        else:
            shown = endpoints.Pages(lambda: b"figures")
            port = stack.enter_context(endpoints.serving("127.0.0.1:0", shown))
            print("at", port, flush=True)
        files.fill()
        print("full", flush=True)
        polls = [kind != "grpc" or made.serves() for _ in sys.stdin]
        well = all(polls)
        print(json.dumps({"said": files.said, "well": well}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
