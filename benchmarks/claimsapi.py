"""An API server that has every claim that it is asked for. Its argument: UUIDs of devices.

Claim number N is allocated 4 vcore and 1 GiB of the device N modulo their count.
"""

from __future__ import annotations

import http.server
import json
import sys
from typing import Any

NODE = "node-1"


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the API server, as far as a node's agent asks."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    devices: tuple[str, ...] = ()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        found: Any = {"items": [], "metadata": {}}
        if self.command == "GET" and "/resourceclaims/" in path:
            found = claim(path.rpartition("/")[2], self.devices)
        elif path == f"/api/v1/nodes/{NODE}":
            found = {"metadata": {"name": NODE, "uid": "n", "annotations": {}}}
        elif body:
            found = json.loads(body)
        content = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def claim(name: str, devices: tuple[str, ...]) -> dict[str, Any]:
    """Return the claim of that name, such as claim-7."""
    device = devices[int(name.rpartition("-")[2]) % len(devices)]
    result = {
        "driver": "pyvgpu.io",
        "pool": NODE,
        "device": device.lower(),
        "request": "vgpu",
        "shareID": "0",
        "consumedCapacity": {"vcore": "4", "vmemory": "1Gi"},
    }
    return {
        "metadata": {"name": name, "namespace": "team", "uid": name},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "p"}],
        },
    }


def main() -> None:
    """Serve until whoever started it ends it, or is gone."""
    Handler.devices = tuple(sys.argv[1:])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
