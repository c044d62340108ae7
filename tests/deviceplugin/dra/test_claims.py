"""Translation of allocated claims into grants, or the reason for a refusal."""

import pytest

from pyvgpu import quota
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.dra import claim_grants
from pyvgpu.deviceplugin.grants.placement import RefusedError

GIB = 1 << 30
A, B = "GPU-a", "GPU-b"
DEVICES = (datatypes.NodeDevice(A, 0, 80 * GIB), datatypes.NodeDevice(B, 1, 80 * GIB))
NAMED = claim_grants.Named("team", "u1", "mine")


def result(request="vgpu", device="gpu-a", vcore="30", vmemory="8Gi", **more):
    consumed = {"consumedCapacity": {"vcore": vcore, "vmemory": vmemory}} if vcore else {}
    return {
        "request": request,
        "driver": "pyvgpu.io",
        "pool": "node-1",
        "device": device,
        "shareID": f"s-{device}",
        **consumed,
        **more,
    }


def document(*results, config=(), uid="u1", reserved=True):
    pods = [{"resource": "pods", "name": "p", "uid": "p1"}] if reserved else []
    return {
        "metadata": {"uid": uid},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": list(config)}},
            "reservedFor": pods,
        },
    }


def given(*results, used=(), held=(), gives=lambda _: True, devices=DEVICES, **more):
    claim = claim_grants.read(document(*results, **more), NAMED, "node-1")
    node = datatypes.NodeDevices(devices, tuple(held))
    around = claim_grants.ClaimContext("node-1", node, gives, 1.0)
    return claim_grants.grants_of(claim, frozenset(used), around)


