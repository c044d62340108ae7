"""What slices, classes and claims say of devices."""

import claim_objects as make
import pytest

from pyvgpu import errors
from pyvgpu.allocator import facts
from pyvgpu.controller.claims import seen
from pyvgpu.controller.scheduler import asks

GIB = 1 << 30
APP = facts.Kind.APP


def test_the_newest_slice_of_a_pool_counts_and_no_other_drivers():
    old, new = make.slice_of("n", make.device(0)), make.slice_of("n", generation=2)
    other = make.slice_of("m", make.device(1))
    theirs = make.slice_of("n", make.device(2), generation=9)
    theirs["spec"]["driver"] = "gpu.example"
    assert seen.slices([old, new, other, theirs]) == [new, other]


def test_devices_are_read_with_what_keeps_them_from_new_claims():
    sick = [{"key": "pyvgpu.io/sick", "effect": "NoSchedule"}]
    cordoned = [{"key": "pyvgpu.io/cordoned", "effect": "NoSchedule"}]
    one = make.device(0)
    one["attributes"] |= {"numa": {"int": 1}, "computeClass": {"string": "fast"}}
    listed = [one, make.device(1, taints=sick), make.device(2, "8Gi", taints=cordoned)]
    (found,) = seen.nodes([make.slice_of("n", *listed)]).values()
    first, second, third = found.devices
    assert first == facts.Device(
        "GPU-0", 0, 16 * GIB, "Tesla T4", "fast", 1, least_bytes=256 << 20
    )
    assert (second.index, second.sick, second.cordoned) == (1, "taint pyvgpu.io/sick", False)
    assert (third.memory_bytes, third.sick, third.cordoned) == (8 * GIB, "", True)


@pytest.mark.parametrize("listed", [[], [{}], [{"spec": None}], [make.slice_of("n", {})]])
def test_a_slice_that_says_little_harms_nobody(listed):
    found = seen.nodes(seen.slices(listed))
    assert all(it.memory_bytes == 0 for node in found.values() for it in node.devices)


def held(*claims):
    listed = [make.slice_of("n", make.device(0), make.device(1))]
    return {
        (it.key, it.node): [
            (one.share.uuid, one.share.vcore, one.share.vmemory // GIB) for one in it.held
        ]
        for it in seen.tenants(listed, claims)
    }


def test_who_has_something_is_the_pod_with_all_its_claims():
    one = make.got(make.claim("a"), "p", ("n", 0, "30", "2Gi"))
    two = make.got(make.claim("b"), "p", ("n", 1, "40", "4Gi"))
    assert held(one, two) == {("team/p", "n"): [("GPU-0", 30, 2), ("GPU-1", 40, 4)]}


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        (make.claim("a"), {}),
        (
            make.got(make.claim("a"), "", ("n", 0, "30", "2Gi")),
            {("team/claim a", "n"): [("GPU-0", 30, 2)]},
        ),
        # What is not said is all of the device.
        (
            make.got(make.claim("a"), "p", ("n", 0, None, None)),
            {("team/p", "n"): [("GPU-0", 100, 16)]},
        ),
        (make.got(make.claim("a"), "p", ("elsewhere", 0, "30", "2Gi")), {}),
        (make.got(make.claim("a"), "p", ("n", 7, "30", "2Gi")), {}),
    ],
)
def test_what_a_claim_holds(claim, expected):
    assert held(claim) == expected


def test_an_administrators_access_holds_nothing():
    claim = make.got(make.claim("a"), "p", ("n", 0, None, None))
    claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert held(claim) == {}


CLASSES = {
    "vgpu": make.device_class("vgpu"),
    "vgpu-h100": make.device_class("vgpu-h100", 'device.driver == "pyvgpu.io" && true'),
    "other": make.device_class("other", 'device.driver == "gpu.example"'),
}


def wanted(*requests, **devices):
    return seen.wanted({"devices": {"requests": list(requests), **devices}}, CLASSES)


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (make.request(50, "8Gi"), asks.Part(APP, 50, 8192)),
        (make.request(50, "8Gi", count=2), asks.Part(APP, 100, 16384, 2)),
        (make.request(100, "8Gi"), asks.Part(APP, 100, 8192)),
        (make.request(None, None), asks.Part(APP, 100, 0)),
        (make.request(None, None, count=3), asks.Part(APP, 300, 0)),
        # Where one capacity is left out all of it is wanted: nobody else may be there.
        (make.request(50, None), asks.Part(APP, 100, 0)),
        (make.request(None, "8Gi"), asks.Part(APP, 100, 8192)),
        (make.request(50, "1000000"), asks.Part(APP, 50, 1)),
    ],
)
def test_what_a_request_asks_for(request_, part):
    assert wanted(request_) == seen.Wanted((part,))


def test_what_is_not_judged_is_told():
    cel = [{"cel": {"expression": "device.x  >\n 1"}}]
    request = make.request(50, "8Gi", deviceClassName="vgpu-h100", selectors=cel)
    found = wanted(request, constraints=[{"matchAttribute": "pyvgpu.io/numa"}])
    assert found.told == (
        'request vgpu wants devices of which is true: device.driver == "pyvgpu.io" && true',
        "request vgpu wants devices of which is true: device.x > 1",
        "all devices must have the same pyvgpu.io/numa",
    )
    other = wanted(make.request(50, "8Gi", deviceClassName="other"))
    assert other == seen.Wanted((), ("request vgpu is for devices of another driver (other)",))


def test_of_alternatives_the_first_is_explained_and_administrators_want_nothing():
    alternatives = [make.request(size, "1Gi")["exactly"] for size in (70, 30)]
    found = wanted({"name": "r", "firstAvailable": alternatives})
    assert found.parts == (asks.Part(APP, 70, 1024),)
    assert found.told == ("request r has 2 alternatives; this is the first",)
    assert wanted(make.request(None, None, adminAccess=True)) == seen.Wanted(())


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (
            make.request(50, "1Gi", deviceClassName="vgqu"),
            "deviceClassName vgqu: there is no",
        ),
        (make.request(150, "1Gi"), "capacity vcore 150: must be from 1 to 100 of each device"),
        (make.request("0", "1Gi"), "capacity vcore 0: must be"),
        (make.request("x", "1Gi"), "capacity vcore x: must be"),
    ],
)
def test_what_can_never_be_had_is_said(request_, why):
    with pytest.raises(errors.UsageError, match=why):
        wanted(request_)


def test_whole_devices_can_be_asked_for_without_a_claim():
    pod = make.pod("p")
    assert seen.whole_devices(pod) == 0
    pod["spec"]["containers"][0]["resources"]["limits"] = {"pyvgpu.io/device": "2"}
    assert seen.whole_devices(pod) == 2
