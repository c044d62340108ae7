"""Agents killed at any step, one after the other: the files match the acknowledged state."""

import random

import dying
import granted
import pytest
from granted import GIB, share_of

from pyvgpu import region
from pyvgpu.allocator import datatypes, placement_explanation, pod_placement
from pyvgpu.deviceplugin.containers import store
from pyvgpu.deviceplugin.grants import grant_log

SIZES = (10, 20, 30, 40, 50, 70)


class Said:
    """A log of answers, each written to the file before it takes effect."""

    def __init__(self, path):
        self.path = path

    def write(self, word, grant_id):
        with self.path.open("a") as file:
            file.write(f"{word} {grant_id}\n")

    def granted(self):
        """Return the ids that were granted and not ended, and those whose end has begun."""
        live, ending = set(), set()
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            word, grant_id = line.split()
            if word == "granted":
                live.add(grant_id)
            else:
                live.discard(grant_id)
                ending.add(grant_id)
        return live, ending


def work(base, machine, driver, seed):
    """Run as an agent: recover, then make and end grants at random until killed."""
    draw = random.Random(seed)
    said = Said(base / "said")
    devices = tuple(
        datatypes.NodeDevice(one.uuid, index, one.memory_bytes)
        for index, one in enumerate(machine.devices)
    )
    with grant_log.Checkpoint(base, "node") as kept:
        places = store.GrantStore(base / "grants", base / "cdi")
        recover(kept, places, driver)
        for turn in range(6):
            held = tuple(
                datatypes.Holding(share, grant.label)
                for grant in kept.grants.values()
                for share in grant.shares
            )
            if kept.grants and draw.random() < 0.4:
                grant_id = draw.choice(sorted(kept.grants))
                said.write("ended", grant_id)
                places.remove(grant_id)
                kept.drop(grant_id)
                continue
            need = datatypes.ContainerNeed(draw.choice(SIZES), 2 * GIB)
            pod = datatypes.Pod((datatypes.Container("main", need),))
            try:
                shares = pod_placement.place(datatypes.NodeDevices(devices, held), pod)["main"]
            except placement_explanation.Refused:
                continue
            grant = granted.grant_of(*shares, number=(seed << 8) + turn)
            kept.put(grant)
            places.make(grant, driver)
            said.write("granted", grant.id)


def recover(kept, places, driver):
    places.collect(lambda: set(kept.grants))
    for grant in kept.grants.values():
        places.make(grant, driver)


def limits(places, grant_id):
    with (places.path(grant_id) / "quota").open("rb") as file:
        return region.read_limits(file.fileno()).devices


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_state_is_consistent_after_repeated_kills(tmp_path, machine, driver, seed):
    draw = random.Random(seed)
    died = 0
    for life in range(40):
        step = draw.randrange(1, 250)
        died += dying.die_at(
            step, lambda life=life: work(tmp_path, machine, driver, 1 + 100 * seed + life)
        )
        live, ending = Said(tmp_path / "said").granted()
        with grant_log.Checkpoint(tmp_path, "node") as kept:
            assert not kept.trouble
            assert live <= set(kept.grants)  # no acknowledged grant is lost
            places = store.GrantStore(tmp_path / "grants", tmp_path / "cdi")
            for grant_id in ending & set(kept.grants):  # as kubelet would say again
                places.remove(grant_id)
                kept.drop(grant_id)
            recover(kept, places, driver)
            assert places.present() == set(kept.grants)
            check(machine, places, kept.grants)
            places.close()
    assert died > 10


def check(machine, places, held):
    """Check that each quota matches its grant, and that no share is granted twice."""
    sums = {one.uuid: [0, 0] for one in machine.devices}
    for grant in held.values():
        (found,) = limits(places, grant.id)
        assert (found.uuid, found.vcore, found.vmemory) == (
            grant.shares[0].uuid,
            grant.shares[0].vcore,
            grant.shares[0].vmemory,
        )
        sums[found.uuid][0] += found.vcore
        sums[found.uuid][1] += found.vmemory
    for one in machine.devices:
        assert sums[one.uuid][0] <= 100
        assert sums[one.uuid][1] <= one.memory_bytes


def test_rebooted_node_recreates_granted_files(tmp_path, machine, driver):
    """Its run state is wiped: specifications at least, and folders if they are in memory."""
    grant = granted.grant_of(share_of(machine))
    with grant_log.Checkpoint(tmp_path, "node") as kept:
        kept.put(grant)
        store.GrantStore(tmp_path / "grants", tmp_path / "cdi").make(grant, driver)
    for wiped in (("cdi",), ("cdi", "grants")):
        for name in wiped:
            (tmp_path / name).rename(tmp_path / f"{name}-of-{'-'.join(wiped)}")
        with grant_log.Checkpoint(tmp_path, "node") as kept:
            places = store.GrantStore(tmp_path / "grants", tmp_path / "cdi")
            recover(kept, places, driver)
            assert places.present() == {grant.id}
            assert limits(places, grant.id)[0].vcore == 30
