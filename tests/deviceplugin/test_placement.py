"""A pod is placed by the allocator, or on the devices already chosen for it."""

import pytest

from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.grants import placement, pod_identity

GIB = 1 << 30
APP, INIT = datatypes.ContainerKind.APP, datatypes.ContainerKind.INIT


def node(count=2, held=(), **more):
    devices = tuple(
        datatypes.NodeDevice(f"GPU-{index}", index, 16 * GIB, **more) for index in range(count)
    )
    return datatypes.NodeDevices(devices, tuple(held))


def share(index, vcore, gib):
    return datatypes.NodeShare(f"GPU-{index}", vcore, gib * GIB)


def one(name="a", vcore=30, gib=4, kind=APP, count=1):
    return datatypes.Container(name, datatypes.ContainerNeed(vcore, gib * GIB, count), kind)


def place(now, *containers, chosen=placement.NOTHING, own=()):
    """Place a pod that holds *own* already."""
    empty = datatypes.NodeDevices(now.devices, tuple(own))
    return placement.place_pod(now, lambda: empty, datatypes.Pod(containers), chosen)


def refused(*arguments, **more):
    with pytest.raises(placement.RefusedError) as caught:
        place(*arguments, **more)
    return caught.value


def devices(**chosen):
    return placement.Chosen(
        {name: tuple(f"GPU-{index}" for index in own) for name, own in chosen.items()}
    )


def sealed(**shares):
    return placement.Chosen({}, {name: tuple(own) for name, own in shares.items()})


def test_chosen_devices_are_used():
    assert place(node(), one(), chosen=devices(a=[1])) == {"a": (share(1, 30, 4),)}
    whole = one(vcore=100, gib=0, count=2)
    found = place(node(4), whole, chosen=devices(a=[3, 1]))
    assert found == {"a": (share(3, 100, 16), share(1, 100, 16))}


def test_unnamed_containers_are_placed_beside_the_others():
    """An init container runs earlier, so it fits on the device that the others fill."""
    chosen = devices(a=[1])
    found = place(node(), one("i", 90, 14, INIT), one("a", 100, 16), chosen=chosen)
    assert found["i"] == (share(1, 90, 14),)
    found = place(node(), one("b", 80, 4), one("a", 80, 4), chosen=chosen)
    assert found == {"a": (share(1, 80, 4),), "b": (share(0, 80, 4),)}
    several = one("b", 100, 0, count=2)
    found = place(node(3), several, one("a", 80, 4), chosen=chosen)
    assert found["b"] == (share(0, 100, 16), share(2, 100, 16))


def test_sealed_choice_is_used_exactly():
    chosen = sealed(a=[share(1, 30, 4)], other=[share(0, 1, 1)])
    assert place(node(), one(), chosen=chosen) == {"a": (share(1, 30, 4),)}


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        pytest.param(sealed(), "a: asks for 1 devices, 0 were chosen", id="not named"),
        pytest.param(sealed(a=[share(0, 40, 4)]), "asks for 30 vcore and 4GiB", id="more time"),
        pytest.param(sealed(a=[share(0, 30, 5)]), "asks for 30 vcore and 4GiB", id="more memory"),
        pytest.param(sealed(a=[share(0, 20, 4)]), "asks for 30 vcore and 4GiB", id="less"),
        pytest.param(sealed(a=[share(7, 30, 4)]), "is not a device of this node", id="elsewhere"),
        pytest.param(devices(a=[7]), "is not a device of this node", id="no such device"),
        pytest.param(devices(a=[0, 1]), "asks for 1 devices, 2 were chosen", id="two"),
        pytest.param(devices(a=[0, 0]), "asks for 1 devices, 2 were chosen", id="one twice"),
    ],
)
def test_choice_that_differs_from_the_request_is_refused_for_good(chosen, words):
    exc = refused(node(), one(), chosen=chosen)
    assert words in str(exc)
    assert exc.final


def test_pod_waits_for_the_chosen_device_even_if_another_is_free():
    held = [datatypes.Holding(share(1, 80, 4), "team/p")]
    for chosen in (devices(a=[1]), sealed(a=[share(1, 30, 4)])):
        exc = refused(node(held=held), one(), chosen=chosen)
        assert "for now: gpu1 has 20 vcore and 12GiB free" in str(exc)
        assert isinstance(exc, placement.WaitsError)


@pytest.mark.parametrize(
    "chosen", [placement.NOTHING, devices(a=[0]), sealed(a=[share(0, 30, 4)])]
)
def test_temporary_causes_are_no_final_refusal(chosen):
    """Room becomes free some day; an unhealthy device may never recover."""
    held = [datatypes.Holding(share(0, 100, 16), "team/p")]
    unhealthy = [node(1, unhealthy="Xid 79"), node(1, held, unhealthy="Xid 79"), node(0)]
    for bad in unhealthy:
        exc = refused(bad, one(), chosen=chosen)
        assert (exc.final, isinstance(exc, placement.WaitsError)) == (False, False)
    assert isinstance(refused(node(1, held), one(), chosen=chosen), placement.WaitsError)
    own = refused(node(1, held), one(), chosen=chosen, own=held)
    assert (own.final, isinstance(own, placement.WaitsError)) == (True, False)


# --- requests ------------------------------------------------------------------------------------


def container(name, vcore, units, listed=True):
    return pod_identity.PodContainer(
        name,
        "0" * 16,
        frozenset(f"c{number}" for number in range(vcore)),
        frozenset(f"m{number}" for number in range(units)),
        listed,
    )


def test_request_of_a_container_comes_from_its_ids():
    own = [container("a", 30, 4), container("i", 60, 2, listed=False)]
    assert placement.read_requests(own, own, (), GIB) == (one("i", 60, 2, INIT), one("a", 30, 4))


@pytest.mark.parametrize(
    ("vcore", "units", "words"),
    [
        pytest.param(30, 0, "a: vcore 30 without vmemory", id="no memory"),
        pytest.param(150, 4, "a: vcore 150: above 100", id="150"),
        pytest.param(30, 1, "a: vmemory of 1GiB: a share needs at least 2GiB", id="too little"),
    ],
)
def test_impossible_request_is_refused_for_good(vcore, units, words):
    has = (datatypes.NodeDevice("GPU-0", 0, 16 * GIB, least_bytes=3 * GIB),)
    has += (datatypes.NodeDevice("GPU-1", 1, 16 * GIB, least_bytes=2 * GIB),)
    own = [container("a", vcore, units)]
    with pytest.raises(placement.RefusedError, match=words) as caught:
        placement.read_requests(own, own, has, GIB)
    assert caught.value.final


def test_whole_device_needs_no_vmemory():
    own = [container("a", 100, 1)]
    has = (datatypes.NodeDevice("GPU-0", 0, 16 * GIB, least_bytes=2 * GIB),)
    assert placement.read_requests(own, own, has, GIB)[0].need.whole
