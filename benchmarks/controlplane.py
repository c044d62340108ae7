"""etcd and a kube-apiserver in a folder, without nodes: a real API server for load measurements.

Everything is allowed to the one token, and nothing else of a cluster runs: no controller, so nodes
without a kubelet stay as they are created.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = Path(os.environ.get("CLUSTER_BIN", "/var/tmp/pyvgpu-cluster/bin"))
_TOKEN = "of-a-benchmark"
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_START_SECONDS = 120.0


class ControlPlane:
    """A running API server."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.kubeconfig = folder / "kubeconfig"
        self.api = apiserver.connect(str(self.kubeconfig))
        self.process = process

    def cpu_seconds(self) -> float:
        """Return the CPU time of the API server until now."""
        return cpu_seconds(self.process.pid)

    def sums(self) -> dict[str, float]:
        """Return how many requests there were until now, and how many bytes were sent."""
        found = {"requests": 0.0, "bytes": 0.0, "events": 0.0}
        names = {
            "apiserver_request_total": "requests",
            "apiserver_response_sizes_sum": "bytes",
            "apiserver_watch_events_sizes_sum": "bytes",
            "apiserver_watch_events_total": "events",
        }
        for name, labels, value in _SAMPLE.findall(self.api.text("/metrics", seconds=60)):
            own = 'subresource="/metrics"' in labels or 'client="kube-apiserver' in labels
            if name in names and not own:
                found[names[name]] += float(value)
        return found


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


@contextlib.contextmanager
def running(folder: Path) -> Iterator[ControlPlane]:
    """Run etcd and an API server with their state in *folder*."""
    client, peer, secure = _ports(3)
    etcd = [
        *(
            PROGRAMS / "etcd",
            "--name",
            "one",
            "--data-dir",
            folder / "etcd",
            "--log-level",
            "error",
        ),
        *("--unsafe-no-fsync", "--quota-backend-bytes", str(8 << 30)),
        *("--listen-client-urls", f"http://127.0.0.1:{client}"),
        *("--advertise-client-urls", f"http://127.0.0.1:{client}"),
        *("--listen-peer-urls", f"http://127.0.0.1:{peer}"),
        *("--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}"),
        *("--initial-cluster", f"one=http://127.0.0.1:{peer}"),
    ]
    key = folder / "accounts.key"
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    tokens = folder / "tokens.csv"
    tokens.write_text(f'{_TOKEN},admin,1,"system:masters"\n')
    server = [
        *(PROGRAMS / "kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{client}"),
        *("--cert-dir", folder / "certs", "--secure-port", str(secure)),
        *("--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"),
        *("--service-account-issuer", "https://of.a.benchmark"),
        *("--service-account-signing-key-file", key, "--service-account-key-file", key),
        *("--token-auth-file", tokens, "--authorization-mode", "AlwaysAllow"),
        *("--disable-admission-plugins", "ServiceAccount"),
        *("--service-cluster-ip-range", "10.96.0.0/24", "--endpoint-reconciler-type", "none"),
    ]
    with contextlib.ExitStack() as opened:
        for command in (etcd, server):
            log = opened.enter_context((folder / f"{Path(command[0]).name}.log").open("wb"))
            process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=log)
            opened.callback(process.wait, 60)
            opened.callback(process.terminate)
        certificate = folder / "certs/apiserver.crt"
        _wait(process, certificate)
        (folder / "kubeconfig").write_text(
            json.dumps(_config(f"https://127.0.0.1:{secure}", certificate))
        )
        plane = ControlPlane(folder, process)
        _wait(process, plane.api)
        yield plane


def _wait(process: subprocess.Popen[bytes], for_what: Path | apiserver.ApiServer) -> None:
    """Wait until a file exists, or the server is ready."""
    end = time.monotonic() + _START_SECONDS
    while True:
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"kube-apiserver did not start: see its log, {process.args!r}")
        if isinstance(for_what, Path):
            if for_what.exists():
                return
        else:
            with contextlib.suppress(apiserver.ServerError):
                for_what.text("/readyz")
                return
        time.sleep(0.2)


def _ports(count: int) -> list[int]:
    with contextlib.ExitStack() as opened:
        sockets = [
            opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [found.getsockname()[1] for found in sockets]


def _config(server: str, certificate: Path) -> dict[str, Any]:
    where = {"server": server, "certificate-authority": str(certificate)}
    return {
        "clusters": [{"name": "c", "cluster": where}],
        "users": [{"name": "u", "user": {"token": _TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
