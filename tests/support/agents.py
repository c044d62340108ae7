"""The node agent in the real cluster, on a node whose driver is the simulated one."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import platform
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agent_set
import programs
import rig
import simulated_node

from pyvgpu import device, names, region, shim, simulator
from pyvgpu.deviceplugin import ids
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CLIENT = "localhost/cuda-client:1"  # an image whose /client says what it sees, and takes it all
RED_HAT = "localhost/cuda-client:rh"  # the same where all libraries are in /usr/lib64
TRIPLET = f"{platform.machine()}-linux-gnu"
UNIT = 256 << 20
NODE = "node-1"

_SOURCES = Path(__file__).parents[1] / "clients" / "programs"
_ROOT = Path(__file__).parents[2]
_CLUSTER = _ROOT / "tests" / "e2e" / "cluster" / "cluster"
_ANSWERS = "answering on port "
_KUBELET_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")
_LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
_LIBRARIES = ("libc.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libm.so.6")
# In the place of devices' numbers: of the kernel's own, and in no runtime's list of what all may.
_STAND_INS = {
    "nvidia0": (10, 229),
    "nvidia1": (10, 234),
    "nvidiactl": (10, 237),
    "nvidia-uvm": (10, 235),
}
_MORE = (10, 200)  # of devices beyond the second, where it is of no matter which


@dataclasses.dataclass(frozen=True)
class Place:
    """A node of the cluster, as it is found from here."""

    node: str = NODE
    kubelet: str = "kubelet"  # its root, in the cluster's folder
    specifications: Path = Path("/var/run/cdi")  # where its container runtime looks
    enter: tuple[str, ...] = ()  # what leads into its mounts


class Agent:
    """One agent as a process of a node, which can be killed and started again."""

    def __init__(self, folder: Path, model: str = "t4:2", place: Place | None = None) -> None:
        self.folder = folder
        self.place = place or Place()
        machines = folder / "machines"
        machines.mkdir()
        machines.chmod(0o1777)  # users of containers have any number
        # As short as a path in an environment variable of a container should be.
        law = simulator.Law(cgroup_limits=1)
        self.machine = simulator.open_machine(model, machines, mode="free", law=law)
        nodes = {f"nvidia{it.index}": _MORE for it in device.simulated(self.machine)} | _STAND_INS
        self.root = simulated_node.make(folder / "root", nodes)
        self.log = folder / "agent.log"
        self.log.touch()
        self._process: subprocess.Popen[bytes] | None = None
        self._is: tuple[object, ...] | None = None  # what it was started with; None: it is not
        self._kubeconfig = folder / "kubeconfig"
        agent_set.write_kubeconfig(self._kubeconfig, NODE)

    @property
    def specifications(self) -> Path:
        """Where containerd looks."""
        return self.place.specifications

    @property
    def units(self) -> int:
        """Of memory, on all devices."""
        return sum(it.memory_bytes // UNIT for it in self.machine.devices)

    def start(
        self, *options: object, resources: tuple[ids.Resource, ids.Resource] = ids.OURS
    ) -> None:
        """Start the agent, and wait until the node has its *resources*."""
        before = self.registrations()
        self.begin(*options)
        # What the one before it has offered is there for a while yet.
        self.wait(lambda: self.registrations() == before + len(resources))
        self.wait_for_offers(resources)

    def become(
        self, *options: object, resources: tuple[ids.Resource, ids.Resource] = ids.OURS
    ) -> None:
        """Let the agent run with these *options* and no others, where nobody has anything."""
        if self.make_way(*options):
            self.start(*options, resources=resources)

    def make_way(self, *options: object) -> bool:
        """End the agent once nobody has anything of it; false if it has these *options*."""
        if self._is == options:
            return False
        self.until_idle()
        self.stop()
        return True

    def begin(self, *options: object) -> None:
        """Start the agent."""
        self._is = options
        kubelet = Path(os.environ["CLUSTER_RUN"], self.place.kubelet)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self.place.enter,
                    *(Path(sys.executable).with_name("pyvgpu"), "device-plugin"),
                    *("--node", self.place.node, "--state", self.folder / "state"),
                    *("--run", self.folder / "run"),
                    *("--driver-root", self.root),
                    *("--pod-resources", kubelet / "pod-resources/kubelet.sock"),
                    *("--plugins-registry", kubelet / "plugins_registry"),
                    *("--plugins", kubelet / "plugins"),
                    *("--kubeconfig", self._kubeconfig),
                    *("--listen", "127.0.0.1:0", "--recover-seconds", "1", *options),
                ],
                env={**os.environ, **self.machine.environment},
                stdout=log,
                stderr=log,
            )

    def ask(self, path: str) -> str:
        """Return what the agent answers at *path*."""
        self.wait(lambda: _ANSWERS in self.log.read_text())
        port = int(self.log.read_text().rpartition(_ANSWERS)[2].split()[0])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=rig.SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path)
            answer = connection.getresponse()
            text = answer.read().decode()
        assert answer.status == 200, text
        return text

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the agent, by that signal."""
        process, self._process, self._is = self._process, None, None
        if process is not None:
            process.send_signal(number)
            process.wait(rig.SECONDS)

    def wait_for_offers(self, resources: tuple[ids.Resource, ids.Resource] = ids.OURS) -> None:
        """Wait until the scheduler may give out all that the node has."""
        vcore, vmemory = resources
        count = 100 * len(self.machine.devices)
        wanted = {vcore.name: str(count), vmemory.name: str(self.units)}
        self.wait(lambda: wanted.items() <= self.allocatable().items())

    def allocatable(self) -> dict[str, str]:
        """Return what the node has to give by the API server."""
        node = rig.everybodys().server.call("GET", f"/api/v1/nodes/{self.place.node}")
        found: dict[str, str] = node["status"].get("allocatable") or {}
        return found

    def wait(self, true: Any) -> None:
        """Wait until something is true."""
        end = time.monotonic() + rig.SECONDS
        while not true():
            lives = self._process is None or self._process.poll() is None
            assert lives, self.log.read_text()[-4000:]
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.1)

    def until_idle(self) -> None:
        """Wait until nothing is left of any grant."""
        self.wait(lambda: not self.present())

    def registrations(self) -> int:
        """Return how often kubelet has been told of a resource."""
        return len(re.findall(r"registered \S+/\S+ with kubelet", self.log.read_text()))

    def limits(self, grant_id: str) -> tuple[region.DeviceLimits, ...]:
        """Return what the quota of a grant says."""
        with (self.folder / "run/grants" / grant_id / names.QUOTA_FILE).open("rb") as file:
            return region.read_limits(file.fileno()).devices

    def present(self) -> set[str]:
        """Return the ids of the grants of which anything is there."""
        folders = {it.name for it in (self.folder / "run/grants").glob("*")}
        files = {
            it.stem.rpartition("-")[2] for it in self.specifications.glob("pyvgpu.io-grant-*")
        }
        return {it for it in folders | files if len(it) == 16}


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Agent]:
    """Give the agent of the node to a suite's tests; its images are made, it is not started.

    AssertionError where another agent's grants are left, or the rights that are shipped were not
    enough for it.
    """
    make_image(folder)
    made = Agent(folder)
    left = sorted(it.name for it in made.specifications.glob("pyvgpu.io-grant-*"))
    # Nobody would ever take them away, and every test would wait for that.
    assert not left, f"{made.specifications} has {', '.join(left)} of an agent that is gone"
    try:
        yield made
    finally:
        made.stop()
    said = made.log.read_text()
    assert " 403 " not in said
    assert "denied request" not in said


