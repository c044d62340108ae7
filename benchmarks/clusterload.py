"""`make bench-cluster-load`: load of a whole cluster's agents and controllers on an API server.

A real kube-apiserver with etcd has 500 nodes with eight devices each and 10,000 pods with shares,
as after days of work. Four processes have the API clients of all nodes' agents and node parts of
sidecars; scheduler, webhook, sidecar controller and status page are our real programs. Measured
are the requests and bytes of the API server and its CPU time: while the agents start, idle, while
pods come and go, and while the scheduler compares its cache with the API server, with the latency
of its filter beside each. Everything shares this machine's cores. The record goes to
benchmarks/results/cluster-load.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import http.client
import itertools
import json
import random
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import clustertable  # noqa: E402
import controlplane  # noqa: E402
import goals  # noqa: E402
import host  # noqa: E402
import https_server  # noqa: E402
import runner  # noqa: E402
import schedulerworld as world  # noqa: E402

from pyvgpu.allocator import annotations, datatypes  # noqa: E402
from pyvgpu.kube import apiserver  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from controlplane import ControlPlane

NODES, PODS = 500, 10_000
WORKERS = 4  # processes with the agents' clients
NAMESPACES = ("pyvgpu", "pyvgpu-agent", *(f"team-{number}" for number in range(50)))
PROGRAMS = ("scheduler", "webhook", "sidecar-controller", "status-page")
_READY_SECONDS = 600.0
_FILTERS_PER_SECOND = 10.0
_CHANGES_PER_SECOND = 10.0
_NOW = {"gracePeriodSeconds": 0}
_SHAPES = ((10, 4), (20, 8), (25, 16), (50, 30), (60, 60), (1, 70), (100, 80))


class Filling:
    """Creates the objects, and replaces pods."""

    def __init__(self, api: apiserver.ApiServer, nodes: int, pods: int) -> None:
        self._api = api
        self._nodes, self._pods = nodes, pods
        self._known: list[tuple[str, str]] = []  # namespace and name
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def fill(self) -> None:
        """Create namespaces, nodes and pods."""
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(self._namespace, NAMESPACES))
            list(pool.map(self._node, range(self._nodes)))
            list(pool.map(self._pod, world.pods(self._nodes, self._pods)))

    def replace(self) -> None:
        """Delete a pod, and create another in its place."""
        with self._lock:
            namespace, name = self._known.pop(random.randrange(len(self._known)))
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        pod = self._api.call("GET", path)
        self._api.call("DELETE", path, body=_NOW)
        kept = ("name", "namespace", "labels", "annotations")
        meta = {field: pod["metadata"][field] for field in kept}
        self._pod(
            {
                "metadata": {**meta, "name": f"worker-new-{next(self._numbers)}"},
                "spec": pod["spec"],
            }
        )

    def _namespace(self, name: str) -> None:
        self._api.call("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})

    def _node(self, number: int) -> None:
        node = world.node(number)
        del node["metadata"]["uid"]
        room = {"cpu": "128", "memory": "1Ti", "pods": "500", "pyvgpu.io/vcore": "800",
                "pyvgpu.io/vmemory": "2560"}  # fmt: skip
        node["status"] = {"capacity": room, "allocatable": room}
        self._api.call("POST", "/api/v1/nodes", body=node)

    def _pod(self, pod: dict[str, Any]) -> None:
        """Create a bound pod, then seal its choice for the uid that it has got."""
        meta, spec = pod["metadata"], pod["spec"]
        text = meta["annotations"].pop("pyvgpu.io/devices")
        spec = {**spec, "volumes": [{"name": "token", "emptyDir": {}}], "tolerations": []}
        for container in spec["containers"]:
            for mount in container.get("volumeMounts", ()):
                mount["mountPath"] = "/data"
        folder = f"/api/v1/namespaces/{meta['namespace']}/pods"
        meta = {key: value for key, value in meta.items() if key in ("name", "labels")}
        made = self._api.call("POST", folder, body={"metadata": meta, "spec": spec})
        uid, name = made["metadata"]["uid"], meta["name"]
        old = json.loads(text)
        shares = {
            container: tuple(
                datatypes.NodeShare(share["uuid"], share["vcore"], share["bytes"])
                for share in found
            )
            for container, found in old["containers"].items()
        }
        choice = annotations.DeviceChoice(uid, spec["nodeName"], shares)
        sealed = {"pyvgpu.io/devices": annotations.seal(choice, world.KEY)}
        body = {"metadata": {"annotations": sealed}}
        self._api.call("PATCH", f"{folder}/{name}", body=body, kind=apiserver.MERGE_PATCH)
        with self._lock:
            self._known.append((made["metadata"]["namespace"], name))


class Program:
    """One of our programs."""

    def __init__(self, plane: ControlPlane, name: str, *options: str) -> None:
        self.log = plane.kubeconfig.with_name(f"{name}.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*(runner.PYVGPU, name, "--kubeconfig", plane.kubeconfig), *options],
                stdout=log,
                stderr=log,
            )

    def stop(self) -> None:
        """Stop it."""
        self.process.terminate()
        self.process.wait(60)


class Filters:
    """Calls the extender's filter at a steady pace from a thread, and keeps the latencies."""

    def __init__(self, authorities: str, nodes: int) -> None:
        self._nodes = [world.name_of(number) for number in range(nodes)]
        self._trust = ssl.create_default_context(cadata=authorities)
        self._trust.check_hostname = False
        self.seconds: list[float] = []

    @contextlib.contextmanager
    def calling(self) -> Iterator[list[float]]:
        """Call it within the block; yield the list of seconds."""
        stop = threading.Event()
        seconds: list[float] = []
        thread = threading.Thread(target=self._call, args=(stop, seconds))
        thread.start()
        try:
            yield seconds
        finally:
            stop.set()
            thread.join()

    def _call(self, stop: threading.Event, seconds: list[float]) -> None:
        draw = random.Random(1)
        server = http.client.HTTPSConnection(
            "127.0.0.1", ports("scheduler")[0], context=self._trust
        )
        number = 0
        while not stop.wait(1 / _FILTERS_PER_SECOND):
            number += 1
            draw.shuffle(self._nodes)
            pod = world.pod(20_000_000 + number, *_SHAPES[number % len(_SHAPES)])
            body = json.dumps({"Pod": pod, "Nodes": None, "NodeNames": self._nodes})
            begun = time.perf_counter()
            server.request("POST", "/scheduler/filter", body, https_server.JSON)
            answer = server.getresponse()
            content = answer.read()
            seconds.append(time.perf_counter() - begun)
            if answer.status != 200:
                raise SystemExit(f"filter: {answer.status} {content.decode()}")


