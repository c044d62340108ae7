"""Notebook server for several users of one GPU: each user's kernel is a run of its own.

`python3 server.py PORT USER...`; `POST /USER` with a cell of Python returns its output. It listens
on localhost only, since it runs the code it receives. PYVGPU, SIMULATE and NAMED are as in run.sh.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

KERNEL = Path(__file__).with_name("kernel.py")
SHARE = ("--vcore", "30", "--policy", "elastic", "--vmemory", "8GiB")


class Kernel:
    """A user's kernel, with a share of the GPU that no other kernel can take."""

    def __init__(self, user: str) -> None:
        simulate = os.environ.get("SIMULATE")
        self._turn = threading.Lock()
        self._process = subprocess.Popen(
            [
                *(os.environ.get("PYVGPU", "pyvgpu"), "run", *SHARE),
                *("--name", f"notebook-{user}{os.environ.get('NAMED', '')}"),
                *(("--simulate", simulate) if simulate else ()),
                *("--", sys.executable, str(KERNEL)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, cell: str) -> str:
        """Run a cell and return its output; one cell at a time."""
        assert self._process.stdin
        assert self._process.stdout
        with self._turn:
            self._process.stdin.write(json.dumps(cell) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        return json.loads(answer) if answer else "the kernel has ended\n"

    def end(self) -> None:
        """End the kernel and its run."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def handler(kernels: dict[str, Kernel]) -> type[http.server.BaseHTTPRequestHandler]:
    """Return the HTTP handler for these users' kernels."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # http.server requires this name
            cell = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
            kernel = kernels.get(self.path.strip("/"))
            if kernel is None:
                self.send_error(404, f"no such user: must be one of {', '.join(kernels)}")
                return
            output = kernel.run(cell).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(output)))
            self.end_headers()
            self.wfile.write(output)

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    return Handler


def main(port: int, users: list[str]) -> None:
    """Start all kernels, and serve until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    kernels = {user: Kernel(user) for user in users}
    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler(kernels))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"notebooks of {', '.join(users)} on port {server.server_port}", flush=True)
    ended.wait()
    server.shutdown()
    for kernel in kernels.values():
        kernel.end()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
