"""`make bench-agent`: cost of the node agent, compared with a device plugin that does nothing.

The unmodified agent runs on a node of eight simulated devices; the tests' kubelet makes kubelet's
calls over the same sockets. Calls of the agent and of the plugin that does nothing alternate, by
the same client, over one connection like kubelet's. *allocate* is one call for vcore, alternating
with the minimal disk write for a grant; *start* is the time that a container's start waits for
PreStartContainer of both resources, of twenty pods at once. It is measured with a standalone
agent; everything else, and *start* once more, with an API server (agentapi.py, on the same
machine) and all features enabled. *idle* is the processor time of the agent when nothing happens,
without a container and with 128 of them; *audited* is the same when 16 of these hold memory, which
the agent compares with their ledgers. *node* is the resident memory of all programs of the default
install on a node, without a container and with those: the agent, its arbiter, control-nodes and
sidecar-node.
The record goes to benchmarks/results/agent; the exit code is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import agentapi  # noqa: E402
import agenttable  # noqa: E402
import fake_kubelet  # noqa: E402
import goals  # noqa: E402
import granted  # noqa: E402
import grpc  # noqa: E402
import host  # noqa: E402
import simulated_node  # noqa: E402
import small_runtime  # noqa: E402

from pyvgpu._api import device_plugin_pb2 as api  # noqa: E402
from pyvgpu._api import device_plugin_pb2_grpc as api_grpc  # noqa: E402
from pyvgpu.deviceplugin import grants, grpc_socket  # noqa: E402
from pyvgpu.simulation import simulator  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

DEVICES, AT_ONCE, CONTAINERS, HOLDERS = 8, 20, 128, 16
HOLDS = "context()\nassert not alloc(256 << 20)[0]\nanswer(0)\nsys.stdin.read()"
ROOM = 1 << 20  # bytes of a file, as the agent's own begins
NOTHING = "nothing.sock"
SECONDS = 60  # timeout of waits, never reached normally
SETTLED_SECONDS = 20  # after which start-up activity has ended


class Node:
    """A node with an agent and a plugin that does nothing; *whole*: with all features."""

    def __init__(
        self, memory: Path, disk: Path, kubelet: fake_kubelet.FakeKubelet, *, whole: bool
    ) -> None:
        self.kubelet = kubelet
        self.memory = folder = memory  # as /run is
        self.disk = disk
        machine = simulator.open_machine(f"h100:{DEVICES}", folder / "machines", mode="free")
        root = simulated_node.make(folder / "root", simulated_node.nodes(DEVICES))
        self.log = folder / "log"
        self.address = f"127.0.0.1:{host.free_port()}"
        command = [
            *(Path(sys.executable).with_name("pyvgpu"), "device-plugin", "--node", "node-1"),
            *("--state", disk / "state", "--run", folder / "run", "--cdi", folder / "cdi"),
            *("--device-plugin-path", kubelet.folder, "--driver-root", root),
            *("--pod-resources", kubelet.pod_resources, "--listen", self.address),
        ]
        self._beside = [_beside("nothing.py", folder / NOTHING)]
        if whole:
            self._beside.append(_beside("agentapi.py", folder))
            command += ["--kubeconfig", folder / "kubeconfig", "--audit-action", "kill"]
            command += ["--display", folder / "display.sock", "--log-format", "json"]
        with self.log.open("wb") as log:
            self.agent = subprocess.Popen(
                command, env={**os.environ, **machine.environment}, stdout=log, stderr=log
            )
        self._channel = grpc.insecure_channel(f"unix:{folder / NOTHING}")
        kubelet.until_offered()

    def end(self) -> None:
        """End all of it."""
        self._channel.close()
        for process in (self.agent, *self._beside):
            process.terminate()
            process.wait(SECONDS)

    def call(self, resource: str | None, method: str, request: Any) -> float:
        """Return how long a call takes, seconds; without a resource: to the no-op plugin."""
        channel = self._channel if resource is None else self.kubelet.endpoints[resource].channel
        assert channel is not None
        ask = getattr(api_grpc.DevicePluginStub(channel), method)
        begun = time.perf_counter()
        ask(request, timeout=SECONDS)
        return time.perf_counter() - begun

    def grants(self) -> int:
        """Return the number of grants that exist on disk."""
        return len(list((self.memory / "cdi").glob("pyvgpu.io-grant-*.json")))

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for something to be true."""
        end = time.monotonic() + SECONDS
        while not true():
            if time.monotonic() > end or self.agent.poll() is not None:
                raise SystemExit(f"{self.agent.poll()}: {self.log.read_text()[-3000:]}")
            time.sleep(0.1)


def _beside(name: str, where: Path) -> subprocess.Popen[bytes]:
    """Start a server program of this folder, and return when it serves."""
    command = [sys.executable, Path(__file__).with_name(name), where]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert made.stdout is not None
    made.stdout.readline()
    return made


def pod(name: str, vcore: int) -> fake_kubelet.Pod:
    """Return a pod that the API server has."""
    made = fake_kubelet.pod(name, fake_kubelet.container("a", vcore, 8))
    return dataclasses.replace(made, uid=agentapi.uid_of(name))


@contextlib.contextmanager
def node(*, whole: bool) -> Iterator[Node]:
    """Run a node for the duration of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="pyvgpu-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="pyvgpu-bench-") as disk,
    ):
        kubelet = fake_kubelet.FakeKubelet(Path(disk)).start()
        made = Node(Path(memory), Path(disk), kubelet, whole=whole)
        try:
            yield made
        finally:
            made.end()
            kubelet.stop()


def allocate(one: Node, count: int) -> dict[str, list[float]]:
    """Return how long allocating 30 vcore takes, alternating with a no-op plugin and the disk."""
    asked = [f"c{number}" for number in range(30)]
    request = api.AllocateRequest(
        container_requests=[api.ContainerAllocateRequest(device_ids=asked)]
    )
    plugins = {"agent": one.kubelet.folder / "pyvgpu-vcore.sock", "nothing": one.memory / NOTHING}
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(_writing(one.disk / "least", asked))
        sides: dict[str, Callable[[], object]] = {"disk": disk}
        for side, path in plugins.items():
            stub = api_grpc.DevicePluginStub(stack.enter_context(grpc_socket.channel(path)))
            sides[side] = functools.partial(stub.Allocate, request, timeout=SECONDS)
        took: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(count):
            for side, call in sides.items():
                begun = time.perf_counter()
                call()
                took[side].append(time.perf_counter() - begun)
            time.sleep(0.005)
    return took


@contextlib.contextmanager
def _writing(path: Path, asked: Iterable[str]) -> Iterator[Callable[[], object]]:
    """Yield a function that writes a grant into preallocated space and syncs it to disk."""
    grant = grants.Grant(grants.new_id(), frozenset(asked), time.time())
    line = json.dumps(grants.dump(grant)).encode()
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.write(file, bytes(ROOM))
        os.fsync(file)
        places = itertools.cycle(range(0, ROOM - len(line), len(line)))

        def write() -> None:
            os.pwrite(file, line, next(places))
            os.fdatasync(file)

        yield write
    finally:
        os.close(file)


def starts(one: Node, rounds: int) -> dict[str, list[float]]:
    """Return how long container starts wait, of twenty pods at once."""
    took: dict[str, list[float]] = {"agent": [], "nothing": []}
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda _: _greet(one), range(AT_ONCE)))  # threads and channels of our own
        for number in range(rounds):
            pods = [one.kubelet.admit(pod(f"p{number}-{place}", 30)) for place in range(AT_ONCE)]
            took["agent"] += pool.map(lambda it: _start(one, it), pods)
            took["nothing"] += pool.map(lambda it: _start(one, it, nothing=True), pods)
            for admitted in pods:
                one.kubelet.remove(admitted)
            one.until(lambda: one.grants() == 0)
    return took


def _greet(one: Node) -> None:
    """Make the calls once, unmeasured."""
    for resource in (fake_kubelet.VCORE, fake_kubelet.VMEMORY, None):
        one.call(resource, "GetDevicePluginOptions", api.Empty())


def _start(one: Node, pod: fake_kubelet.Pod, *, nothing: bool = False) -> float:
    """Return how long PreStartContainer takes, of both resources one after the other."""
    return sum(
        one.call(
            None if nothing else resource,
            "PreStartContainer",
            api.PreStartContainerRequest(device_ids=one.kubelet.ids(pod, "a", resource)),
        )
        for resource in (fake_kubelet.VCORE, fake_kubelet.VMEMORY)
    )


def idle(one: Node, seconds: float) -> dict[str, float]:
    """Return the idle agent's cost: percent of a core, and bytes."""
    before, begun = _processor(one.agent.pid), time.monotonic()
    time.sleep(seconds)
    percent = 100 * (_processor(one.agent.pid) - before) / (time.monotonic() - begun)
    rollup = Path(f"/proc/{one.agent.pid}/smaps_rollup").read_text()
    sizes = {
        name: int(re.findall(rf"^{key}: +(\d+) kB", rollup, re.MULTILINE)[0]) << 10
        for name, key in (("resident", "Rss"), ("anonymous", "Anonymous"))
    }
    return {"percent": percent, **sizes}


@contextlib.contextmanager
def others(one: Node) -> Iterator[dict[str, int]]:
    """Start the other programs of the default install on a node; give their process ids."""
    program, said = Path(sys.executable).with_name("pyvgpu"), one.memory / "others.log"
    commands = {
        "control-nodes": (
            *("--namespace", "pyvgpu-agent", "--device-plugin-path", one.kubelet.folder),
            *("--pod-resources", one.kubelet.pod_resources, "--cdi", one.memory / "cdi"),
            *("--driver-root", one.memory / "root"),
        ),
        "sidecar-node": (
            *("--node", agentapi.NODE, "--kubeconfig", one.memory / "kubeconfig"),
            *("--runtime", one.memory / "runtime.sock", "--folder", one.memory / "sidecars"),
            *("--listen", f"127.0.0.1:{host.free_port()}"),
        ),
    }
    runtime = small_runtime.SmallRuntime()
    begun = {}
    with small_runtime.running(one.memory, runtime), said.open("wb") as log:
        try:
            for name, options in commands.items():
                begun[name] = subprocess.Popen([program, name, *options], stdout=log, stderr=log)
            yield {name: process.pid for name, process in begun.items()}
            for name, process in begun.items():
                if process.poll() is not None:
                    raise SystemExit(f"{name} ended: {said.read_text()[-3000:]}")
        finally:
            for process in begun.values():
                process.terminate()
                process.wait(SECONDS)


def resident(one: Node, beside: Mapping[str, int]) -> dict[str, int]:
    """Return the resident bytes of each program on the node, and *once* of them all together.

    There pages of a file that several have, as of libraries of one image, are counted once.
    """
    pids = {"agent": [one.agent.pid], "arbiter": _arbiters(one)}
    pids |= {name: [pid] for name, pid in beside.items()}
    own, files = 0, collections.Counter[str]()
    found = dict.fromkeys(pids, 0)
    for name, pid in ((name, pid) for name, them in pids.items() for pid in them):
        anonymous, backed = _mapped(pid)
        found[name] += anonymous + backed.total()
        own += anonymous
        files |= backed  # of each file the most
    return {**found, "once": own + files.total()}


def _arbiters(one: Node) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            program, _, options = path.read_bytes().partition(b"\0")
            if program.endswith(b"pyvgpu-arbiter") and bytes(one.memory) in options:
                found.append(int(path.parent.name))
    return found


def _mapped(pid: int) -> tuple[int, collections.Counter[str]]:
    """Return a process's private (anonymous) resident bytes, and the file-backed ones by file."""
    anonymous, backed, file = 0, collections.Counter[str](), ""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            words = line.split()
            if not words[0].endswith(":"):
                file = words[5] if len(words) > 5 else ""
            elif words[0] == "Rss:":
                backed[file] += int(words[1]) << 10
            elif words[0] == "Anonymous:":
                backed[file] -= int(words[1]) << 10
                anonymous += int(words[1]) << 10
    return anonymous, +backed


def _processor(pid: int) -> float:
    """Return the seconds of processor time that a process has had."""
    return time.clock_gettime(~pid << 3 | 2)  # its clock: see clock_getcpuclockid(3)


def fill(one: Node) -> list[fake_kubelet.Pod]:
    """Run many containers on all devices."""
    pods = [one.kubelet.admit(pod(f"many{number}", 6)) for number in range(CONTAINERS)]
    for admitted in pods:
        one.kubelet.start_container(admitted, "a")
    return pods


@contextlib.contextmanager
def holders(one: Node) -> Iterator[None]:
    """Let some of the containers hold memory; it takes mounts, as for a container runtime."""
    specifications = sorted((one.memory / "cdi").glob("pyvgpu.io-grant-*.json"))[:HOLDERS]
    begun: list[subprocess.Popen[str]] = []
    try:
        for specification in specifications:
            root = one.memory / f"root-{specification.stem}"
            begun.append(granted.start(granted.edits_of(specification), root, HOLDS))
        for process in begun:
            assert process.stdout is not None
            assert process.stdout.readline() == "0\n", one.log.read_text()[-3000:]
        yield
    finally:
        for process in begun:
            process.communicate(timeout=SECONDS)


def scrapes(one: Node, count: int) -> list[float]:
    """Return how long /metrics takes, seconds."""
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        with urllib.request.urlopen(f"http://{one.address}/metrics", timeout=SECONDS) as answer:
            answer.read()
        took.append(time.perf_counter() - begun)
        time.sleep(0.05)
    return took


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure everything."""
    found: dict[str, Any] = {}
    rounds = 2 if quick else 15
    with node(whole=False) as one:
        found["start"] = starts(one, rounds)
    with node(whole=True) as one:
        one.call(None, "Allocate", api.AllocateRequest())
        seconds = 2 if quick else 60  # whatever comes once a minute is in it
        settled = 1 if quick else SETTLED_SECONDS
        with others(one) as beside:
            time.sleep(settled)
            found["node"] = {"idle": resident(one, beside)}
        found["idle"] = idle(one, seconds)
        found["asked"] = starts(one, rounds)
        fill(one)
        found["scrape"] = scrapes(one, 20 if quick else 100)
        with others(one) as beside:
            time.sleep(settled)
            found["node"]["busy"] = resident(one, beside)
        found["busy"] = idle(one, seconds) | {"containers": one.grants()}
        with holders(one):
            time.sleep(min(settled, 3))
            found["audited"] = idle(one, seconds) | {"holders": HOLDERS}
        found["allocate"] = allocate(one, 100 if quick else 600)
    return found


def main() -> int:
    """Measure, show, record; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="roughly, nothing recorded")
    options = parser.parse_args()
    record = host.stamped(measure(quick=options.quick))
    code = goals.say(agenttable.figures(record))
    if not options.quick:
        host.keep(record, "agent", samples=("allocate", "start", "asked"))
    return code


if __name__ == "__main__":
    sys.exit(main())
