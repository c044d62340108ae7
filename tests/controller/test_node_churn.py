"""Nodes that come and go by the thousand leave nothing behind, in the API or in memory."""

import gc
import threading
import types

import pytest
import status_cluster
import waiting

from pyvgpu.controller.sidecar import controller_settings, meters, shell
from pyvgpu.controller.status import cluster_state
from pyvgpu.kube import leases

FOLDER = leases.path("pyvgpu")
STAY = tuple(f"stays-{number}" for number in range(20))
CODE = (types.ModuleType, types.FunctionType, type, types.FrameType, types.CodeType)

pytestmark = pytest.mark.slow


def wave(number, size):
    return [f"goes-{number}-{at}" for at in range(size)]


def names_in(root):
    """Return the texts that name a node of a wave and that *root* keeps alive."""
    seen, found, todo = set(), set(), [root]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, CODE):
            continue
        seen.add(id(one))
        if isinstance(one, str):
            if "goes-" in one:
                found.add(one)
        else:
            todo += gc.get_referents(one)
    return found


def test_leases_of_nodes_that_went_are_deleted(small, monkeypatch):
    monkeypatch.setattr(shell, "SWEEP_SECONDS", 0.1)
    monkeypatch.setattr(shell, "QUIET_SECONDS", 0.0)
    api, connection = small
    settings = controller_settings.SidecarSettings(sweep_seconds=0, writes_per_second=100_000)
    controller = shell.Controller(
        connection, "pyvgpu", settings, lambda: True, meters.ControllerMeter()
    )

    def put(node):
        api.put(f"/api/v1/nodes/{node}", {"metadata": {"name": node, "uid": node}})
        name = f"{leases.NODE}{node}"
        spec = {"holderIdentity": node, "renewTime": "2026-11-22T03:00:00.000000Z"}
        api.put(f"{FOLDER}/{name}", {"metadata": {"name": name, "uid": f"l-{node}"}, "spec": spec})

    for node in STAY:
        put(node)
    stop = threading.Event()
    thread = threading.Thread(target=controller.run, args=(stop,), daemon=True)
    thread.start()
    kept = {f"{leases.NODE}{node}" for node in STAY}
    try:
        for number in range(10):
            gone = wave(number, 100)
            for node in gone:
                put(node)
            waiting.wait_until(lambda: names_in(controller))
            for node in gone:
                api.delete(f"/api/v1/nodes/{node}")
            waiting.wait_until(
                lambda: {thing["metadata"]["name"] for thing in api.under(FOLDER)} == kept,
                seconds=120,
            )
        waiting.wait_until(lambda: not names_in(controller))
    finally:
        stop.set()
        api.close()
        thread.join()


def test_the_status_page_and_its_scheduler_cache_forget_nodes_that_went(monkeypatch):
    monkeypatch.setattr(cluster_state, "POLL_SECONDS", 0.05)
    api = status_cluster.StatusApi()
    for node in STAY:
        status_cluster.put_node(api, node)
        status_cluster.put_agent(api, node)
    with status_cluster.running(api, agents=False, settled=False) as shown:
        for number in range(10):
            gone = wave(number, 100)
            for node in gone:
                status_cluster.put_node(api, node)
                status_cluster.put_agent(api, node)
            waiting.wait_until(lambda: shown.nodes == len(STAY) + 100, seconds=60)
            assert names_in(shown)
            shown.document({"search": "goes"})
            for node in gone:
                api.delete(f"/api/v1/nodes/{node}")
                api.delete(f"/api/v1/namespaces/{status_cluster.AGENTS}/pods/agent-{node}")
            waiting.wait_until(lambda: shown.nodes == len(STAY), seconds=60)
        waiting.wait_until(lambda: not names_in(shown), found=lambda: sorted(names_in(shown))[:5])
