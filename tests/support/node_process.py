"""Runs `pyvgpu device-plugin` on a node with simulated devices and a fake kubelet."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import simulated_node
from fake_kubelet import SECONDS

from pyvgpu import region
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fake_kubelet import FakeKubelet

    from pyvgpu.deviceplugin.kubelet import plugin_messages

PROGRAM = Path(sys.executable).with_name("pyvgpu")
UNIT = 256 << 20

_ANSWERS = "answering on port "


class Node:
    """The folders of a node and its agent."""

    def __init__(
        self,
        kubelet: FakeKubelet,
        machine: simulator.Machine,
        root: Path,
        folder: Path,
        stack: contextlib.ExitStack,
    ) -> None:
        self.kubelet, self.machine, self.root, self.folder = kubelet, machine, root, folder
        self.specifications = folder / "cdi"
        self.state = folder / "state"
        self.files = folder / "run"
        self.log = folder / "log"
        self._stack = stack

    def start(self, *options: object) -> subprocess.Popen[bytes]:
        """Start an agent, which ends with the test."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [
                    *(PROGRAM, "device-plugin", "--node", "node-1"),
                    *("--state", self.state, "--run", self.files),
                    *("--cdi", self.specifications),
                    *("--device-plugin-path", self.kubelet.folder),
                    *("--pod-resources", self.kubelet.pod_resources),
                    *("--driver-root", self.root, "--listen", "none", *options),
                ],
                env={**os.environ, **self.machine.environment},
                stdout=log,
                stderr=log,
            )
        self._stack.callback(ended, process)
        return process

    def specification(self, answer: plugin_messages.AllocateResponse) -> dict[str, Any]:
        """Return the CDI edits for a container that starts with *answer*."""
        (device,) = answer.cdi_devices
        file = self.specifications / f"pyvgpu.io-grant-{device.partition('=')[2]}.json"
        edits: dict[str, Any] = json.loads(file.read_text())["devices"][0]["containerEdits"]
        return edits

    def quota(self, answer: plugin_messages.AllocateResponse) -> tuple[int, int, str]:
        """Return the vcore, memory units and device UUID of that container's quota."""
        mounts = {mount["containerPath"]: mount for mount in self.specification(answer)["mounts"]}
        file = os.open(Path(mounts["/etc/pyvgpu"]["hostPath"]) / "quota", os.O_RDONLY)
        try:
            (limits,) = region.read_limits(file).devices
        finally:
            os.close(file)
        return limits.vcore, limits.vmemory // UNIT, limits.uuid

    def ask(self, path: str) -> tuple[int, str]:
        """Return the status and body of GET *path* from the agent that started to listen last."""
        self.until(lambda: _ANSWERS in self.log.read_text())
        port = int(self.log.read_text().rpartition(_ANSWERS)[2].split()[0].strip('",}'))
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def until(self, true: Callable[[], object]) -> None:
        """Wait until *true* returns a true value."""
        end = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)


def ended(process: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> int:
    """Stop an agent with this signal; return its exit code."""
    if process.poll() is None:
        process.send_signal(number)
    return process.wait(SECONDS)


@contextlib.contextmanager
def running(kubelet: FakeKubelet, folder: Path) -> Iterator[Node]:
    """Yield a node with two simulated devices; its agents end with the test."""
    machine = simulator.open_machine("t4:2", folder / "machines")
    root = simulated_node.make(folder / "root", simulated_node.nodes(2))
    with contextlib.ExitStack() as stack:
        yield Node(kubelet, machine, root, folder, stack)
