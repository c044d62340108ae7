"""Runs sidecar-controller and sidecar-node against the cluster of ``make e2e``, and Jobs for them.

They have exactly the chart's RBAC rules. Jobs made here contain the webhook's changes to their
pods, so that the cluster needs no webhook.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from typing import TYPE_CHECKING, Any

import rig
import runner
import small_kubelet

from pyvgpu import names
from pyvgpu.controller.sidecar import controller_settings, nodes
from pyvgpu.controller.webhook import transform
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RIGHTS = "sidecar/rights.yaml"
NODE = "node-1"
NAMESPACE = "pyvgpu"
LEASE = "pyvgpu-sidecar-controller"
ADMISSION = transform.Admission(
    controller_settings.SidecarSettings(fast_exit=controller_settings.FastExit(rig.FAST_EXIT))
)
JOB = "batch.kubernetes.io/job-name"
SHARED = "SHARED_PARTS"  # variable with the folder of the processes that all xdist workers share


class Parts:
    """The processes, which tests can kill and restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ours = rig.as_admin(NAMESPACE)

    def start(self, part: str, *options: str, image: str = rig.FAST_EXIT, name: str = "") -> None:
        """Start `pyvgpu sidecar-<part>`; *name* distinguishes a second one."""
        command = [str(runner.PYVGPU), f"sidecar-{part}", *options]
        mine = self.folder / f"{part}.kubeconfig"
        rig.write_kubeconfig(mine, NAMESPACE, f"sidecar-{part}")
        common = ["--kubeconfig", str(mine), "--fast-exit-image", image, "--verbose"]
        with self.log(name or part).open("ab") as log:
            self._running[name or part] = subprocess.Popen(
                [*command, *common], stdout=log, stderr=log
            )

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.folder / f"{name}.log"

    def launch_controller(self, image: str = rig.FAST_EXIT) -> None:
        """Start the controller without waiting."""
        self.start("controller", image=image)

    def start_controller(self, image: str = rig.FAST_EXIT) -> None:
        """Start the controller, and wait until it holds the lease."""
        self.launch_controller(image)
        mine = f"_{self._running['controller'].pid}_"
        self._ours.until(
            "leases", LEASE, lambda current: mine in current["spec"]["holderIdentity"]
        )

    def wait_for_a_holder(self, other_than: str = "") -> str:
        """Wait until a controller other than *other_than* holds the lease; return its identity."""
        lease = self._ours.until(
            "leases",
            LEASE,
            lambda current: current["spec"]["holderIdentity"] not in ("", other_than),
        )
        return str(lease["spec"]["holderIdentity"])

    def drop_lease(self) -> None:
        """Delete the lease, so that the next controller need not wait for a killed one's."""
        self._ours.server.call("DELETE", self._ours.path("leases", LEASE))

    @contextlib.contextmanager
    def lease_of(self, another: str) -> Iterator[None]:
        """Hold and renew the controllers' lease as *another*, with a clock years behind."""
        path = self._ours.path("leases", LEASE)
        done = threading.Event()

        def write(holder: str, second: int) -> None:
            renewed = f"2020-01-01T00:00:{second % 60:02}.000000Z"
            spec = {"holderIdentity": holder, "renewTime": renewed}
            self._ours.server.call("PATCH", path, body={"spec": spec}, kind=apiserver.MERGE_PATCH)

        def renew() -> None:
            for second in itertools.count():
                write(another, second)
                if done.wait(1):
                    write("", second)
                    return

        thread = threading.Thread(target=renew)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def launch_node(self, image: str = rig.FAST_EXIT) -> None:
        """Start sidecar-node without waiting."""
        socket = os.environ["CONTAINERD_ADDRESS"]
        folder = str(self.folder / "begun")
        options = ("--node", NODE, "--runtime", socket, "--folder", folder)
        self.start("node", *options, image=image)

    def start_node(self, image: str = rig.FAST_EXIT, has: str | None = None) -> None:
        """Start sidecar-node, and wait until its lease names the image that the node *has*."""
        begun = datetime.datetime.now(datetime.UTC)
        self.launch_node(image)
        said = image if has is None else has

        def is_said(lease: dict[str, Any]) -> bool:
            renewed = datetime.datetime.fromisoformat(lease["spec"]["renewTime"])
            annotations = lease["metadata"]["annotations"]
            return renewed > begun and annotations[nodes.FAST_EXIT_ANNOTATION] == said

        self._ours.until("leases", f"pyvgpu-sidecar-{NODE}", is_said)

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        self._running[name].kill()
        self._running.pop(name).wait()

    def finish(self, name: str) -> int:
        """Send a process SIGTERM; return its exit code."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(30)

    def mark(self, container: str) -> Path:
        """Return the file in which sidecar-node records that it began to stop a container."""
        return self.folder / "begun" / container.rpartition("/")[2]

    def wait_for_mark(self, container: str) -> None:
        """Wait until sidecar-node has begun to stop a container."""
        end = time.monotonic() + rig.SECONDS
        while not self.mark(container).exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert self.mark(container).exists()

    def wait(self, name: str) -> int:
        """Wait until a process ends by itself; return its exit code."""
        code = self._running[name].wait(rig.SECONDS)
        del self._running[name]
        return code

    def wait_for_line(self, name: str, text: str, after: int = 0) -> None:
        """Wait until a process has logged this text, *after* so many bytes of its log."""
        end = time.monotonic() + rig.SECONDS
        while text.encode() not in self.log(name).read_bytes()[after:]:
            assert time.monotonic() < end, f"{name} has not logged: {text}"
            time.sleep(0.05)

    def end(self) -> list[int]:
        """Stop all processes; return their exit codes."""
        return [self.finish(name) for name in list(self._running)]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Parts]:
    """Run sidecar-controller and sidecar-node, with their logs in *folder*."""
    rig.apply(RIGHTS)
    made = Parts(folder)
    try:
        made.start_controller()
        made.start_node()
        yield made
    finally:
        codes = made.end()
    assert codes == [0, 0]


def sidecar(script: str, name: str = "side", **options: str) -> dict[str, Any]:
    """Return a marked container whose program does not exist in the fast-exit image."""
    variables = {names.SIDECAR_VARIABLE: "true"} | {
        f"{names.SIDECAR_VARIABLE}_{option}": value for option, value in options.items()
    }
    made = rig.container(name, script)
    made["command"] = ["/bin/busybox", "sh", *made["command"][1:]]
    made["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return made


def admitted(space: rig.Space, pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with the webhook's changes."""
    done = transform.transform(pod, space.name, ADMISSION)
    assert not done.warnings
    changed: dict[str, Any] = small_kubelet.apply(pod, done.operations)
    return changed


def create_job(
    space: rig.Space,
    *containers: dict[str, Any],
    name: str = "j",
    job: dict[str, Any] | None = None,
    **spec: Any,
) -> None:
    """Create a Job; *job* and *spec* override defaults of the Job and of its pods."""
    template = admitted(space, rig.pod("p", *containers, **spec))
    space.create("jobs", rig.job(name, template, **(job or {})))


def has_ended(space: rig.Space, condition: str = "Complete", name: str = "j") -> dict[str, Any]:
    """Wait until a Job has ended; return its only pod."""
    space.until("jobs", name, lambda job: rig.condition(job, condition))
    (pod,) = space.pods_of(name)
    return pod


def has_record(space: rig.Space, name: str = "j") -> dict[str, Any]:
    """Wait until the controller has written its record into a Job's pod; return the pod."""
    return space.until_any("pods", f"{JOB}={name}", lambda pod: record(pod))


def record(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the controller's record in a pod, empty if there is none."""
    annotations = pod["metadata"].get("annotations") or {}
    found: dict[str, Any] = json.loads(annotations.get(names.STOP_ANNOTATION, "{}"))
    return found