@contextlib.contextmanager
def counted(plane: ControlPlane, phase: dict[str, float]) -> Iterator[None]:
    """Measure the API server during the block, into *phase*."""
    before, cpu, begun = plane.sums(), plane.cpu_seconds(), time.monotonic()
    yield
    phase["seconds"] = time.monotonic() - begun
    phase["cpu_s"] = plane.cpu_seconds() - cpu
    for name, value in plane.sums().items():
        phase[name] = value - before[name]


def start_agents(plane: ControlPlane, nodes: int, opened: contextlib.ExitStack) -> None:
    """Start the agents' clients, and wait until they have read their lists."""
    each = nodes // WORKERS
    script = Path(__file__).with_name("clusterload_agents.py")
    workers = []
    for number in range(WORKERS):
        count = each if number < WORKERS - 1 else nodes - each * (WORKERS - 1)
        command = [sys.executable, script, plane.kubeconfig, str(number * each), str(count)]
        worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        opened.callback(worker.wait, 60)
        opened.callback(worker.kill)
        workers.append(worker)
    for worker in workers:
        assert worker.stdout is not None
        if worker.stdout.readline() != "ready\n":
            raise SystemExit("a process with the agents' clients has ended")


@functools.cache
def ports(_name: str) -> tuple[int, int]:
    """Return the ports of one of our programs: of HTTPS, and of health and metrics."""
    return host.free_port(), host.free_port()


def start(plane: ControlPlane, opened: contextlib.ExitStack, name: str, *options: str) -> Program:
    """Start one of our programs, until *opened* is closed."""
    https, health = ports(name)
    served = () if name == "sidecar-controller" else ("--serve", f"127.0.0.1:{https}")
    listen = ("--listen", f"127.0.0.1:{health}")
    program = Program(plane, name, "--namespace", "pyvgpu", *served, *listen, *options)
    opened.callback(program.stop)
    return program


def start_scheduler(plane: ControlPlane, opened: contextlib.ExitStack, resync: int) -> Program:
    """Start the scheduler, and wait until it answers."""
    options = ("--pod", "scheduler-1", "--any-client", "--resync", str(resync))
    scheduler = start(plane, opened, "scheduler", *options)
    _until(lambda: "ready to answer:" in scheduler.log.read_text(), scheduler)
    return scheduler