def shares(*found, **more):
    return [
        [(share.uuid, share.vcore, share.vmemory // GIB) for share in grant.shares]
        for grant in given(*found, **more)
    ]


@pytest.mark.parametrize(
    ("results", "used", "wanted"),
    [
        pytest.param([result()], [], [[(A, 30, 8)]], id="a share"),
        pytest.param([result(vcore="100")], [], [[(A, 100, 80)]], id="a whole device"),
        pytest.param([result(vcore=None)], [], [[(A, 100, 80)]], id="without sharing"),
        pytest.param(
            [result(), result(device="gpu-b", vcore="40")],
            [],
            [[(A, 30, 8), (B, 40, 8)]],
            id="several devices of one request are one quota",
        ),
        pytest.param([result(), result()], [], [[(A, 60, 16)]], id="one device twice"),
        pytest.param(
            [result("a"), result("b", "gpu-b")], [""], [[(A, 30, 8), (B, 30, 8)]], id="a claim"
        ),
        pytest.param(
            [result("a"), result("b", vmemory="9Gi")],
            ["a", "b"],
            [[(A, 30, 8)], [(A, 30, 9)]],
            id="requests that containers name are quotas of their own",
        ),
        pytest.param(
            [result("a/small"), result("b", "gpu-b", vcore="100")],
            ["a", "b"],
            [[(A, 30, 8)], [(B, 100, 80)]],
            id="a share beside a whole device, of another",
        ),
        pytest.param(
            [result(), {"driver": "other", "request": "x", "pool": "p", "device": "d"}],
            [],
            [[(A, 30, 8)]],
            id="devices of other drivers are ignored",
        ),
    ],
)
def test_grants_match_the_allocation(results, used, wanted):
    assert shares(*results, used=used) == wanted


def test_grant_records_its_claim_and_pod():
    (grant,) = given(result("main/large"))
    assert grant.owner.label == "team/p/mine"
    assert grant.owner.uid == "p1"
    assert grant.claim.uid == "u1"
    assert [
        (allocated.request, allocated.device, allocated.share_id)
        for allocated in grant.claim.results
    ] == [("main", "gpu-a", "s-gpu-a")]
    assert not grant.over
    assert grant.ended().over


def opaque(parameters, **more):
    return {"opaque": {"driver": "pyvgpu.io", "parameters": parameters}, **more}


ELASTIC = {
    "apiVersion": "pyvgpu.io/v1alpha1",
    "kind": "VGPUConfig",
    "policy": "elastic",
    "vcoreLimit": 80,
}


def test_claim_configuration_sets_the_policy():
    (grant,) = given(result(), config=[opaque(ELASTIC)])
    assert (grant.policy, grant.ceiling) == (quota.TimePolicy.ELASTIC, 80)
    assert (grant.claim.policy, grant.claim.ceiling) == (quota.TimePolicy.ELASTIC, 80)
    (plain,) = given(result(), config=[opaque(ELASTIC, requests=["other"])])
    assert plain.policy is quota.TimePolicy.HARD
    (whole,) = given(result(vcore="100"), config=[opaque({**ELASTIC, "vcoreLimit": 100})])
    assert whole.policy is quota.TimePolicy.HARD


@pytest.mark.parametrize(
    ("requests", "policy"),
    [
        (["main"], quota.TimePolicy.ELASTIC),
        (["main/large"], quota.TimePolicy.ELASTIC),
        (["main/small"], quota.TimePolicy.HARD),
    ],
)
def test_configuration_of_an_alternative_applies_to_that_alone(requests, policy):
    (grant,) = given(result("main/large"), config=[opaque(ELASTIC, requests=requests)])
    assert grant.policy is policy


HELD = datatypes.Holding(datatypes.NodeShare(A, 80, 10 * GIB), "team/other")


@pytest.mark.parametrize(
    ("results", "more", "said", "final"),
    [
        pytest.param(
            [result()], {"uid": "u2"}, "was replaced by another one", True, id="re-created"
        ),
        pytest.param([result(pool="node-2")], {}, "pool 'node-2', not 'node-1'", True, id="pool"),
        pytest.param([result(vcore="0")], {}, "vcore '0': must be above zero", True, id="zero"),
        pytest.param([result(vcore="101")], {}, "vcore 101: at most 100", True, id="too much"),
        pytest.param([result(vcore="1500m")], {}, "'m' is not a unit", True, id="thousandths"),
        pytest.param([result(vmemory="9E")], {}, "is more than any device has", True, id="absurd"),
        pytest.param(
            [result(consumedCapacity={"vcore": "30"})],
            {},
            "was allocated no vmemory",
            True,
            id="half",
        ),
        pytest.param([result(consumedCapacity=7)], {}, "cannot be parsed", True, id="no map"),
        pytest.param([result(device="gpu-z")], {}, "gpu-z is not there", False, id="gone"),
        pytest.param(
            [result()],
            {"gives": lambda _: False},
            "not allocated through claims",
            False,
            id="its API",
        ),
        pytest.param(
            [result()],
            {"devices": (datatypes.NodeDevice(A, 0, 80 * GIB, unhealthy="Xid 79"),)},
            "gpu0 is unhealthy: Xid 79",
            False,
            id="unhealthy",
        ),
        pytest.param(
            [result(), result(device="gpu-b", vcore="100")],
            {},
            "has a whole device and a share together",
            True,
            id="mixed",
        ),
        pytest.param(
            [result(vcore="60"), result(vcore="60")], {}, "must be from 1 to 100", True, id="sum"
        ),
        pytest.param(
            [result("a"), result("b")],
            {"used": ["", "a"]},
            "is used as a whole and by its requests a",
            True,
            id="both ways",
        ),
        pytest.param(
            [result(), result(adminAccess=True)],
            {},
            "put them into a claim of their own",
            True,
            id="admin beside",
        ),
        pytest.param(
            [result(vcore="30")],
            {"held": [HELD]},
            "needs 30 vcore and 8GiB of gpu0, of which 20 and 70GiB are free; held by team/other",
            False,
            id="no vcore",
        ),
        pytest.param(
            [result(vcore="10", vmemory="71Gi")],
            {"held": [HELD]},
            "70GiB are free",
            False,
            id="no vmemory",
        ),
        pytest.param(
            [result()],
            {"config": [opaque({"kind": "X"})]},
            "its configuration: ",
            True,
            id="garbage",
        ),
        pytest.param(
            [result()], {"config": [opaque("\0")]}, "its configuration: ", True, id="no object"
        ),
        pytest.param(
            [result()],
            {"config": [opaque({**ELASTIC, "vcoreLimit": 20})]},
            "vcoreLimit 20: must be from its own 30 vcore to 100, such as 100",
            True,
            id="below its own",
        ),
        pytest.param(
            [result("a"), result("b", "gpu-b")],
            {"config": [opaque(ELASTIC, requests=["a"])]},
            "have different configurations",
            True,
            id="two ways",
        ),
    ],
)
def test_invalid_claim_is_refused_as_final_or_temporary(results, more, said, final):
    with pytest.raises(RefusedError) as caught:
        given(*results, **more)
    assert str(caught.value).startswith("claim team/mine: ")
    assert said in str(caught.value)
    assert caught.value.final is final


@pytest.mark.parametrize(
    ("found", "final"),
    [
        ({"metadata": {"uid": "u1"}}, False),
        ({"metadata": {"uid": "u1"}, "status": {"allocation": None}}, False),
        ({"metadata": {}}, True),
        ({"metadata": {"uid": "u1"}, "status": {"allocation": {"devices": 1}}}, True),
    ],
)
def test_unallocated_claim_is_refused(found, final):
    with pytest.raises(RefusedError) as caught:
        claim_grants.read(found, NAMED, "node-1")
    assert caught.value.final is final


def pod(*containers, init=(), **status):
    return {
        "spec": {
            "containers": list(containers),
            "initContainers": list(init),
            "resourceClaims": [
                {"name": "own", "resourceClaimTemplateName": "t"},
                {"name": "shared", "resourceClaimName": "mine-2"},
            ],
        },
        "status": {
            "resourceClaimStatuses": [{"name": "own", "resourceClaimName": "mine"}],
            **status,
        },
    }


def container(*used, name="main"):
    found = [
        {"name": claim, **({"request": request} if request else {})} for claim, request in used
    ]
    return {"name": name, "resources": {"claims": found}}


@pytest.mark.parametrize(
    ("one", "used"),
    [
        pytest.param(pod(container(("own", ""))), {""}, id="all"),
        pytest.param(
            pod(container(("own", "a")), init=[container(("own", "b"), name="i")]),
            {"a", "b"},
            id="by request",
        ),
        pytest.param(pod(container(("shared", ""))), set(), id="not at all"),
        pytest.param(
            pod(
                {"name": "main"},
                extendedResourceClaimStatus={
                    "resourceClaimName": "mine",
                    "requestMappings": [{"requestName": "container-0-request-0"}],
                },
            ),
            {"container-0-request-0"},
            id="by a resource",
        ),
    ],
)
def test_requests_through_which_containers_use_a_claim(one, used):
    assert claim_grants.uses(one, ["mine"]) == {"mine": frozenset(used)}


@pytest.mark.parametrize(
    "used", [[("own", ""), ("shared", "")], [("own", "a"), ("own", "b")]], ids=["claims", "parts"]
)
def test_container_with_two_claims_is_refused(used):
    with pytest.raises(RefusedError, match="a container can have one quota only") as caught:
        claim_grants.uses(pod(container(*used)), ["mine", "mine-2"])
    assert caught.value.final
