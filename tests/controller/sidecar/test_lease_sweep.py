"""Leases of nodes that do not exist any more are deleted."""

import pytest

from pyvgpu.controller.sidecar import nodes, shell
from pyvgpu.kube import leases, rate_limit

FOLDER = leases.path("pyvgpu")


def lease(name):
    return {"metadata": {"name": name, "uid": f"uid-of-{name}"}, "spec": {"holderIdentity": "h"}}


@pytest.fixture
def sweep(small):
    api, connection = small
    names = ("pyvgpu-sidecar-here", "pyvgpu-sidecar-gone", leases.CONTROLLER, "other")
    for name in names:
        api.put(f"{FOLDER}/{name}", lease(name))

    def left(quiet, known, *, may_act=True):
        made = shell.LeaseSweep(connection, "pyvgpu", lambda: may_act, rate_limit.Pace(1000.0))
        made.sweep(quiet, known)
        return {found["metadata"]["name"] for found in api.under(FOLDER)}

    left.all = set(names)
    return left


def test_only_the_lease_of_a_node_that_is_gone_is_deleted(sweep):
    assert sweep(sweep.all, ["here"]) == sweep.all - {"pyvgpu-sidecar-gone"}


def test_a_lease_that_is_renewed_stays(sweep):
    """Its node part runs, although the node is not seen yet."""
    assert sweep(sweep.all - {"pyvgpu-sidecar-gone"}, ["here"]) == sweep.all


def test_a_standby_deletes_nothing(sweep):
    assert sweep(sweep.all, [], may_act=False) == sweep.all


def test_a_lease_that_is_deleted_already_is_no_failure(sweep):
    assert sweep({"pyvgpu-sidecar-unknown"}, ["here"]) == sweep.all


def test_leases_are_quiet_unless_a_renewal_was_seen_lately():
    beats = nodes.Beats()
    for name in ("never", "once", "late"):
        beats.observe(name, "1", 0.0)
    beats.observe("once", "2", 10.0)
    beats.observe("late", "2", 100.0)
    assert beats.quiet(60.0, 120.0) == ["never", "once"]
    beats.observe("never", None, 120.0)
    assert beats.quiet(60.0, 120.0) == ["once"]
