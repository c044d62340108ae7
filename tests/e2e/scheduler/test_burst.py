"""Bursts of pods on nodes without kubelets: every pod is bound, no device is overcommitted."""

import random
import signal
import threading
import time

import extenders
import pytest
import waiting

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

NODES = [f"burst-{number}" for number in range(12)]


def shares(count):
    """Return pods of three sizes; 60 of them fill 20 of the 24 devices."""
    sizes = [(40, 6), (40, 6), (20, 4)]
    return [extenders.pod(f"p-{n}", *sizes[n % 3]) for n in range(count)]


def test_every_pod_of_a_burst_gets_its_share(space, extender):
    with extenders.fake_nodes(*NODES):
        extenders.create_all(space, shares(60))
        extenders.until_bound(space, 60)
        used = extenders.assert_not_overcommitted(space)
        assert sum(vcore for vcore, _ in used.values()) == 20 * 100
        until_it_knows_what_the_api_server_has(extender)


def until_it_knows_what_the_api_server_has(extender):
    """Wait until the scheduler has compared its cache twice more and found no difference."""
    compared = extender.figure("pyvgpu_scheduler_comparisons")
    waiting.wait_until(
        lambda: extender.figure("pyvgpu_scheduler_comparisons") >= compared + 2
        and extender.figure("pyvgpu_scheduler_drift") == 0,
        60,
        lambda: extender.log.read_text()[-2000:],
    )


def kill(extender):
    extender.stop(signal.SIGKILL)
    extender.begin()


KILLS = {
    "the extender": kill,
    "the API server": lambda _: extenders.restart("kube-apiserver"),
    "etcd": lambda _: extenders.restart("etcd"),
    "kube-scheduler": lambda extender: extenders.restart_scheduler(extender.config),
}


@pytest.mark.alone
def test_burst_is_bound_without_overcommitment_despite_kills(space, extender):
    """In a random order, which is printed if the test fails."""
    extender.undisturbed = False
    order = random.sample(list(KILLS), len(KILLS))
    print("killed:", order)
    with extenders.fake_nodes(*NODES):
        creating = threading.Thread(target=extenders.create_slowly, args=(space, shares(60), 0.1))
        creating.start()
        for name in order:
            time.sleep(1)
            KILLS[name](extender)
        creating.join()
        extender.until_leading()
        extenders.until_bound(space, 60, 150)
        used = extenders.assert_not_overcommitted(space)
        assert sum(vcore for vcore, _ in used.values()) == 20 * 100