def _until(holds: Callable[[], bool], program: Program) -> None:
    end = time.monotonic() + _READY_SECONDS
    while not holds():
        if program.process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"{program.log}: {program.log.read_text()[-2000:]}")
        time.sleep(0.2)


def prepare(plane: ControlPlane) -> None:
    """Create what the scheduler needs: its pod, and its key, which sealed the choices."""
    import base64

    call = plane.api.call
    pods = "/api/v1/namespaces/pyvgpu/pods"
    meta = {"name": "scheduler-1", "labels": {"app": "scheduler"}}
    spec = {"containers": [{"name": "a", "image": "a"}]}
    call("POST", pods, body={"metadata": meta, "spec": spec})
    key = {"key": base64.b64encode(world.KEY).decode()}
    secret = {"metadata": {"name": "pyvgpu-placement"}, "data": key}
    call("POST", "/api/v1/namespaces/pyvgpu-agent/secrets", body=secret)


def authorities(plane: ControlPlane) -> str:
    """Return the CA of the scheduler's certificate."""
    import base64

    path = "/api/v1/namespaces/pyvgpu/secrets/pyvgpu-scheduler"
    return base64.b64decode(plane.api.call("GET", path)["data"]["ca.crt"]).decode()


def churn(filling: Filling, seconds: float) -> int:
    """Replace pods at a steady pace; return how many."""
    end, count = time.monotonic() + seconds, 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done = []
        while time.monotonic() < end:
            done.append(pool.submit(filling.replace))
            count += 1
            time.sleep(1 / _CHANGES_PER_SECOND)
        for one in done:
            one.result()
    return count


def measure(nodes: int, pods: int, seconds: float) -> dict[str, Any]:
    """Return the figures."""
    record: dict[str, Any] = {"nodes": nodes, "pods": pods}
    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="pyvgpu-bench-")))
        plane = opened.enter_context(controlplane.running(folder))
        filling = Filling(plane.api, nodes, pods)
        say = functools.partial(print, flush=True, file=sys.stderr)
        say(f"creating {nodes} nodes and {pods} pods")
        filling.fill()
        prepare(plane)
        say("measuring: the API server alone")
        phase = record["alone"] = {}
        with counted(plane, phase):
            time.sleep(min(seconds, 60.0))
        phase = record["agents_start"] = {}
        say("starting the agents' clients")
        with counted(plane, phase):
            start_agents(plane, nodes, opened)
        say("starting the controllers")
        phase = record["controllers_start"] = {}
        programs = {}
        with counted(plane, phase):
            programs["scheduler"] = start_scheduler(plane, opened, 86_400)
            for name in PROGRAMS[1:]:
                programs[name] = start(plane, opened, name)
            time.sleep(min(seconds, 30.0))
        filters = Filters(authorities(plane), nodes)
        for name, act in (
            ("idle", lambda: time.sleep(seconds)),
            ("churn", lambda: churn(filling, seconds)),
        ):
            say(f"measuring: {name}")
            record[name] = _phase(plane, filters, act)
        programs["scheduler"].stop()
        programs["scheduler"] = start_scheduler(plane, opened, 1)
        say("measuring: comparison")
        record["comparison"] = _phase(plane, filters, lambda: time.sleep(seconds))
        record["memory_mib"] = {
            name: controlplane.resident_mib(program.process.pid)
            for name, program in programs.items()
        } | {"kube-apiserver": controlplane.resident_mib(plane.process.pid)}
    return record


def _phase(plane: ControlPlane, filters: Filters, act: Callable[[], object]) -> dict[str, float]:
    phase: dict[str, float] = {}
    with filters.calling() as taken, counted(plane, phase):
        begun = len(taken)
        phase["changes"] = float(act() or 0)  # type: ignore[arg-type]
    counted_seconds = sorted(taken[begun:])
    phase["filters"] = len(counted_seconds)
    for part in (50, 99):
        at = len(counted_seconds) * part // 100
        phase[f"filter_p{part}_ms"] = 1e3 * counted_seconds[at]
    return phase


def main() -> int:
    """Measure, show, record; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--pods", type=int, default=PODS)
    parser.add_argument("--seconds", type=float, default=120.0, help="of each phase")
    parser.add_argument("--quick", action="store_true", help="few nodes and pods, no record")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.pods, options.seconds = 8, 20, 2.0
    record = host.stamped(measure(options.nodes, options.pods, options.seconds))
    code = goals.say(clustertable.figures(record))
    print(json.dumps({key: value for key, value in record.items() if key != "host"}, indent=1))
    if not options.quick:
        host.keep(record, "cluster-load")
    return code


if __name__ == "__main__":
    sys.exit(main())
