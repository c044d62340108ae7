"""Fake API server in which every requested claim exists. Arguments: UUIDs of devices.

Claim number N is allocated 4 vcore and 1 GiB of the device N modulo their count.
"""

from __future__ import annotations

import http.server
import sys
from typing import Any

import agentapi
from agentapi import NODE


class Handler(agentapi.Handler):
    """The subset of the API server that a node's agent uses."""

    kind = "resourceclaims"
    devices: tuple[str, ...] = ()

    def have(self, name: str) -> dict[str, Any]:
        """Return the one of that name."""
        return claim(name, self.devices)


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
    """Serve until the parent process stops it or ends."""
    Handler.devices = tuple(sys.argv[1:])
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
