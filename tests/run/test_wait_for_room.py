"""The wait of an oversubscribed run for room, while the reservations are busy."""

import math
import os

import pytest

from pyvgpu import errors, oversubscription, quota
from pyvgpu.device import Device
from pyvgpu.machine import holders, reservations, run_tenants, tenant_record
from pyvgpu.run import oversubscriber

GIB = 1 << 30
DEVICE = Device("GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0", 0, "H100", 80 * GIB, 512 << 20)
REQUEST = holders.RunRequest(quota.Quota(10, 60 * GIB), (DEVICE,), "999.1")
TWICE = holders.OversubscribedRequest(2.0, oversubscription.MoveRules())


class Busy(reservations.Registries):
    """Registries whose lock another process holds at one of the calls."""

    fails_at = ""  # mark, or record

    def mark(self, made, suspension):
        if self.fails_at == "mark":
            self.fails_at = ""
            raise errors.UnavailableError("busy")
        super().mark(made, suspension)
        self.fails_at = self.fails_at and "frozen"

    def frozen(self):
        if self.fails_at == "frozen":
            self.fails_at = ""
            raise errors.UnavailableError("busy")
        return super().frozen()


def reserve(registries, name):
    holder = holders.Holder(name, "train", tree="/nowhere")
    return registries.reserve_oversubscribed(REQUEST, holder, ("train",), TWICE)


@pytest.mark.parametrize("call", ["", "mark", "record"])
def test_run_starts_although_its_start_could_not_be_recorded_at_once(tmp_path, call):
    registries = Busy(tmp_path / "root", tmp_path / "all")
    first, second = (reserve(registries, name) for name in "ab")
    os.close(first.quota)
    registries.fails_at = call
    assert oversubscriber.Oversubscriber(registries, lambda: second).wait_for_room(60) is None
    (found,) = registries.live()
    assert not found.limits.suspension.gated
    assert not found.record.is_new
    os.close(second.quota)


def test_no_run_waits_for_a_supervisor_that_was_stopped_before_it_decided_once(tmp_path):
    registries = reservations.Registries(tmp_path / "root", tmp_path / "all")
    first, second = (reserve(registries, name) for name in "ab")
    live = registries.live()
    later = tenant_record.now() + run_tenants.STALE_SECONDS + 1
    tenants = run_tenants.tenants_of(DEVICE.uuid, live)
    found = run_tenants.attended(tenants, second.run_id, live, later)
    refused = {tenant.key: tenant.refused_until for tenant in found}
    assert refused == {first.run_id: math.inf, second.run_id: 0}
    os.close(first.quota)
    os.close(second.quota)
