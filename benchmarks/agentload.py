"""`make bench-agent-load`: requests of the node agent to a real API server.

The node has an agent and the tests' kubelet instead of Kubernetes' own, which admits and starts
pods that exist in the API server. It counts the agent's requests (`pyvgpu_api_requests_total`): at
the start, while nothing happens, while 100 pods start at once, and while these run. It needs
access to the API server, by KUBECONFIG; the record goes to benchmarks/results/agent-load, and the
exit code is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import fake_kubelet  # noqa: E402
import goals  # noqa: E402
import host  # noqa: E402
import node_process  # noqa: E402
import rig  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = "bench-node"
PODS = 100
VCORE = 2  # of the 200 that the node has
SETTLED_SECONDS = 20.0  # time after which a start, or a burst of pods, is over
MOST_A_MINUTE = 4.0
_REQUESTS = re.compile(r'^pyvgpu_api_requests_total\{code="(\d+)",method="(\w+)"\} (\S+)$', re.M)


def requests(node: node_process.Node) -> float:
    """Return how many requests the agent has made."""
    found = _REQUESTS.findall(node.ask("/metrics")[1])
    return sum(float(count) for _, _, count in found)


@contextlib.contextmanager
def node_of(space: rig.Space) -> Iterator[None]:
    """Create the node in the API server."""
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    space.server.call("POST", "/api/v1/nodes", body=body)
    try:
        yield
    finally:
        space.server.call("DELETE", f"/api/v1/nodes/{NODE}")


def create(space: rig.Space, number: int) -> fake_kubelet.Pod:
    """Create a pod on the node; return it as a kubelet has it."""
    made = rig.pod(f"p-{number}", rig.container("main", "true"), nodeName=NODE)
    made["spec"]["tolerations"] = [{"operator": "Exists"}]
    meta = space.create("pods", made)["metadata"]
    one = fake_kubelet.pod(meta["name"], fake_kubelet.container("main", VCORE, 1))
    return dataclasses.replace(one, namespace=space.name, uid=meta["uid"])


def measure(minutes: float, settled: float = SETTLED_SECONDS) -> dict[str, Any]:
    """Return how many requests there were at the start, of 100 pods, and a minute beside these."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyvgpu-bench-")))
        space = stack.enter_context(rig.space("bench"))
        stack.enter_context(node_of(space))
        kubelet = fake_kubelet.FakeKubelet(folder / "kubelet").start()
        stack.callback(kubelet.stop)
        node = stack.enter_context(node_process.running(kubelet, folder))
        options = ("--node", NODE, "--kubeconfig", os.environ["KUBECONFIG"])
        node.start(*options, "--listen", "127.0.0.1:0")
        kubelet.until_offered()
        time.sleep(settled)
        start = requests(node)
        idle = _a_minute(node, minutes)
        before = requests(node)
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            pods = list(pool.map(lambda number: create(space, number), range(PODS)))
            for pod in pods:
                kubelet.admit(pod)
            list(pool.map(lambda pod: kubelet.start_container(pod, "main"), pods))
        time.sleep(settled)
        burst = requests(node) - before
        return {
            "start": start,
            "idle_a_minute": idle,
            "pods": PODS,
            "burst": burst,
            "beside_pods_a_minute": _a_minute(node, minutes),
            "minutes": minutes,
        }


def _a_minute(node: node_process.Node, minutes: float) -> float:
    before = requests(node)
    time.sleep(minutes * 60)
    return (requests(node) - before) / minutes


def figures(record: dict[str, Any]) -> list[goals.Figure]:
    """Return the figures of a record beside their goals."""
    return [
        goals.Figure("an agent starts", record["start"], None, "requests"),
        goals.Figure("idle, a minute", record["idle_a_minute"], MOST_A_MINUTE, "requests"),
        goals.Figure(f"{record['pods']} pods start", record["burst"], None, "requests"),
        goals.Figure(
            f"{record['pods']} pods run, a minute",
            record["beside_pods_a_minute"],
            MOST_A_MINUTE,
            "requests",
        ),
    ]


def main() -> int:
    """Measure, show, record; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="that nothing happens")
    parser.add_argument("--quick", action="store_true", help="roughly, nothing recorded")
    options = parser.parse_args()
    minutes, settled = (0.05, 1.0) if options.quick else (options.minutes, SETTLED_SECONDS)
    record = host.stamped(measure(minutes, settled))
    code = goals.say(figures(record))
    if not options.quick:
        host.keep(record, "agent-load")
    return code


if __name__ == "__main__":
    sys.exit(main())
