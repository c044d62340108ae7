"""Devices, holders and requests read from slices, classes and claims."""

import claim_objects as make
import pytest

from pyvgpu import errors
from pyvgpu.allocator import datatypes
from pyvgpu.controller.claims import dra_objects
from pyvgpu.controller.scheduler import pod_request

GIB = 1 << 30
APP = datatypes.ContainerKind.APP


def test_only_our_newest_slices_of_a_pool_count():
    old, new = make.slice_of("n", make.device(0)), make.slice_of("n", generation=2)
    other = make.slice_of("m", make.device(1))
    theirs = make.slice_of("n", make.device(2), generation=9)
    theirs["spec"]["driver"] = "gpu.example"
    assert dra_objects.slices([old, new, other, theirs]) == [new, other]


def test_devices_are_read_with_their_taints():
    unhealthy = [{"key": "pyvgpu.io/unhealthy", "effect": "NoSchedule"}]
    cordoned = [{"key": "pyvgpu.io/cordoned", "effect": "NoSchedule"}]
    one = make.device(0)
    one["attributes"] |= {"numa": {"int": 1}, "computeClass": {"string": "fast"}}
    listed = [one, make.device(1, taints=unhealthy), make.device(2, "8Gi", taints=cordoned)]
    (found,) = dra_objects.nodes([make.slice_of("n", *listed)]).values()
    first, second, third = found.devices
    assert first == datatypes.NodeDevice(
        "GPU-0", 0, 16 * GIB, "Tesla T4", "fast", 1, least_bytes=256 << 20
    )
    assert (second.index, second.unhealthy, second.cordoned) == (
        1,
        "taint pyvgpu.io/unhealthy",
        False,
    )
    assert (third.memory_bytes, third.unhealthy, third.cordoned) == (8 * GIB, "", True)


@pytest.mark.parametrize("listed", [[], [{}], [{"spec": None}], [make.slice_of("n", {})]])
def test_an_incomplete_slice_is_read_without_error(listed):
    found = dra_objects.nodes(dra_objects.slices(listed))
    assert all(device.memory_bytes == 0 for node in found.values() for device in node.devices)


def held(*claims):
    listed = [make.slice_of("n", make.device(0), make.device(1))]
    return {
        (tenant.key, tenant.node): [
            (one.share.uuid, one.share.vcore, one.share.vmemory // GIB) for one in tenant.held
        ]
        for tenant in dra_objects.tenants(listed, claims)
    }


def test_a_pod_holds_the_devices_of_all_its_claims():
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
        # A capacity that is not given counts as all of the device.
        (
            make.got(make.claim("a"), "p", ("n", 0, None, None)),
            {("team/p", "n"): [("GPU-0", 100, 16)]},
        ),
        (make.got(make.claim("a"), "p", ("elsewhere", 0, "30", "2Gi")), {}),
        (make.got(make.claim("a"), "p", ("n", 7, "30", "2Gi")), {}),
    ],
)
def test_allocated_claims_have_a_holder(claim, expected):
    assert held(claim) == expected


def test_admin_access_holds_nothing():
    claim = make.got(make.claim("a"), "p", ("n", 0, None, None))
    claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    assert held(claim) == {}


PARTITION = {
    **make.device(0, "9984Mi"),
    "name": "gpu-0-1g-10gb-6",
    "attributes": {
        "uuid": {"string": "GPU-0"},
        "migProfile": {"string": "1g.10gb"},
        "migStart": {"int": 6},
    },
}
PARTITION["capacity"] = {**PARTITION["capacity"], "vcore": {"value": "12"}}