def restart_kubelet() -> None:
    """Kill kubelet and start it again, until it has seen what runs and listens to plugins."""
    before = _KUBELET_SOCKET.stat().st_ctime_ns
    subprocess.run([_CLUSTER, "restart", "kubelet"], check=True, capture_output=True)
    end = time.monotonic() + rig.SECONDS
    while not _KUBELET_SOCKET.exists() or _KUBELET_SOCKET.stat().st_ctime_ns == before:
        assert time.monotonic() < end
        time.sleep(0.05)


def make_image(folder: Path) -> None:
    """Let the cluster have the images of the client; *folder* keeps CLIENT as `client.tar`."""
    program = (_SOURCES / "client.c", _SOURCES / "opened.c")
    nvml = (_SOURCES / "client.c", _SOURCES / "linked.c")
    driver = shim.simulator_libraries() / f"libcuda.so.{simulator.DRIVER_RELEASE}"
    both = ("-Wl,--no-as-needed", programs.LIBNVIDIA_ML, programs.LIBCUDA)
    files = {
        "/client": programs.build("cuda-client", program, "-ldl"),
        "/nvml-client": programs.build("nvml-client", nvml, "-DWITH_NVML", *both),
        "/bare": programs.build_bare("bare", _SOURCES / "bare.c"),
        "/stays": programs.build("stays", (_SOURCES / "bare.c",), programs.LIBCUDA),
        # An image may bring a driver of its own; this one would hold nobody.
        f"/usr/local/cuda-12.4/compat/{names.LIBCUDA}": driver,
        f"/opt/own/{names.LIBCUDA}": driver,
        "/bin/busybox": Path(os.environ["PATH"].partition(":")[0]) / "busybox",
        _LOADERS[platform.machine()]: _LOADERS[platform.machine()],
    }
    for name, archive, libraries, more in (
        (CLIENT, "client.tar", f"/usr/lib/{TRIPLET}", ()),
        (RED_HAT, "red-hat.tar", "/usr/lib64", ("--env=LD_LIBRARY_PATH=/usr/lib64",)),
    ):
        linked = {f"{libraries}/{it}": f"/lib/{TRIPLET}/{it}" for it in _LIBRARIES}
        _make(folder / archive, name, files | linked, *more)


