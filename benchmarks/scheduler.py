"""`make bench-filter`: latency of the scheduler extender's responses, and its memory.

A process has a cache of nodes with eight devices and twenty pods each, and serves HTTPS as in a
cluster, while a hundred times a second a pod ends or starts. The benchmark requests filtering for
pods of several shapes with the names of all nodes, in random order, as kube-scheduler does if it
is configured to consider all nodes. Once with 500 nodes, once with ten times as many, and again
with these while the cache is compared with the API server's lists. The record goes to
benchmarks/results/scheduler; the exit code is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import controllertable  # noqa: E402
import goals  # noqa: E402
import host  # noqa: E402
import https_server  # noqa: E402
import schedulerworld as world  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

PODS_OF_A_NODE = 20
NEWS_PER_SECOND = 100
SMALL, LARGE = 500, 5000
SHAPES = ((10, 4), (20, 8), (25, 16), (50, 30), (60, 60), (1, 70), (100, 80), (200, 0))
WARM = 40  # requests that are not counted
COMPARE = "compare"  # instead of watch events


class Cluster:
    """A scheduler process with a loaded world, and one connection to it."""

    def __init__(self, folder: Path, nodes: int, work: str) -> None:
        path = folder / f"world-{nodes}"
        world.write(path, nodes, nodes * PODS_OF_A_NODE)
        server = Path(__file__).with_name("schedulerserver.py")
        self.process = subprocess.Popen(
            [sys.executable, server, path, work],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.started = self._line()
        trust = ssl.create_default_context(cadata=self.started["authorities"])
        plain = socket.create_connection(("127.0.0.1", self.started["port"]))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = http.client.HTTPConnection(https_server.HOST)
        self._connection.sock = trust.wrap_socket(plain, server_hostname=https_server.HOST)

    def ask(self, verb: str, body: bytes) -> tuple[float, Any]:
        """Return the seconds of a request, to the last byte of its answer, and the answer."""
        begun = time.perf_counter()
        self._connection.request("POST", f"/scheduler/{verb}", body, https_server.JSON)
        answer = self._connection.getresponse()
        content = answer.read()
        seconds = time.perf_counter() - begun
        if answer.status != 200:
            raise SystemExit(f"{verb}: {answer.status} {content.decode()}")
        return seconds, json.loads(content)

    def state(self) -> dict[str, Any]:
        """Return its current and peak memory, in MiB, and its comparisons so far."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self._line()

    def end(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


def bodies(nodes: int, requests: int) -> Iterator[bytes]:
    """Yield kube-scheduler's requests, each for a new pod."""
    draw = random.Random(1)
    names = [world.name_of(number) for number in range(nodes)]
    for number in range(requests):
        vcore, size = SHAPES[number % len(SHAPES)]
        draw.shuffle(names)
        pod = world.pod(20_000_000 + number, vcore, size)
        asked = {"Pod": pod, "Nodes": None, "NodeNames": names}
        yield json.dumps(asked, separators=(",", ":")).encode()  # as Go writes it


def measure(
    folder: Path, nodes: int, requests: int, work: str = str(NEWS_PER_SECOND)
) -> dict[str, Any]:
    """Return the figures of so many nodes."""
    cluster = Cluster(folder, nodes, work)
    try:
        seconds, sizes = [], []
        for body in bodies(nodes, WARM + requests):
            took, answer = cluster.ask("filter", body)
            if not answer["NodeNames"] and len(answer["FailedAndUnresolvableNodes"]) != nodes:
                raise SystemExit("filter did not answer for each node")
            seconds.append(took)
            sizes.append(len(body))
        state = cluster.state()
        while work == COMPARE and not state["comparisons"]:  # all phases of a comparison count
            for body in bodies(nodes, requests):
                seconds.append(cluster.ask("filter", body)[0])
            state = cluster.state()
        if state["differences"]:
            raise SystemExit(f"the cache differs from its lists: {state['differences']}")
        counted, cpu = sorted(seconds[WARM:]), sorted(state["cpu"][WARM:])
        return {
            "nodes": cluster.started["nodes"],
            "pods": cluster.started["pods"],
            "start_s": cluster.started["seconds"],
            "requests": len(counted),
            "bytes": sum(sizes) // len(sizes),
            "first_ms": max(seconds[:WARM]) * 1e3,
            "p50_ms": counted[len(counted) // 2] * 1e3,
            "p99_ms": counted[len(counted) * 99 // 100] * 1e3,
            "most_ms": counted[-1] * 1e3,
            "cpu_p50_ms": cpu[len(cpu) // 2] * 1e3,
            "cpu_p99_ms": cpu[len(cpu) * 99 // 100] * 1e3,
            "resident_mib": state["resident"],
            "peak_mib": state["peak"],
            "comparisons": state["comparisons"],
        }
    finally:
        cluster.end()


def main() -> int:
    """Measure, show, keep; return whether all goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=LARGE, help="of the larger cluster")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few nodes and requests, no record")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.requests, options.no_record = 50, 10, True
    with tempfile.TemporaryDirectory(prefix="pyvgpu-bench-") as name:
        small = measure(Path(name), SMALL * options.nodes // LARGE, options.requests)
        large = measure(Path(name), options.nodes, options.requests)
        compared = measure(Path(name), options.nodes, options.requests, COMPARE)
    taken = {"small": small, "large": large, "compared": compared}
    code = goals.say(controllertable.of_filter(taken))
    print(json.dumps(taken, indent=1))
    if not options.no_record and options.nodes == LARGE:
        host.keep(host.stamped(taken), "scheduler", kind="filter")
    return code


if __name__ == "__main__":
    sys.exit(main())
