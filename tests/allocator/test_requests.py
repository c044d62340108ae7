"""Requests of containers by the rules of the resources and of kubelet."""

import pytest
from allocator_nodes import GIB, app, init, sidecar
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu import errors
from pyvgpu.allocator import datatypes, requests


@pytest.mark.parametrize(
    ("vcore", "size", "count", "expected"),
    [
        (1, 1, None, datatypes.ContainerNeed(1, 1)),
        (99, GIB, None, datatypes.ContainerNeed(99, GIB)),
        (100, 0, None, datatypes.ContainerNeed(100, 0)),
        (100, GIB, None, datatypes.ContainerNeed(100, GIB)),
        (300, 3 * GIB + 1, None, datatypes.ContainerNeed(100, GIB + 1, 3)),
        (100, 16 * GIB, 2, datatypes.ContainerNeed(50, 8 * GIB, 2)),
        (200, 0, 2, datatypes.ContainerNeed(100, 0, 2)),
        (50, GIB, 1, datatypes.ContainerNeed(50, GIB)),
    ],
)
def test_requests_of_containers(vcore, size, count, expected):
    assert requests.read(vcore, size, count) == expected


@pytest.mark.parametrize(
    ("vcore", "size", "count", "said"),
    [
        (150, GIB, None, "vcore 150: above 100 it must be.*valid would be 100 or 200"),
        (0, GIB, None, "^vmemory without vcore: .*from 1 to 99 vcore, such as 50"),
        (0, 0, None, "vcore 0: must be from 1 to 99.*such as 50"),
        (30, 0, None, "vcore 30 without vmemory.*at least 1 unit"),
        (100, GIB, 3, "vcore 100 on 3 devices.*such as 150"),
        (300, GIB, 2, "vcore 300 on 2 devices.*such as 100"),
        (100, 0, 2, "vcore 100 without vmemory"),
        (100, GIB, 0, "vcore 100 on 0 devices"),
    ],
)
def test_invalid_requests_are_refused_with_a_valid_example(vcore, size, count, said):
    with pytest.raises(errors.UsageError, match=said):
        requests.read(vcore, size, count)


@pytest.mark.parametrize(
    ("vcore", "size", "count", "said"),
    [
        (30, GIB - 1, None, "vmemory of 1024.0MiB: a share needs at least 1GiB"),
        (60, 2 * GIB - 1, 2, "vmemory of 2.0GiB: a share needs at least 2GiB"),
    ],
)
def test_less_memory_than_a_context_needs_is_refused(vcore, size, count, said):
    with pytest.raises(errors.UsageError, match=said):
        requests.read(vcore, size, count, least=GIB)
    assert requests.read(vcore, size + 1, count, least=GIB).vmemory == GIB


def test_a_whole_device_may_ask_for_less():
    assert requests.read(100, 1, least=GIB).whole


@pytest.mark.parametrize(
    ("containers", "expected"),
    [
        pytest.param((app("a", 30, 1), app("b", 40, 2)), (70, 3), id="apps add up"),
        pytest.param((init("i", 50, 1), app("a", 30, 2)), (50, 2), id="the larger of each"),
        pytest.param((init("i", 50, 1), init("j", 60, 1), app("a", 30, 2)), (60, 2), id="in turn"),
        pytest.param((sidecar("s", 20, 1), app("a", 30, 2)), (50, 3), id="sidecars stay"),
        pytest.param(
            (sidecar("s", 20, 1), init("i", 90, 1), app("a", 30, 2)), (110, 3), id="beside init"
        ),
        pytest.param(
            (init("i", 90, 1), sidecar("s", 20, 1), app("a", 30, 2)), (90, 3), id="after init"
        ),
        pytest.param((init("i", 90, 1),), (90, 1), id="init alone"),
        pytest.param((app("a", 100, 0, 3),), (300, 0), id="several devices"),
    ],
)
def test_kubelet_counts_the_concurrent_maximum(containers, expected):
    vcore, size = requests.effective(containers)
    assert (vcore, size // GIB) == expected


@given(
    st.lists(st.tuples(st.sampled_from(["init", "sidecar"]), st.integers(1, 99)), max_size=6),
    st.lists(st.integers(1, 99), max_size=4),
)
def test_formula_equals_that_of_kubelet(starting, apps):
    """As PodRequests of k8s.io/component-helpers has it, written out step by step."""
    if not starting and not apps:
        return
    containers = [
        (init if kind == "init" else sidecar)(f"s{i}", vcore)
        for i, (kind, vcore) in enumerate(starting)
    ] + [app(f"a{i}", vcore) for i, vcore in enumerate(apps)]
    total, restartable, highest = sum(apps), 0, 0
    for kind, vcore in starting:
        needed = vcore + restartable
        if kind == "sidecar":
            total += vcore
            restartable += vcore
            needed = restartable
        highest = max(highest, needed)
    assert requests.effective(containers)[0] == max(total, highest)