def _make(archive: Path, name: str, files: Mapping[str, str | Path], *more: str) -> None:
    tools = ("sh", "cat", "env", "false", "ls", "sleep", "true")
    subprocess.run(
        [
            *(sys.executable, _ROOT / "deploy/image.py", archive, name),
            *(f"--file={source}={path}" for path, source in files.items()),
            *(f"--link=/bin/{it}=busybox" for it in tools),
            *("--link=/usr/local/cuda=cuda-12.4", *more),
        ],
        check=True,
    )
    subprocess.run([_CLUSTER, "image", archive], check=True, capture_output=True)


def container(name: str, vcore: int, units: int, script: str = "", **more: Any) -> dict[str, Any]:
    """Return a container with a quota that writes what the client says to its status."""
    limits = {names.VCORE_RESOURCE: str(vcore), names.VMEMORY_RESOURCE: str(units)}
    made = rig.container(name, script or "/client > /dev/termination-log 2>&1", **more)
    made["image"] = more.get("image", CLIENT)
    made["resources"] = {"limits": {key: it for key, it in limits.items() if it != "0"}}
    return made


def said(pod: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return what the client of an ended container has said, by its first word."""
    text = rig.state(dict(pod), name)["state"]["terminated"].get("message", "")
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def logs(space: rig.Space, pod: str, name: str) -> str:
    """Return what a container has written so far."""
    command = ["kubectl", "--namespace", space.name, "logs", pod, "--container", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kill_sandbox(identity: str) -> None:
    """Kill the process that keeps a pod's namespaces."""
    subprocess.run(["ctr", "tasks", "kill", "--signal", "9", identity], check=True)


def annotate(path: str, annotations: Mapping[str, str | None]) -> None:
    """Let the object at *path* of the API server have annotations; None removes one."""
    body = {"metadata": {"annotations": dict(annotations)}}
    rig.everybodys().server.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)


def run_with(text: str, *command: object) -> tuple[int, str]:
    """Run a program that reads *text*; return its exit code and all that it said."""
    done = subprocess.run(
        list(map(str, command)),
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout
