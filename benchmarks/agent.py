"""`make bench-agent`: what the node agent costs, beside a device plugin that does nothing.

The agent is the program itself, on a node of eight simulated devices; kubelet is the tests' own,
which does what kubelet does, over the same sockets. Calls of the agent and of the plugin that does
nothing are made in turn, by the same client, over one connection as kubelet's are. *allocate* is
one call for vcore, by a client that takes little itself; *start* is what a container's start waits
for, PreStartContainer of both resources, of twenty pods at once. *idle* is the processor time of
the agent when nothing happens, without a container and with 128 of them.
The record goes to benchmarks/results/agent; the exit code is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
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

import agenttable  # noqa: E402
import fake_kubelet  # noqa: E402
import goals  # noqa: E402
import grpc  # noqa: E402
import host  # noqa: E402
import simulated_node  # noqa: E402

from pyvgpu import simulator, wire  # noqa: E402
from pyvgpu.deviceplugin import messages  # noqa: E402
from pyvgpu.rpc import client  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICES, AT_ONCE, CONTAINERS = 8, 20, 128
LISTEN = "127.0.0.1:9478"
NOTHING = "nothing.sock"
SECONDS = 60  # for what is waited for, and never this


class Node:
    """A node with an agent and a plugin that does nothing."""

    def __init__(self, memory: Path, disk: Path, kubelet: fake_kubelet.FakeKubelet) -> None:
        self.kubelet = kubelet
        self.memory = folder = memory  # as /run is
        machine = simulator.open_machine(f"h100:{DEVICES}", folder / "machines", mode="free")
        root = simulated_node.make(folder / "root", simulated_node.nodes(DEVICES))
        self.log = folder / "log"
        command = [
            *(Path(sys.executable).with_name("pyvgpu"), "device-plugin", "--node", "node-1"),
            *("--state", disk / "state", "--run", folder / "run", "--cdi", folder / "cdi"),
            *("--device-plugin-path", kubelet.folder, "--driver-root", root),
            *("--pod-resources", kubelet.pod_resources, "--listen", LISTEN),
        ]
        with self.log.open("wb") as log:
            self.agent = subprocess.Popen(
                command, env={**os.environ, **machine.environment}, stdout=log, stderr=log
            )
        nothing = folder / NOTHING
        self.nothing = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("nothing.py"), nothing],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.nothing.stdout is not None
        self.nothing.stdout.readline()
        self._channel = grpc.insecure_channel(f"unix:{nothing}")
        kubelet.until_offered()

    def end(self) -> None:
        """End both."""
        self._channel.close()
        for process in (self.agent, self.nothing):
            process.terminate()
            process.wait(SECONDS)

    def call(self, resource: str | None, method: str, request: bytes) -> float:
        """Return how long a call takes, seconds; of no resource: to the plugin of nothing."""
        path = f"/{messages.SERVICE}/{method}"
        channel = self._channel if resource is None else self.kubelet.endpoints[resource].channel
        assert channel is not None
        ask = channel.unary_unary(path)
        begun = time.perf_counter()
        ask(request, timeout=SECONDS)
        return time.perf_counter() - begun

    def grants(self) -> int:
        """Return how many are made real."""
        return len(list((self.memory / "cdi").glob("pyvgpu.io-grant-*.json")))

    def until(self, true: Callable[[], bool]) -> None:
        """Wait for something to be true."""
        end = time.monotonic() + SECONDS
        while not true():
            if time.monotonic() > end or self.agent.poll() is not None:
                raise SystemExit(f"{self.agent.poll()}: {self.log.read_text()[-3000:]}")
            time.sleep(0.1)


@contextlib.contextmanager
def node() -> Iterator[Node]:
    """Have a node for the length of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="pyvgpu-bench-", dir="/dev/shm") as memory,
        tempfile.TemporaryDirectory(prefix="pyvgpu-bench-") as disk,
    ):
        kubelet = fake_kubelet.FakeKubelet(Path(disk)).start()
        made = Node(Path(memory), Path(disk), kubelet)
        try:
            yield made
        finally:
            made.end()
            kubelet.stop()


def allocate(one: Node, count: int) -> dict[str, list[float]]:
    """Return how long it takes to be given an id for 30 vcore, in turn with nothing."""
    took: dict[str, list[float]] = {"agent": [], "nothing": []}
    request = wire.encode({1: [{1: [f"c{it}" for it in range(30)]}]})
    plugins = one.kubelet.folder / "pyvgpu-vcore.sock", one.memory / NOTHING
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(client.Line(it, seconds=SECONDS)) for it in plugins]
        for _ in range(count):
            for line, side in zip(lines, took, strict=True):
                begun = time.perf_counter()
                line.call(f"/{messages.SERVICE}/Allocate", request)
                took[side].append(time.perf_counter() - begun)
            time.sleep(0.005)
    return took


def starts(one: Node, rounds: int) -> dict[str, list[float]]:
    """Return how long the starts of containers wait, of twenty pods at once."""
    took: dict[str, list[float]] = {"agent": [], "nothing": []}
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for number in range(rounds):
            pods = [
                one.kubelet.admit(
                    fake_kubelet.pod(f"p{number}-{it}", fake_kubelet.container("a", 30, 8))
                )
                for it in range(AT_ONCE)
            ]
            took["agent"] += pool.map(lambda it: _start(one, it), pods)
            took["nothing"] += pool.map(lambda it: _start(one, it, nothing=True), pods)
            for it in pods:
                one.kubelet.remove(it)
            one.until(lambda: one.grants() == 0)
    return took


def _start(one: Node, pod: fake_kubelet.Pod, *, nothing: bool = False) -> float:
    """Return how long PreStartContainer takes, of both resources one after the other."""
    return sum(
        one.call(
            None if nothing else resource,
            "PreStartContainer",
            wire.encode({1: list(one.kubelet.ids(pod, "a", resource))}),
        )
        for resource in (fake_kubelet.VCORE, fake_kubelet.VMEMORY)
    )


def idle(one: Node, seconds: float) -> dict[str, float]:
    """Return what the agent takes when nothing happens: percent of a core, and bytes."""
    before, begun = _processor(one.agent.pid), time.monotonic()
    time.sleep(seconds)
    percent = 100 * (_processor(one.agent.pid) - before) / (time.monotonic() - begun)
    rollup = Path(f"/proc/{one.agent.pid}/smaps_rollup").read_text()
    sizes = {
        name: int(re.findall(rf"^{key}: +(\d+) kB", rollup, re.MULTILINE)[0]) << 10
        for name, key in (("resident", "Rss"), ("anonymous", "Anonymous"))
    }
    return {"percent": percent, **sizes}


def _processor(pid: int) -> float:
    """Return the seconds of processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(one: Node) -> list[fake_kubelet.Pod]:
    """Run many containers on all devices."""
    pods = [
        one.kubelet.admit(fake_kubelet.pod(f"many{it}", fake_kubelet.container("a", 6, 8)))
        for it in range(CONTAINERS)
    ]
    for it in pods:
        one.kubelet.start_container(it, "a")
    return pods


def scrapes(count: int) -> list[float]:
    """Return how long /metrics takes, seconds."""
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        with urllib.request.urlopen(f"http://{LISTEN}/metrics", timeout=SECONDS) as answer:
            answer.read()
        took.append(time.perf_counter() - begun)
        time.sleep(0.05)
    return took


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure everything on one node."""
    found: dict[str, Any] = {}
    with node() as one:
        one.call(None, "Allocate", b"")
        seconds = 6 if quick else 30
        time.sleep(3)
        found["idle"] = idle(one, seconds)
        found["start"] = starts(one, 2 if quick else 15)
        fill(one)
        found["scrape"] = scrapes(20 if quick else 100)
        time.sleep(3)
        found["busy"] = idle(one, seconds) | {"containers": one.grants()}
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
        host.keep(record, "agent")
    return code


if __name__ == "__main__":
    sys.exit(main())
