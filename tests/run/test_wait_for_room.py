"""The wait of an oversubscribed run for room, while the reservations are busy."""

import os

import pytest

from pyvgpu import errors, oversubscription, quota
from pyvgpu.device import Device
from pyvgpu.machine import holders, reservations
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
