"""The stage of MIG: the table of profiles, and a quota on a MIG device."""

import dataclasses

import pytest
from kit.stages import mig
from kit_records import by_name

QUOTA = mig.QUOTA


@pytest.mark.slow
def test_a_quota_holds_on_a_mig_device_and_the_table_is_the_simulators(run_stage):
    entry = run_stage("mig", "t4,h100:mig=3g.40gb+1g.10gb")
    facts = {name: fact["value"] for name, fact in by_name(entry["facts"]).items()}
    missing = by_name(entry["missing"])
    assert "GPU 0: MIG" in missing
    assert facts["GPU 1: MIG mode"] == "on"
    figures = by_name(entry["figures"])
    assert figures["GPU 1: differences from the simulator's profiles"]["value"] == 0
    assert len(facts["GPU 1: profiles"]) == 7
    assert sorted(place.partition("@")[0] for place in facts["GPU 1: GPU instances"]) == [
        "1g.10gb", "3g.40gb",
    ]  # fmt: skip
    assert figures["GPU 1: MIG devices"]["value"] == 2
    assert facts["a MIG device, with a quota of 2147483648"]["name"] in (
        "pyvgpu simulated H100 MIG 3g.40gb", "pyvgpu simulated H100 MIG 1g.10gb",
    )  # fmt: skip
    assert len(entry["guarantees"]) == 5


def test_a_gpu_that_is_not_divided_has_profiles_and_no_quota_is_tried(run_stage):
    entry = run_stage("mig", "h100")
    facts = {name: fact["value"] for name, fact in by_name(entry["facts"]).items()}
    assert (facts["GPU 0: MIG mode"], facts["GPU 0: GPU instances"]) == ("off", [])
    assert (
        by_name(entry["figures"])["GPU 0: differences from the simulator's profiles"]["value"] == 0
    )
    assert [one["name"] for one in entry["missing"]] == ["quota on a MIG device"]


def test_each_difference_of_profiles_is_named():
    assumed = mig.assumed_profiles("h100")
    first, second, *others = assumed
    moved = dataclasses.replace(second, starts=(0, 2))
    other = dataclasses.replace(first, name="1g.12gb")
    assert mig.differences(assumed, assumed) == []
    assert mig.differences(assumed, (other, moved, *others)) == [
        "1g.10gb+me: starts: (0, 2), on the simulator (0, 1, 2, 3, 4, 5, 6)",
        "1g.10gb: only on the simulator",
        "1g.12gb: not on the simulator",
    ]


SHOWN = {
    "name": "H100 MIG 1g.10gb", "processors": 16, "cuMemGetInfo": QUOTA, "cuDeviceTotalMem": QUOTA,
    "NVML": QUOTA, "devices of NVML": 1, "half": 0, "as much again": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "broken"),
    [
        pytest.param({}, [], id="as it should be"),
        pytest.param({"NVML": 9 << 30}, ["the quota is shown as the device"], id="shown"),
        pytest.param({"devices of NVML": 2}, ["NVML has one device"], id="devices"),
        pytest.param(
            {"name": "H100"}, ["name and processors are the same as without a quota"], id="name"
        ),
        pytest.param({"half": 2}, ["half of the quota works under it"], id="half"),
        pytest.param({"as much again": 0}, ["more is refused as out of memory"], id="more"),
    ],
)
def test_a_quota_on_a_mig_device_is_evaluated(changed, broken):
    found = mig.evaluate(SHOWN, {**SHOWN, **changed})
    assert len(found) == 5
    assert [title for title, held, _ in found if not held] == broken
