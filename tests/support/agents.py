"""Runs the node agent in the e2e cluster, on a node with the simulated driver."""

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

from pyvgpu import device, names, region, shim
from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.kube import apiserver
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CLIENT = "localhost/cuda-client:1"  # its /client reports what it sees and allocates all memory
RED_HAT = "localhost/cuda-client:rh"  # the same, with all libraries in /usr/lib64
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
# Stand-ins for the device numbers: kernel devices that no runtime allows in every container.
_STAND_INS = {
    "nvidia0": (10, 229),
    "nvidia1": (10, 234),
    "nvidiactl": (10, 237),
    "nvidia-uvm": (10, 235),
}
_MORE = (10, 200)  # for every device after the second; any number would do


@dataclasses.dataclass(frozen=True)
class Place:
    """Where to find a node of the cluster from the test process."""

    node: str = NODE
    kubelet: str = "kubelet"  # kubelet's root directory, below the cluster's folder
    specifications: Path = Path("/var/run/cdi")  # the container runtime's CDI directory
    enter: tuple[str, ...] = ()  # command prefix that enters its mount namespace


class Agent:
    """The agent of a node as a process that tests can kill and restart."""

    def __init__(self, folder: Path, model: str = "t4:2", place: Place | None = None) -> None:
        self.folder = folder
        self.place = place or Place()
        machines = folder / "machines"
        machines.mkdir()
        machines.chmod(0o1777)  # containers run under any uid
        # The machine's path, an environment variable of containers, must be short.
        law = simulator.Law(cgroup_limits=1)
        self.machine = simulator.open_machine(model, machines, mode="free", law=law)
        nodes = {
            f"nvidia{gpu.index}": _MORE for gpu in device.simulated(self.machine)
        } | _STAND_INS
        self.root = simulated_node.make(folder / "root", nodes)
        self.log = folder / "agent.log"
        self.log.touch()
        self._process: subprocess.Popen[bytes] | None = None
        self._is: tuple[object, ...] | None = None  # its options; None: not started
        self._kubeconfig = folder / "kubeconfig"
        agent_set.write_kubeconfig(self._kubeconfig, NODE)

    @property
    def specifications(self) -> Path:
        """containerd's CDI directory."""
        return self.place.specifications

    @property
    def units(self) -> int:
        """Memory units of all devices together."""
        return sum(gpu.memory_bytes // UNIT for gpu in self.machine.devices)

    def start(
        self,
        *options: object,
        resources: tuple[device_ids.Resource, device_ids.Resource] = device_ids.OURS,
    ) -> None:
        """Start the agent, and wait until its *resources* are allocatable on the node."""
        before = self.registrations()
        self.begin(*options)
        # The resources of the previous agent stay allocatable for a while.
        self.wait(lambda: self.registrations() == before + len(resources))
        self.wait_for_offers(resources)

    def become(
        self,
        *options: object,
        resources: tuple[device_ids.Resource, device_ids.Resource] = device_ids.OURS,
    ) -> None:
        """Run the agent with exactly these *options*, restarting it without grants if needed."""
        if self.make_way(*options):
            self.start(*options, resources=resources)

    def make_way(self, *options: object) -> bool:
        """Stop the agent once no grant is left; return False if it runs with these *options*."""
        if self._is == options:
            return False
        self.until_idle()
        self.stop()
        return True

    def begin(self, *options: object) -> None:
        """Start the agent without waiting for it."""
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
        """Return the body of the agent's answer to GET *path*."""
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
        """Stop the agent with this signal."""
        process, self._process, self._is = self._process, None, None
        if process is not None:
            process.send_signal(number)
            process.wait(rig.SECONDS)

    def wait_for_offers(
        self, resources: tuple[device_ids.Resource, device_ids.Resource] = device_ids.OURS
    ) -> None:
        """Wait until all that the node's devices offer is allocatable."""
        vcore, vmemory = resources
        options = self._is or ()
        ratio = 1
        if "--oversubscribe" in options:
            ratio = int(str(options[options.index("--oversubscribe") + 1]))
        count = 100 * ratio * len(self.machine.devices)
        units = sum(gpu.memory_bytes * ratio // UNIT for gpu in self.machine.devices)
        wanted = {vcore.name: str(count), vmemory.name: str(units)}
        self.wait(lambda: wanted.items() <= self.allocatable().items())

    def allocatable(self) -> dict[str, str]:
        """Return the node's allocatable resources from the API server."""
        node = rig.as_admin().server.call("GET", f"/api/v1/nodes/{self.place.node}")
        found: dict[str, str] = node["status"].get("allocatable") or {}
        return found

    def wait(self, true: Any) -> None:
        """Wait until *true* returns a true value, while the agent lives."""
        end = time.monotonic() + rig.SECONDS
        while not true():
            lives = self._process is None or self._process.poll() is None
            assert lives, self.log.read_text()[-4000:]
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.1)

    def until_idle(self) -> None:
        """Wait until no file of any grant is left."""
        self.wait(lambda: not self.present())

    def registrations(self) -> int:
        """Return how often the agent has registered a resource with kubelet."""
        return len(re.findall(r"registered \S+/\S+ with kubelet", self.log.read_text()))

    def limits(self, grant_id: str) -> tuple[region.DeviceLimits, ...]:
        """Return the limits in the quota file of a grant."""
        with (self.folder / "run/grants" / grant_id / names.QUOTA_FILE).open("rb") as file:
            return region.read_limits(file.fileno()).devices

    def present(self) -> set[str]:
        """Return the ids of the grants that have a folder or a CDI specification."""
        folders = {path.name for path in (self.folder / "run/grants").glob("*")}
        files = {
            path.stem.rpartition("-")[2] for path in self.specifications.glob("pyvgpu.io-grant-*")
        }
        return {grant_id for grant_id in folders | files if len(grant_id) == 16}


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Agent]:
    """Yield a node agent for a test suite: images are built, the agent is not yet started.

    AssertionError if grants of an earlier agent are left, or if the chart's RBAC rules did not
    suffice.
    """
    make_image(folder)
    made = Agent(folder)
    left = sorted(path.name for path in made.specifications.glob("pyvgpu.io-grant-*"))
    # Nothing would ever remove them, and every test would wait until they are gone.
    assert not left, f"{made.specifications} has {', '.join(left)} of an agent that is gone"
    try:
        yield made
    finally:
        made.stop()
    said = made.log.read_text()
    assert " 403 " not in said
    assert "denied request" not in said