def test_mig_partitions_are_one_gpu_and_have_holders():
    counters = {**make.slice_of("n"), "spec": {**make.slice_of("n")["spec"], "devices": None}}
    listed = [make.slice_of("n", make.device(1)), make.slice_of("n/mig", PARTITION), counters]
    listed[1]["spec"]["nodeName"] = "n"
    found = dra_objects.slices(listed)
    (node,) = dra_objects.nodes(found).values()
    assert [device.uuid for device in node.devices] == ["GPU-1", "GPU-0"]
    claim = make.got(make.claim("a"), "p", ("n/mig", 0, None, None))
    claim["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-0-1g-10gb-6"
    (tenant,) = dra_objects.tenants(found, [claim])
    (holding,) = tenant.held
    assert (tenant.node, holding.share) == (
        "n",
        datatypes.NodeShare("GPU-0", 12, 9984 << 20, "1g.10gb@6"),
    )


CLASSES = {
    "vgpu": make.device_class("vgpu", dra_objects.OF_THE_DRIVER, dra_objects.NO_PARTITION),
    "vgpu-mig": make.device_class("vgpu-mig", dra_objects.NO_PARTITION.replace("==", "!=")),
    "vgpu-h100": make.device_class("vgpu-h100", 'device.driver == "pyvgpu.io" && true'),
    "other": make.device_class("other", 'device.driver == "gpu.example"'),
}


def cel(request, *expressions):
    """Return a request of class vgpu-mig with these selectors."""
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    own = {**request["exactly"], "deviceClassName": "vgpu-mig", "selectors": selectors}
    return {**request, "exactly": own}


def wanted(*requests, **devices):
    return dra_objects.wanted({"devices": {"requests": list(requests), **devices}}, CLASSES)


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (make.request(50, "8Gi"), pod_request.ContainerRequest(APP, 50, 8192)),
        (make.request(50, "8Gi", count=2), pod_request.ContainerRequest(APP, 100, 16384, 2)),
        (make.request(100, "8Gi"), pod_request.ContainerRequest(APP, 100, 8192)),
        (make.request(None, None), pod_request.ContainerRequest(APP, 100, 0)),
        (make.request(None, None, count=3), pod_request.ContainerRequest(APP, 300, 0)),
        # Leaving out a capacity takes all of it, so nothing else may use the device.
        (make.request(50, None), pod_request.ContainerRequest(APP, 100, 0)),
        (make.request(None, "8Gi"), pod_request.ContainerRequest(APP, 100, 8192)),
        (make.request(50, "1000000"), pod_request.ContainerRequest(APP, 50, 1)),
    ],
)
def test_a_request_becomes_a_part(request_, part):
    assert wanted(request_) == dra_objects.ClaimRequest((part,))


def test_unevaluated_conditions_are_quoted():
    cel = [{"cel": {"expression": "device.x  >\n 1"}}]
    request = make.request(50, "8Gi", deviceClassName="vgpu-h100", selectors=cel)
    found = wanted(request, constraints=[{"matchAttribute": "pyvgpu.io/numa"}])
    assert found.unevaluated == (
        'request vgpu requires devices that match: device.driver == "pyvgpu.io" && true',
        "request vgpu requires devices that match: device.x > 1",
        "all devices must have the same pyvgpu.io/numa",
    )
    other = wanted(make.request(50, "8Gi", deviceClassName="other"))
    assert other == dra_objects.ClaimRequest(
        (), ("request vgpu is for devices of another driver (other)",)
    )


def partition(profile, vcore=1, units=1):
    return dra_objects.PartitionRequest(profile, pod_request.ContainerRequest(APP, vcore, units))


ATTRIBUTE = 'device.attributes["pyvgpu.io"]'


@pytest.mark.parametrize(
    ("request_", "partitions", "unevaluated"),
    [
        pytest.param(
            make.request(None, None, deviceClassName="vgpu-mig"), [partition("*")], (), id="any"
        ),
        pytest.param(
            make.request(40, "8Gi", deviceClassName="vgpu-mig", count=2),
            [partition("*", 40, 8192)] * 2,
            (),
            id="amounts",
        ),
        pytest.param(
            cel(make.request(None, "1"), f'{ATTRIBUTE}.migProfile == "1g.10gb"'),
            [partition("1g.10gb")],
            (),
            id="profile",
        ),
        pytest.param(
            cel(make.request(5, None), f'{ATTRIBUTE}.?migProfile.orValue("") == "1g.10gb+me"'),
            [partition("1g.10gb+me", 5)],
            (),
            id="optional attribute",
        ),
        pytest.param(
            cel(make.request(None, None), f'{ATTRIBUTE}.migProfile.startsWith("1g.")'),
            [partition("*")],
            (
                "request vgpu requires devices that match: "
                f'{ATTRIBUTE}.migProfile.startsWith("1g.")',
            ),
            id="another condition",
        ),
    ],
)
def test_requests_of_mig_partitions(request_, partitions, unevaluated):
    assert wanted(request_) == dra_objects.ClaimRequest((), unevaluated, tuple(partitions))


def test_request_of_more_than_a_gpu_is_refused():
    with pytest.raises(errors.UsageError, match="must be from 1 to 100 of the GPU"):
        wanted(make.request(101, None, deviceClassName="vgpu-mig"))


def test_the_first_alternative_is_explained_and_admin_access_is_ignored():
    alternatives = [make.request(size, "1Gi")["exactly"] for size in (70, 30)]
    found = wanted({"name": "r", "firstAvailable": alternatives})
    assert found.parts == (pod_request.ContainerRequest(APP, 70, 1024),)
    assert found.unevaluated == ("request r has 2 alternatives; this is the first",)
    assert wanted(make.request(None, None, adminAccess=True)) == dra_objects.ClaimRequest(())


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
def test_an_impossible_request_is_refused(request_, why):
    with pytest.raises(errors.UsageError, match=why):
        wanted(request_)


def test_whole_devices_can_be_requested_without_a_claim():
    pod = make.pod("p")
    assert dra_objects.whole_devices(pod) == 0
    pod["spec"]["containers"][0]["resources"]["limits"] = {"pyvgpu.io/device": "2"}
    assert dra_objects.whole_devices(pod) == 2
