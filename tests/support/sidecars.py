"""The controller and the node part as processes in the cluster of ``make e2e``, and Jobs for them.

They have the rights of the chart and no others. A Job made here went through what the webhook
does to a pod, so that the cluster needs none.
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
from pyvgpu.controller.sidecar import nodes, settings
from pyvgpu.controller.webhook import transform
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RIGHTS = "sidecar/rights.yaml"
NODE = "node-1"
NAMESPACE = "pyvgpu"
LEASE = "pyvgpu-sidecar-controller"
ADMISSION = transform.Admission(settings.Settings(fast_exit=settings.FastExit(rig.FAST_EXIT)))
JOB = "batch.kubernetes.io/job-name"
SHARED = "SHARED_PARTS"  # a variable that has the folder of what all workers of a run share


class Parts:
    """The processes, which can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._ours = rig.everybodys(NAMESPACE)

    def start(self, part: str, *options: str, image: str = rig.FAST_EXIT, name: str = "") -> None:
        """Start the controller or the node part; *name* is for a second one."""
        command = [str(runner.PYVGPU), f"sidecar-{part}", *options]
        mine = self.folder / f"{part}.kubeconfig"
        rig.write_kubeconfig(mine, NAMESPACE, f"sidecar-{part}")
        common = ["--kubeconfig", str(mine), "--fast-exit-image", image, "--verbose"]
        with self.log(name or part).open("ab") as log:
            self._running[name or part] = subprocess.Popen(
                [*command, *common], stdout=log, stderr=log
            )

    def log(self, name: str) -> Path:
        """Return the file that one of them writes to."""
        return self.folder / f"{name}.log"

    def launch_controller(self, image: str = rig.FAST_EXIT) -> None:
        """Start the controller, and wait for nothing."""
        self.start("controller", image=image)

    def start_controller(self, image: str = rig.FAST_EXIT) -> None:
        """Start the controller, and wait until it acts."""
        self.launch_controller(image)
        mine = f"_{self._running['controller'].pid}_"
        self._ours.until("leases", LEASE, lambda it: mine in it["spec"]["holderIdentity"])

    def wait_for_a_holder(self, other_than: str = "") -> str:
        """Return which controller holds the lease, when it is not *other_than*."""
        lease = self._ours.until(
            "leases", LEASE, lambda it: it["spec"]["holderIdentity"] not in ("", other_than)
        )
        return str(lease["spec"]["holderIdentity"])

    def drop_lease(self) -> None:
        """Let the next controller act at once, though the one before was killed."""
        self._ours.server.call("DELETE", self._ours.path("leases", LEASE))

    @contextlib.contextmanager
    def lease_of(self, another: str) -> Iterator[None]:
        """Let another hold the controllers' lease and renew it, by a clock years behind."""
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
        """Start the node part, and wait for nothing."""
        socket = os.environ["CONTAINERD_ADDRESS"]
        folder = str(self.folder / "begun")
        options = ("--node", NODE, "--runtime", socket, "--folder", folder)
        self.start("node", *options, image=image)

    def start_node(self, image: str = rig.FAST_EXIT, has: str | None = None) -> None:
        """Start the node part, and wait until it has said which image the node *has*."""
        begun = datetime.datetime.now(datetime.UTC)
        self.launch_node(image)
        said = image if has is None else has

        def is_said(lease: dict[str, Any]) -> bool:
            renewed = datetime.datetime.fromisoformat(lease["spec"]["renewTime"])
            annotations = lease["metadata"]["annotations"]
            return renewed > begun and annotations[nodes.FAST_EXIT_ANNOTATION] == said

        self._ours.until("leases", f"pyvgpu-sidecar-{NODE}", is_said)

    def kill(self, name: str) -> None:
        """Kill one, which knows nothing of it before."""
        self._running[name].kill()
        self._running.pop(name).wait()

    def finish(self, name: str) -> int:
        """Tell one to end, and return its code."""
        process = self._running.pop(name)
        process.send_signal(signal.SIGTERM)
        return process.wait(30)

    def mark(self, container: str) -> Path:
        """Return the file by which the node part knows that it began to stop a container."""
        return self.folder / "begun" / container.rpartition("/")[2]

    def wait_for_mark(self, container: str) -> None:
        """Wait until the node part has begun to stop a container."""
        end = time.monotonic() + rig.SECONDS
        while not self.mark(container).exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert self.mark(container).exists()

    def wait(self, name: str) -> int:
        """Wait until one has ended by itself, and return its code."""
        code = self._running[name].wait(rig.SECONDS)
        del self._running[name]
        return code

    def wait_for_line(self, name: str, text: str, after: int = 0) -> None:
        """Wait until one has written this text, *after* so many bytes of its log."""
        end = time.monotonic() + rig.SECONDS
        while text.encode() not in self.log(name).read_bytes()[after:]:
            assert time.monotonic() < end, f"{name} has not said: {text}"
            time.sleep(0.05)

    def end(self) -> list[int]:
        """End all that run, and return their codes."""
        return [self.finish(name) for name in list(self._running)]


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Parts]:
    """Run the controller and the node part, which write into *folder*."""
    rig.apply(RIGHTS)
    made = Parts(folder)
    try:
        made.start_controller()
        made.start_node()
        yield made
    finally:
        codes = made.end()
    assert codes == [0, 0]


def sidecar(script: str, name: str = "side", **wishes: str) -> dict[str, Any]:
    """Return a marked container, which starts by a name that the fast-exit image has not."""
    variables = {names.SIDECAR_VARIABLE: "true"} | {
        f"{names.SIDECAR_VARIABLE}_{wish}": value for wish, value in wishes.items()
    }
    made = rig.container(name, script)
    made["command"] = ["/bin/busybox", "sh", *made["command"][1:]]
    made["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return made


def admitted(space: rig.Space, pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod after what the webhook does to it."""
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
    """Create a Job; *job* and *spec* have what is not as usual in it and in its pods."""
    template = admitted(space, rig.pod("p", *containers, **spec))
    space.create("jobs", rig.job(name, template, **(job or {})))


def has_ended(space: rig.Space, condition: str = "Complete", name: str = "j") -> dict[str, Any]:
    """Return a Job's one pod when the Job has ended."""
    space.until("jobs", name, lambda it: rig.condition(it, condition))
    (pod,) = space.pods_of(name)
    return pod


def has_record(space: rig.Space, name: str = "j") -> dict[str, Any]:
    """Return a Job's pod when its record is written."""
    return space.until_any("pods", f"{JOB}={name}", lambda it: record(it))


def record(pod: dict[str, Any]) -> dict[str, Any]:
    """Return what the controller wrote into a pod, empty if nothing."""
    annotations = pod["metadata"].get("annotations") or {}
    found: dict[str, Any] = json.loads(annotations.get(names.STOP_ANNOTATION, "{}"))
    return found