def restart_kubelet() -> None:
    """Kill and restart kubelet; return when it listens for device plugins."""
    before = _KUBELET_SOCKET.stat().st_ctime_ns
    subprocess.run([_CLUSTER, "restart", "kubelet"], check=True, capture_output=True)
    end = time.monotonic() + rig.SECONDS
    while not _KUBELET_SOCKET.exists() or _KUBELET_SOCKET.stat().st_ctime_ns == before:
        assert time.monotonic() < end
        time.sleep(0.05)


def make_image(folder: Path) -> None:
    """Build the client images and load them into the cluster; CLIENT is `client.tar`."""
    program = (_SOURCES / "client.c", _SOURCES / "opened.c")
    nvml = (_SOURCES / "client.c", _SOURCES / "linked.c")
    driver = shim.simulator_libraries() / f"libcuda.so.{simulator.DRIVER_RELEASE}"
    both = ("-Wl,--no-as-needed", programs.LIBNVIDIA_ML, programs.LIBCUDA)
    files = {
        "/client": programs.build("cuda-client", program, "-ldl"),
        "/nvml-client": programs.build("nvml-client", nvml, "-DWITH_NVML", *both),
        "/bare": programs.build_bare("bare", _SOURCES / "bare.c"),
        "/holder": programs.build("holder", (_SOURCES / "holder.c",), programs.LIBCUDA),
        "/stays": programs.build("stays", (_SOURCES / "bare.c",), programs.LIBCUDA),
        # An image may contain a driver of its own; this one would enforce no quota.
        f"/usr/local/cuda-12.4/compat/{names.LIBCUDA}": driver,
        f"/opt/own/{names.LIBCUDA}": driver,
        "/bin/busybox": Path(os.environ["PATH"].partition(":")[0]) / "busybox",
        _LOADERS[platform.machine()]: _LOADERS[platform.machine()],
    }
    for name, archive, libraries, more in (
        (CLIENT, "client.tar", f"/usr/lib/{TRIPLET}", ()),
        (RED_HAT, "red-hat.tar", "/usr/lib64", ("--env=LD_LIBRARY_PATH=/usr/lib64",)),
    ):
        linked = {f"{libraries}/{library}": f"/lib/{TRIPLET}/{library}" for library in _LIBRARIES}
        _make(folder / archive, name, files | linked, *more)


def _make(archive: Path, name: str, files: Mapping[str, str | Path], *more: str) -> None:
    tools = ("sh", "cat", "env", "false", "ls", "sleep", "true")
    subprocess.run(
        [
            *(sys.executable, _ROOT / "deploy/image.py", archive, name),
            *(f"--file={source}={path}" for path, source in files.items()),
            *(f"--link=/bin/{tool}=busybox" for tool in tools),
            *("--link=/usr/local/cuda=cuda-12.4", *more),
        ],
        check=True,
    )
    subprocess.run([_CLUSTER, "image", archive], check=True, capture_output=True)


def container(name: str, vcore: int, units: int, script: str = "", **more: Any) -> dict[str, Any]:
    """Return a container with a quota whose termination message is the client's output."""
    limits = {names.VCORE_RESOURCE: str(vcore), names.VMEMORY_RESOURCE: str(units)}
    made = rig.container(name, script or "/client > /dev/termination-log 2>&1", **more)
    made["image"] = more.get("image", CLIENT)
    made["resources"] = {"limits": {key: limit for key, limit in limits.items() if limit != "0"}}
    return made


def said(pod: Mapping[str, Any], name: str) -> dict[str, str]:
    """Return the client's lines from a terminated container, keyed by their first word."""
    text = rig.state(dict(pod), name)["state"]["terminated"].get("message", "")
    return dict(line.split(" ", 1) for line in text.splitlines() if " " in line)


def logs(space: rig.Space, pod: str, name: str) -> str:
    """Return the log of a container so far."""
    command = ["kubectl", "--namespace", space.name, "logs", pod, "--container", name]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kill_sandbox(identity: str) -> None:
    """Kill the sandbox (pause) process of a pod."""
    subprocess.run(["ctr", "tasks", "kill", "--signal", "9", identity], check=True)


def annotate(path: str, annotations: Mapping[str, str | None]) -> None:
    """Patch the annotations of the object at *path*; None removes one."""
    body = {"metadata": {"annotations": dict(annotations)}}
    rig.as_admin().server.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)


def run_with(text: str, *command: object) -> tuple[int, str]:
    """Run a program with *text* as its input; return its exit code and output."""
    done = subprocess.run(
        list(map(str, command)),
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout
