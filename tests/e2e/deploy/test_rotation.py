"""No admission fails while the webhook's certificates and replicas change."""

import contextlib
import datetime
import threading
import urllib.request

import gpu_pods
import pytest
import rig
import shipped as made
import sidecars

from pyvgpu.controller.certs import certificates, serving_certificate, upkeep
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400), pytest.mark.row(20)]

LEAST = 20  # pods that each thread creates
EXPIRY = "pyvgpu_webhook_certificate_expiry_seconds"


@pytest.fixture
def fails_closed(shipped):
    with made.failing_closed(shipped):
        yield


@contextlib.contextmanager
def load(space):
    """Create pods with a share continuously; check that the webhook mutated and validated each."""
    stop = threading.Event()
    wrong, counts = [], []

    def work():
        connection = rig.as_admin(space.name).server
        count = 0
        while count < LEAST or not stop.is_set():
            share = gpu_pods.container("main", 50, 8)["resources"]
            main = rig.container("main", "", resources=share)
            pod = rig.pod("dry", main, sidecars.sidecar(rig.RUNS))
            try:
                answered = connection.call("POST", space.path("pods"), {"dryRun": "All"}, pod)
                if answered["spec"]["containers"][1]["command"][0] != "$(START_COMMAND_0)":
                    wrong.append("a pod was not changed")
            except apiserver.ServerError as exc:
                wrong.append(str(exc))
            count += 1
            stop.wait(0.02)
        counts.append(count)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    print(sum(counts), "pods")
    assert not wrong


def expiries(shipped):
    """Return the expiry times of the replicas' certificates."""
    found = []
    for pod in made.webhooks(shipped):
        with urllib.request.urlopen(f"http://{pod['status']['podIP']}:9472/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found += [float(line.split()[1]) for line in lines if line.startswith(EXPIRY + " ")]
    return found


def test_certificate_is_renewed_under_load(space, shipped, fails_closed):
    now = datetime.datetime.now(datetime.UTC)
    secret = shipped.server.call("GET", made.PLACE.secret)
    served = serving_certificate.read_bundle(secret)
    begun = now - 2 * certificates.LIFE / 3 - datetime.timedelta(days=1)
    wanted = certificates.CertificateSpec((made.PLACE.host,))
    old = certificates.make(wanted, begun, served)
    before = max(expiries(shipped))
    with load(space):
        serving_certificate.keep(
            shipped.server, made.PLACE, secret, old
        )  # 2/3 of its lifetime is over
        pause = threading.Event()
        for _ in range(2 * upkeep.INTERVAL_SECONDS):
            pause.wait(1)
            if min(expiries(shipped)) > before:
                break
    assert len(set(expiries(shipped))) == 1
    assert min(expiries(shipped)) > before


@pytest.mark.alone
def test_replicas_are_replaced_under_load(space, shipped, fails_closed):
    with load(space):
        made.kubectl("rollout", "restart", "deployment/webhook")
        made.roll_out(shipped)
