"""Parsing the device requests of pods."""

import copy

import pytest
import schedulerpods as pods
from allocator_nodes import GIB, device

from pyvgpu import errors, names
from pyvgpu.allocator import datatypes
from pyvgpu.controller.scheduler import pod_request

APP, INIT, SIDECAR = (
    datatypes.ContainerKind.APP,
    datatypes.ContainerKind.INIT,
    datatypes.ContainerKind.SIDECAR,
)
UNITS = 8 * pods.UNITS_OF_A_GIB


def read(thing, keys=(pods.KEY,)):
    return pod_request.read(thing, keys)


def gaia(vcore, units):
    return {
        names.GAIA_VCORE_RESOURCE: str(vcore),
        names.GAIA_VMEMORY_RESOURCE: str(units),
    }


@pytest.mark.parametrize(
    ("thing", "containers", "parts"),
    [
        pytest.param(pods.pod(), ("main",), [(APP, 50, UNITS)], id="a share"),
        pytest.param(
            pods.pod("x", pods.container(vcore=300, size=None)),
            ("main",),
            [(APP, 300, 0)],
            id="whole devices",
        ),
        pytest.param(
            pods.pod("x", {"name": "plain"}, pods.container("b"), pods.container("a", 20)),
            ("b", "a"),
            [(APP, 50, UNITS), (APP, 20, UNITS)],
            id="two containers of three",
        ),
        pytest.param(
            pods.pod(
                "x",
                init=[pods.container("i", 30), pods.container("s", 10, restartPolicy="Always")],
            ),
            ("i", "s", "main"),
            [(INIT, 30, UNITS), (SIDECAR, 10, UNITS), (APP, 50, UNITS)],
            id="init containers and native sidecars go first",
        ),
        pytest.param(
            pods.pod("x", {"name": "main", "resources": {"limits": gaia("1k", 4)}}),
            ("main",),
            [(APP, 1000, 4)],
            id="gpu-manager's names, and a number as the API server writes it",
        ),
        pytest.param(
            pods.pod("x", pods.container(vcore=100), notes={"pyvgpu.io/device-count": "2"}),
            ("main",),
            [(APP, 100, UNITS)],
            id="halves of two devices",
        ),
        pytest.param(
            pods.pod("x", {"name": "main", "resources": {"requests": gaia(20, 4)}}),
            ("main",),
            [(APP, 20, 4)],
            id="requests alone",
        ),
    ],
)
def test_requests_of_each_container(thing, containers, parts):
    found = read(thing)
    assert found.names == containers
    assert [(part.kind, part.vcore, part.units) for part in found.shape.parts] == parts
    assert not found.trouble


@pytest.mark.parametrize(
    "thing",
    [
        pytest.param(pods.pod("x", {"name": "main"}), id="no resources"),
        pytest.param(pods.pod("x", pods.container(vcore=0, size=0)), id="none of them"),
        pytest.param({}, id="nothing"),
        pytest.param({"metadata": None, "spec": None, "status": None}, id="null"),
        pytest.param({"spec": {"containers": None}}, id="no containers"),
        pytest.param({"spec": {"containers": [None, 3, {"resources": 4}]}}, id="no objects"),
    ],
)
def test_a_pod_without_a_device_request_is_ignored(thing):
    assert read(thing) is None


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        pytest.param(
            pods.pod("x", pods.container(vcore=150)),
            "container main: vcore 150: above 100 it must be a multiple of 100",
            id="a part of two devices",
        ),
        pytest.param(
            pods.pod("x", pods.container(size=None)),
            "container main: vcore 50 without vmemory",
            id="no memory",
        ),
        pytest.param(
            pods.pod("x", pods.container(vcore=None)),
            "container main: vmemory without vcore: a share",
            id="no compute",
        ),
        pytest.param(
            pods.pod("x", pods.container(vcore="half")),
            "container main: pyvgpu.io/vcore 'half': must be a whole number, such as 50",
            id="a word",
        ),
        pytest.param(
            pods.pod("x", pods.container(vcore="500m")),
            "pyvgpu.io/vcore '500m': must be a whole number",
            id="a fraction",
        ),
        pytest.param(
            pods.pod(
                "x",
                {"name": "main", "resources": {"limits": {**gaia(1, 1), "pyvgpu.io/vcore": "1"}}},
            ),
            "pyvgpu.io/vcore and tencent.com/vcuda-core: must not both be asked for",
            id="two kinds of resources",
        ),
        pytest.param(
            pods.pod("x", *(pods.container(f"c{number}", 1, 1) for number in range(33))),
            "33 containers ask for devices: must be no more than 32 of one pod",
            id="too many containers",
        ),
        *(
            pytest.param(pods.pod(notes={f"pyvgpu.io/{key}": text}), said, id=f"{key}={text}")
            for key, text, said in (
                ("placement", "tight", "placement 'tight': must be binpack, spread or topology"),
                ("gang", "", "gang '': must be a name of 1 to 253 letters, such as training-7"),
                ("gang", "a", "gang-size '': must be a whole number from 1 to 1000, such as 4"),
                ("gang-size", "4", "gang-size '4': has no effect without pyvgpu.io/gang"),
                ("gang-timeout", "9", "gang-timeout '9': has no effect without pyvgpu.io/gang"),
                ("device-numa", "west", "pyvgpu.io/device-numa 'west'"),
            )
        ),
        pytest.param(
            pods.pod(notes={"pyvgpu.io/gang": "a", "pyvgpu.io/gang-size": "1001"}),
            "gang-size '1001': must be a whole number from 1 to 1000",
            id="a gang too large",
        ),
    ],
)
def test_an_invalid_request_is_reported_with_the_rule(thing, said):
    found = read(thing)
    assert said in found.trouble
    assert found.names
    with pytest.raises(errors.UsageError) as refused:
        pod_request.check(thing)
    assert str(refused.value) == found.trouble


