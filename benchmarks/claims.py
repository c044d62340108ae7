"""`make bench-claims`: latency of preparing a claim, compared with a driver that does nothing.

`pyvgpu dra-driver` runs on a node of eight simulated devices, and its API server (without TLS) on
the same machine. *one* is NodePrepareResources for a new claim, *at once* the longest of twenty
concurrent ones; each compared with a no-op driver, by grpcio, from the same client.
The record goes to benchmarks/results/claims; the exit code is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import claiming_kubelet  # noqa: E402
import claimstable  # noqa: E402
import fake_kubelet  # noqa: E402
import goals  # noqa: E402
import host  # noqa: E402
import simulated_node  # noqa: E402

from pyvgpu._api import dra_pb2, dra_pb2_grpc  # noqa: E402
from pyvgpu.deviceplugin import grpc_socket  # noqa: E402
from pyvgpu.simulation import simulator  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICES, AT_ONCE = 8, 20
SECONDS = 60  # timeout of waits, never reached normally

_HERE = Path(__file__).parent


@contextlib.contextmanager
def program(*command: object, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for the length of the block."""
    made = subprocess.Popen([str(argument) for argument in command], **more)
    try:
        yield made
    finally:
        made.terminate()
        made.wait(SECONDS)


@contextlib.contextmanager
def sockets() -> Iterator[dict[str, Path]]:
    """Run the driver and a no-op driver for the duration of the block; their sockets by name."""
    with contextlib.ExitStack() as stack:
        memory, disk = (
            Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="pyvgpu-bench-", dir=base))
            )
            for base in ("/dev/shm", None)
        )
        kubelet = fake_kubelet.FakeKubelet(disk).start()
        stack.callback(kubelet.stop)
        claiming = claiming_kubelet.ClaimingKubelet(memory)
        machine = simulator.open_machine(f"h100:{DEVICES}", memory / "machines", mode="free")
        root = simulated_node.make(memory / "root", simulated_node.nodes(DEVICES))
        own = {"stdout": subprocess.PIPE, "stdin": subprocess.PIPE}
        uuids = [device.uuid for device in machine.devices]
        api = stack.enter_context(program(sys.executable, _HERE / "claimsapi.py", *uuids, **own))
        nothing = memory / "nothing.sock"
        idle = stack.enter_context(program(sys.executable, _HERE / "nothing.py", nothing, **own))
        assert api.stdout is not None
        assert idle.stdout is not None
        server = f"http://127.0.0.1:{api.stdout.readline().decode().strip()}"
        idle.stdout.readline()
        (memory / "kubeconfig").write_text(json.dumps(_kubeconfig(server)))
        log = stack.enter_context((memory / "log").open("wb"))
        command = [
            *(Path(sys.executable).with_name("pyvgpu"), "dra-driver", "--node", "node-1"),
            *("--state", disk / "state", "--run", memory / "run", "--cdi", memory / "cdi"),
            *("--device-plugin-path", kubelet.folder, "--driver-root", root, "--listen", "none"),
            *claiming.options,
            *("--pod-resources", kubelet.pod_resources, "--kubeconfig", memory / "kubeconfig"),
        ]
        more = {"env": {**os.environ, **machine.environment}, "stdout": log, "stderr": log}
        stack.enter_context(program(*command, **more))
        wait(claiming.listens, memory / "log")
        claiming.meet()
        wait(lambda: b"published" in (memory / "log").read_bytes(), memory / "log")
        yield {"driver": claiming.plugins / "pyvgpu.io" / "dra.sock", "nothing": nothing}


def wait(true: Callable[[], bool], log: Path) -> None:
    """Wait until something is true; show the *log* on timeout."""
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)


def _kubeconfig(server: str) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def _claim(number: int) -> dra_pb2.Claim:
    name = f"claim-{number}"
    return dra_pb2.Claim(namespace="team", uid=name, name=name)


def _prepare(stub: dra_pb2_grpc.DRAPluginStub, number: int) -> float:
    """Return how long a claim takes, seconds."""
    request = dra_pb2.NodePrepareResourcesRequest(claims=[_claim(number)])
    begun = time.perf_counter()
    answer = stub.NodePrepareResources(request, timeout=SECONDS)
    took = time.perf_counter() - begun
    for claim in answer.claims.values():
        assert not claim.error, claim.error
    return took


def _unprepare(stub: dra_pb2_grpc.DRAPluginStub, number: int) -> None:
    request = dra_pb2.NodeUnprepareResourcesRequest(claims=[_claim(number)])
    stub.NodeUnprepareResources(request, timeout=SECONDS)


def measure(*, quick: bool) -> dict[str, Any]:
    """Measure both alternately, with new claims each time."""
    one: dict[str, list[float]] = {"driver": [], "nothing": []}
    many: dict[str, list[float]] = {"driver": [], "nothing": []}
    with sockets() as there, contextlib.ExitStack() as stack:
        stubs = {
            side: [
                dra_pb2_grpc.DRAPluginStub(stack.enter_context(grpc_socket.channel(samples)))
                for _ in range(AT_ONCE)
            ]
            for side, samples in there.items()
        }
        number = 0
        for _ in range(60 if quick else 400):
            number += 1
            for side, (stub, *_) in stubs.items():
                one[side].append(_prepare(stub, number))
            _unprepare(stubs["driver"][0], number)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in range(5 if quick else 40):
                numbers = range(number + 1, number + 1 + AT_ONCE)
                number += AT_ONCE
                for side, own in stubs.items():
                    many[side].append(max(pool.map(_prepare, own, numbers)))
                for size in numbers:
                    _unprepare(stubs["driver"][0], size)
    return {"one": one, "many": many}


def main() -> int:
    """Measure, show, record; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="roughly, nothing recorded")
    options = parser.parse_args()
    record = host.stamped(measure(quick=options.quick))
    code = goals.say(claimstable.figures(record))
    if not options.quick:
        host.keep(record, "claims", samples=("one",))
    return code


if __name__ == "__main__":
    sys.exit(main())
