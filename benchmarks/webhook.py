"""`make bench-webhook`: latency of the webhook, over HTTPS with the API server's requests.

One process of `pyvgpu webhook` uses a small API server with 5,000 nodes of 8 devices each, some of
which keep publishing their devices again. Over persistent connections, one and four at a time, it
gets requests for pods with a share, with devices and sidecars, and very large ones.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import controllertable  # noqa: E402
import goals  # noqa: E402
import gpu_pods as gpu  # noqa: E402
import host  # noqa: E402
import percentiles  # noqa: E402
import pod_objects  # noqa: E402
import runner  # noqa: E402
import sidecartable  # noqa: E402
import small_api  # noqa: E402

from pyvgpu.allocator import annotations, datatypes  # noqa: E402
from pyvgpu.cli import webhook  # noqa: E402
from pyvgpu.controller.certs import serving_certificate  # noqa: E402

PLACE = serving_certificate.ServerObjects("pyvgpu", webhook.NAME)
NODES, DEVICES = 5000, 8
CHANGES_A_SECOND = 20
GIB = 1 << 30


def node(number: int) -> dict[str, Any]:
    """Return a node whose agent has published its devices."""
    size = (16, 40, 80)[number % 3] * GIB
    devices = tuple(
        datatypes.NodeDevice(f"GPU-{number}-{index}", index, size, f"model {number % 3}")
        for index in range(DEVICES)
    )
    published = annotations.publish(annotations.Published(256 << 20, devices))
    return {
        "metadata": {"name": f"n{number}", "annotations": {"pyvgpu.io/node-devices": published}},
        "status": {"nodeInfo": {"kubeletVersion": "v1.36.3"}},
    }


def pods() -> dict[str, dict[str, Any]]:
    """Return pods for the requests, by their names in the record."""
    share = gpu.pod(gpu.container("main", 50), restartPolicy="Never")
    sidecar = {
        "name": "log",
        "image": "a:1",
        "command": ["/opt/log", "--of", "$(POD)"],
        "env": [{"name": "SIDECAR_TERMINATION", "value": "true"}],
    }
    both = gpu.pod(gpu.container("main", 50, 8), sidecar, restartPolicy="Never")
    env = [{"name": f"V{number}", "value": "x" * 100} for number in range(100)]
    many = [gpu.container(f"c{number}", 1, 4) | {"env": env} for number in range(20)]
    large = gpu.pod(*many, sidecar, annotations={"note": "x" * 100_000}, restartPolicy="Never")
    return {"a share": share, "a share and a sidecar": both, controllertable.LARGE: large}


class Client:
    """A connection as the API server keeps it."""

    def __init__(self, port: int, authorities: str) -> None:
        trust = ssl.create_default_context(cadata=authorities)
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._made = http.client.HTTPConnection(PLACE.host)
        self._made.sock = trust.wrap_socket(plain, server_hostname=PLACE.host)

    def ask(self, path: str, body: bytes) -> float:
        """Return the seconds from the question to its answer."""
        begun = time.perf_counter()
        self._made.request("POST", path, body, {"Content-Type": "application/json"})
        answer = self._made.getresponse()
        content = answer.read()
        taken = time.perf_counter() - begun
        if answer.status != 200 or not json.loads(content)["response"]["allowed"]:
            raise SystemExit(f"{path}: {content.decode()[:300]}")
        return taken


def changed(pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as it is validated: with memory for its shares."""
    done = json.loads(json.dumps(pod))
    for container in done["spec"]["containers"]:
        for amounts in container.get("resources", {}).values():
            amounts.setdefault("pyvgpu.io/vmemory", "8")
    return done


