"""Translation of container requests into claim templates."""

import dataclasses

import pytest

from pyvgpu import errors, quota
from pyvgpu.allocator import datatypes, elastic
from pyvgpu.controller.claims import claim_templates

GIB = 1 << 30
HALF = datatypes.ContainerNeed(50, 8 * GIB)
APP, INIT, SIDECAR = (
    datatypes.ContainerKind.APP,
    datatypes.ContainerKind.INIT,
    datatypes.ContainerKind.SIDECAR,
)


def one(vcore, vmemory, count=1):
    return datatypes.ContainerNeed(vcore, vmemory * GIB, count)


def container(name, kind, vcore, vmemory=1, count=1):
    return datatypes.Container(name, one(vcore, vmemory, count), kind)


def devices(need, **more):
    return claim_templates.spec_of(claim_templates.ClaimShape(need, **more))["devices"]


def request(need, **more):
    (found,) = devices(need, **more)["requests"]
    return found["exactly"]


def test_a_share_requests_both_capacities_and_a_whole_device_none():
    assert devices(HALF) == {
        "requests": [
            {
                "name": "vgpu",
                "exactly": {
                    "deviceClassName": "vgpu",
                    "allocationMode": "ExactCount",
                    "count": 1,
                    "capacity": {"requests": {"vcore": "50", "vmemory": "8Gi"}},
                },
            }
        ]
    }
    assert "capacity" not in request(one(100, 0, 2))
    assert request(one(100, 0, 2))["count"] == 2