def test_a_valid_pod_passes_the_check():
    pod_request.check(pods.pod())
    pod_request.check(pods.pod("x", {"name": "plain"}))


def test_fields_of_the_record():
    thing = pods.pod(
        notes={
            "pyvgpu.io/placement": "spread",
            "pyvgpu.io/packing": "binpack",
            "pyvgpu.io/gang": "job",
            "pyvgpu.io/gang-size": "4",
            "pyvgpu.io/gang-timeout": "30",
        },
        priority=7,
        preemptionPolicy="Never",
        schedulingGates=[{"name": "later"}],
    )
    thing["metadata"]["deletionTimestamp"] = "2026-11-22T03:01:00Z"
    thing["status"] = {"phase": "Succeeded", "nominatedNodeName": "n1"}
    found = read(thing)
    assert (found.key, found.uid, found.node) == ("team/one", "uid-one", "")
    assert found.gang == pod_request.Gang("team/job", 4, 30.0)
    assert found.policy is pod_request.NodePolicy.SPREAD
    assert found.packing is datatypes.Packing.BINPACK
    assert (found.priority, found.preempts, found.nominated) == (7, False, "n1")
    assert found.over
    assert found.leaving
    assert found.gates == ("later",)
    assert not found.gated  # it is over
    assert not found.waits
    assert found.created == 1795316400.0


def test_pods_with_equal_requests_share_a_shape():
    one = read(pods.pod("one", pods.container("a")))
    two = read(pods.pod("two", pods.container("b")))
    assert one.shape is two.shape
    assert one.names != two.names


def test_a_sealed_choice_gives_the_most_that_the_pod_holds_at_once():
    thing = pods.pod("x", pods.container("app", 30), init=[pods.container("first", 70, 4)])
    shares = {"first": (pods.share(0, 70, 4),), "app": (pods.share(0, 30),)}
    found = read(pods.bind(thing, "n1", shares))
    assert found.held == (
        datatypes.Holding(datatypes.NodeShare(device(0).uuid, 70, 8 * GIB), "team/x"),
    )


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda thing: thing["spec"].pop("nodeName"), id="not bound"),
        pytest.param(lambda thing: thing["spec"].update(nodeName="n2"), id="of another node"),
        pytest.param(lambda thing: thing["metadata"].update(uid="other"), id="of another pod"),
        pytest.param(
            lambda thing: thing["metadata"].update(annotations={names.DEVICES_ANNOTATION: "{}"}),
            id="damaged",
        ),
        pytest.param(
            lambda thing: thing["metadata"].update(annotations={names.DEVICES_ANNOTATION: 7}),
            id="no text",
        ),
        pytest.param(lambda thing: thing["metadata"].update(annotations={}), id="none"),
    ],
)
def test_a_choice_not_sealed_for_that_pod_and_node_is_ignored(forge):
    good = pods.bind(pods.pod(), "n1", {"main": (pods.share(0),)})
    assert read(good).held is not None
    bad = copy.deepcopy(good)
    forge(bad)
    assert read(bad).held is None
    assert read(good, keys=(b"x" * 32,)).held is None
    assert read(good, keys=(b"x" * 32, pods.KEY)).held is not None


def test_memory_units_depend_on_the_node():
    shape = read(pods.pod("x", pods.container(vcore=20, size=1))).shape
    for unit in (pods.UNIT, 2 * pods.UNIT):
        (found,) = pod_request.pod_of(shape, unit).containers
        assert found.need == datatypes.ContainerNeed(20, pods.UNITS_OF_A_GIB * unit)


def test_a_share_on_several_devices():
    thing = pods.pod("x", pods.container(vcore=100), notes={"pyvgpu.io/device-count": "2"})
    (found,) = pod_request.pod_of(read(thing).shape, pods.UNIT).containers
    assert found.need == datatypes.ContainerNeed(50, 4 * GIB, 2)


def test_containers_are_numbered_and_named_afterwards():
    found = read(pods.pod("x", pods.container("b"), pods.container("a", 20)))
    assert [container.name for container in pod_request.pod_of(found.shape, 1).containers] == [
        "0",
        "1",
    ]
    assert pod_request.named(found, {"1": [pods.share(1)], "0": [pods.share(0)]}) == {
        "b": (pods.share(0),),
        "a": (pods.share(1),),
    }