def measure(port: int, authorities: str, count: int, at_once: int) -> dict[str, list[float]]:
    """Return the seconds of *count* answers to each question, asked by so many at once."""
    found: dict[str, list[float]] = {}
    for title, pod in pods().items():
        complete = changed(pod)
        for path, whole in (
            (webhook.DEVICES, pod),
            (webhook.VALIDATE, complete),
            (webhook.SIDECARS, pod),
        ):
            body = json.dumps(pod_objects.asked(whole)).encode()
            rows: list[float] = []

            def work(path: str = path, body: bytes = body, rows: list[float] = rows) -> None:
                client = Client(port, authorities)
                for _ in range(20):
                    client.ask(path, body)
                rows += [client.ask(path, body) for _ in range(count // at_once)]

            threads = [threading.Thread(target=work) for _ in range(at_once)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            found[f"{path}, {title}, {at_once} at once"] = rows
    return found


def run(count: int, nodes: int) -> dict[str, Any]:
    """Start everything, and measure: the answers, and the memory at its most."""
    with small_api.running() as (api, connection), tempfile.TemporaryDirectory() as folder:
        api.put(PLACE.secret, {"metadata": {"name": PLACE.name}})
        for uid, path in (("m", PLACE.mutating), ("v", PLACE.validating)):
            hooks = [{"name": "a.io", "clientConfig": {}}]
            api.put(path, {"metadata": {"uid": uid}, "webhooks": hooks})
        small_api.FEW = 500  # objects on a page, as the API server has it
        for number in range(nodes):
            api.put(f"/api/v1/nodes/n{number}", node(number))
        config = Path(folder) / "kubeconfig"
        small_api.write_kubeconfig(config, connection)
        port, health = host.free_port(), host.free_port()
        command = [runner.PYVGPU, "webhook", "--kubeconfig", config, "--namespace", "pyvgpu"]
        where = ["--serve", f"127.0.0.1:{port}", "--listen", str(health)]
        process = subprocess.Popen([*command, *where])
        stop = threading.Event()

        def publish() -> None:
            for number in range(1 << 30):
                api.put(f"/api/v1/nodes/n{number % nodes}", node(number % nodes))
                if stop.wait(1 / CHANGES_A_SECOND):
                    return

        try:
            until_ready(health)
            threading.Thread(target=publish, daemon=True).start()
            hook = api.read(PLACE.mutating)["webhooks"][0]
            authorities = base64.b64decode(hook["clientConfig"]["caBundle"]).decode()
            answers = {
                key: rows
                for at_once in (1, 4)
                for key, rows in measure(port, authorities, count, at_once).items()
            }
            return {"answers": answers, "resident_mib": most_memory(process.pid) / 1024}
        finally:
            stop.set()
            process.kill()
            process.wait()


def most_memory(pid: int) -> int:
    """Return the KiB that a process had in memory at its most."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def until_ready(port: int) -> None:
    """Wait until the webhook is ready."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            client.request("GET", "/readyz")
            if client.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            client.close()
        time.sleep(0.2)
    raise SystemExit("the webhook did not become ready")


def unevaluated(record: dict[str, Any]) -> list[sidecartable.Line]:
    """Return all answers of a record: what there is to see beside the figures with goals."""
    found = []
    for title, rows in record["answers"].items():
        middle, slow = (1e3 * percentiles.percentile(rows, part) for part in (50, 99))
        found.append(sidecartable.Line(title, f"p50 {middle:.2f}, p99 {slow:.2f} ms"))
    return found


def main() -> int:
    """Measure, record, show; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--answers", type=int, default=2000, metavar="N", help="of each kind")
    parser.add_argument("--no-record", action="store_true", help="write no record")
    parser.add_argument("--quick", action="store_true", help="few nodes and answers, no record")
    options = parser.parse_args()
    nodes, answers = (20, 20) if options.quick else (NODES, options.answers)
    record = host.stamped({"nodes": nodes, **run(answers, nodes)})
    if not (options.no_record or options.quick):
        host.keep(record, "webhook", samples=("answers",))
    print(sidecartable.table(unevaluated(record)))
    return goals.say(controllertable.of_webhook(record))


if __name__ == "__main__":
    sys.exit(main())