@pytest.mark.parametrize(
    ("size", "text"),
    [(GIB, "1Gi"), (256 << 20, "256Mi"), (3 * GIB // 2, "1536Mi"), (1000**3, "954Mi"), (1, "1Mi")],
)
def test_memory_is_rounded_up_to_the_slices_step(size, text):
    assert request(datatypes.ContainerNeed(50, size))["capacity"]["requests"]["vmemory"] == text


DEVICE = 'device.attributes["pyvgpu.io"]'


@pytest.mark.parametrize(
    ("selector", "expressions"),
    [
        ({}, []),
        ({"uuids": {"GPU-2", "GPU-1"}}, [f'{DEVICE}.uuid in ["GPU-1", "GPU-2"]']),
        ({"not_uuids": {"GPU-1"}}, [f'!({DEVICE}.uuid in ["GPU-1"])']),
        (
            {"models": {"H100", "a100"}},
            [
                f'{DEVICE}.model.lowerAscii().contains("a100") || '
                f'{DEVICE}.model.lowerAscii().contains("h100")'
            ],
        ),
        ({"not_models": {"T4"}}, [f'!{DEVICE}.model.lowerAscii().contains("t4")']),
        ({"classes": {"fast"}}, [f'{DEVICE}.?computeClass.orValue("") in ["fast"]']),
        ({"numa": 0}, [f"{DEVICE}.?numa.orValue(-1) == 0"]),
        (
            {"least_memory": 40 * GIB},
            ['device.capacity["pyvgpu.io"].vmemory.compareTo(quantity("40Gi")) >= 0'],
        ),
        ({"uuids": {'"\\'}}, [f'{DEVICE}.uuid in ["\\"\\\\"]']),
    ],
)
def test_selectors_become_cel_expressions(selector, expressions):
    chosen = {
        key: frozenset(value) if isinstance(value, set) else value
        for key, value in selector.items()
    }
    asked = request(HALF, selector=datatypes.Selector(**chosen))
    assert [found["cel"]["expression"] for found in asked.get("selectors", ())] == expressions


NOT_IN_CEL = {
    "instances",  # by the device class
    "mig",  # the webhook refuses such pods: claim_conversion
    "mps",
}


@pytest.mark.parametrize(
    "field", [f for f in dataclasses.fields(datatypes.Selector) if f.name not in NOT_IN_CEL]
)
def test_no_field_of_a_selector_is_ignored(field):
    value = frozenset({"x"}) if field.default == frozenset() else 1
    selector = dataclasses.replace(datatypes.ANY, **{field.name: value})
    assert "selectors" in request(HALF, selector=selector)
    assert "selectors" not in request(HALF)


def test_memory_of_a_whole_device_is_a_minimum_size():
    (found,) = request(one(100, 40))["selectors"]
    assert 'quantity("40Gi")' in found["cel"]["expression"]


def test_a_selector_longer_than_a_claim_allows_is_refused():
    many = frozenset(f"GPU-{number:036}" for number in range(300))
    with pytest.raises(errors.UsageError, match="characters of CEL, and a claim allows 10240"):
        devices(HALF, selector=datatypes.Selector(uuids=many))


@pytest.mark.parametrize(
    ("need", "nearness", "constraints"),
    [
        (one(50, 8), "nvlink", None),
        (one(50, 8, 2), "preferred", ["distinct uuid"]),
        (one(50, 8, 2), "nvlink", ["distinct uuid", "match nvlinkGroup"]),
        (one(100, 0, 2), "numa", ["match numa"]),
        (one(100, 0, 2), "preferred", None),
    ],
)
def test_several_devices_are_distinct_and_satisfy_the_topology_policy(need, nearness, constraints):
    found = devices(need, nearness=datatypes.Nearness(nearness)).get("constraints")
    words = [
        f"{key.removesuffix('Attribute')} {value.removeprefix('pyvgpu.io/')}"
        for constraint in found or ()
        for key, value in constraint.items()
    ]
    assert words == (constraints or [])


def test_the_spare_time_policy_is_the_claims_configuration():
    time_sharing = elastic.TimeSharing(quota.TimePolicy.ELASTIC, 80)
    (found,) = devices(HALF, time_sharing=time_sharing)["config"]
    assert found["opaque"]["driver"] == "pyvgpu.io"
    assert elastic.read_parameters(found["opaque"]["parameters"]) == time_sharing
    assert "config" not in devices(HALF)
    assert "config" not in devices(one(100, 0), time_sharing=time_sharing)


def test_a_templates_name_is_a_hash_of_its_spec():
    spec = claim_templates.spec_of(claim_templates.ClaimShape(HALF))
    name = claim_templates.name_of(spec, HALF)
    assert name == claim_templates.name_of(dict(reversed(spec.items())), HALF)
    assert name.startswith(claim_templates.SHARE)
    assert len(name) <= 63
    assert claim_templates.is_ours(name)
    other = claim_templates.spec_of(claim_templates.ClaimShape(one(51, 8)))
    assert claim_templates.name_of(other, one(51, 8)) != name
    whole = claim_templates.spec_of(claim_templates.ClaimShape(one(100, 0)))
    assert claim_templates.name_of(whole, one(100, 0)).startswith(claim_templates.WHOLE)
    assert not claim_templates.is_ours("pyvgpu-other")
    assert not claim_templates.is_ours(None)


def test_template_names_are_stable_across_releases():
    assert (
        claim_templates.name_of({"devices": {"requests": []}}, HALF)
        == "pyvgpu-share-81b399bca88a390b"
    )


@pytest.mark.parametrize(
    ("containers", "claims"),
    [
        ([("a", APP, 50), ("b", APP, 30)], [((50, 1, 1), "a"), ((30, 1, 1), "b")]),
        ([("s", SIDECAR, 10), ("a", APP, 50)], [((10, 1, 1), "s"), ((50, 1, 1), "a")]),
        # An init container uses the smallest app claim that covers it.
        ([("i", INIT, 20), ("a", APP, 50)], [((50, 1, 1), "a i")]),
        (
            [("i", INIT, 20), ("a", APP, 50), ("b", APP, 30)],
            [((50, 1, 1), "a"), ((30, 1, 1), "b i")],
        ),
        # Never a sidecar's claim, because the two run at once.
        (
            [("s", SIDECAR, 90), ("i", INIT, 20), ("a", APP, 10)],
            [((90, 1, 1), "s"), ((10, 1, 1), "a"), ((20, 1, 1), "i")],
        ),
        # Init containers that no app covers share one claim with their maximum.
        (
            [("i", INIT, 60, 1), ("j", INIT, 20, 9), ("a", APP, 10)],
            [((10, 1, 1), "a"), ((60, 9, 1), "i j")],
        ),
        ([("i", INIT, 10, 5), ("a", APP, 50, 1)], [((50, 1, 1), "a"), ((10, 5, 1), "i")]),
        # With the same number of devices.
        (
            [("i", INIT, 20, 1, 2), ("a", APP, 50)],
            [((50, 1, 1), "a"), ((20, 1, 2), "i")],
        ),
        # A whole device covers any share, and must be large enough for it.
        ([("i", INIT, 20, 9), ("a", APP, 100, 0)], [((100, 9, 1), "a i")]),
        ([("i", INIT, 100, 0), ("a", APP, 50, 1)], [((50, 1, 1), "a"), ((100, 0, 1), "i")]),
        ([("i", INIT, 20)], [((20, 1, 1), "i")]),
    ],
)
def test_containers_that_never_run_together_share_a_claim(containers, claims):
    found = claim_templates.claims_of(container(*shape) for shape in containers)
    assert [
        (
            (claim.need.vcore, claim.need.vmemory // GIB, claim.need.count),
            " ".join(claim.containers),
        )
        for claim in found
    ] == claims
