"""Matching ids to pods from two sources, and doubts if they differ."""

import pytest

from pyvgpu import names
from pyvgpu._api import pod_resources_pb2 as api
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import grant_binding, grant_index, pod_identity
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids, pod_resources

VCORE, VMEMORY = device_ids.ResourceKind.VCORE, device_ids.ResourceKind.VMEMORY
KINDS = {our.name: our.kind for our in device_ids.OURS}


SHARE = datatypes.NodeShare("GPU-0", 50, 1 << 30)


def some(text):
    return frozenset(text.split())


def entries(uid, **containers):
    """Return a pod's entries in kubelet's checkpoint: container="its vcore / its vmemory"."""
    found = []
    for number, (name, text) in enumerate(containers.items()):
        for kind, held in zip((VCORE, VMEMORY), text.split("/"), strict=True):
            if held.strip():
                grant = f"{number:016x}" if kind is VCORE else ""
                found.append(checkpoint_file.CheckpointEntry(uid, name, kind, some(held), grant))
    return checkpoint_file.Entries(found)


def listed(name, **containers):
    """Return a pod as PodResources lists it; containers as for :func:`entries`."""
    pod = api.PodResources(name=name, namespace="default")
    for container, text in containers.items():
        resources = (names.VCORE_RESOURCE, names.VMEMORY_RESOURCE)
        held = zip(resources, text.split("/"), strict=True)
        listed = pod.containers.add(name=container)
        for resource, own in held:
            for each in own.split():
                listed.devices.add(resource_name=resource, device_ids=[each])
    return pod_resources.ListedPod(pod.SerializeToString(), KINDS)


def listing(*pods):
    return pod_resources.Listing("one", pods)


@pytest.mark.parametrize(
    ("said", "pods", "containers"),
    [
        pytest.param({"a": "c1 c2/m1"}, {"a": "c1 c2/m1"}, {"a"}, id="an app"),
        pytest.param(
            {"a": "c1 c2/m1", "b": "c3/m2"}, {"a": "c1 c2/m1", "b": "c3/m2"}, {"a", "b"}, id="two"
        ),
        pytest.param(
            {"i": "c1 c2/m1", "a": "c1 c2/m1"}, {"a": "c1 c2/m1"}, {"i*", "a"}, id="init = app"
        ),
        pytest.param(
            {"i": "c1 c2/m1 m2", "a": "c1/m1"}, {"a": "c1/m1"}, {"i*", "a"}, id="init > app"
        ),
        pytest.param(
            {"i": "c1 c2/m1", "a": "c1 c2 c3/m1 m2"},
            {"a": "c1 c2 c3/m1 m2"},
            {"i*", "a"},
            id="init < app",
        ),
        pytest.param({"i": "c1 c2/m1"}, {"a": "/"}, {"i*"}, id="init only"),
    ],
)
def test_pod_is_identified_among_others(said, pods, containers):
    others = [listed("other", a="c8/m8"), listed("idle", x="/")]
    everything = checkpoint_file.Entries((*entries("u", **said), *entries("v", a="c8/m8")))
    found = pod_identity.identify(
        VCORE, some("c1 c2"), everything, listing(listed("p", **pods), *others)
    )
    assert {
        container.name + ("" if container.listed else "*") for container in found.containers
    } == containers
    assert (found.uid, found.name) == ("u", "" if containers == {"i*"} else "p")


def test_pod_is_identified_by_its_vmemory():
    said = entries("u", i="c1 c2/m1", a="c1 c2 c3/m1 m2")
    found = pod_identity.identify(
        VMEMORY, some("m1"), said, listing(listed("p", a="c1 c2 c3/m1 m2"))
    )
    assert (found.uid, found.name, len(found.containers)) == ("u", "p", 2)


def test_grant_id_comes_from_allocates_answer():
    said = entries("u", i="c1/m1", a="c1/m1")
    found = pod_identity.identify(VCORE, some("c1"), said, listing(listed("p", a="c1/m1")))
    assert {container.name: container.grant[-1] for container in found.containers} == {
        "i": "0",
        "a": "1",
    }


def test_container_without_vcore_is_included():
    said = entries("u", a="/m1")
    found = pod_identity.identify(VMEMORY, some("m1"), said, listing(listed("p", a="/m1")))
    assert [(container.grant, container.vcore) for container in found.containers] == [
        ("", frozenset())
    ]


@pytest.mark.parametrize(
    ("said", "pods", "words"),
    [
        pytest.param(entries("u"), [listed("p", a="c1/m1")], "has no pod", id="not written yet"),
        pytest.param(
            checkpoint_file.Entries((*entries("u", a="c1/m1"), *entries("v", a="c1/m2"))),
            [listed("p", a="c1/m1")],
            "several pods",
            id="an old pod and a new one",
        ),
        pytest.param(entries("u", a="c1 c2/m1"), [], "other ids", id="others than asked"),
        pytest.param(
            entries("u", a="c1/m1"), [listed("p", a="c1/m2")], "other ids by PodR", id="memory"
        ),
        pytest.param(
            entries("u", a="c1/m1"), [listed("p", b="c1/m1")], "that others have", id="container"
        ),
        pytest.param(
            entries("u", a="c1/m1"),
            [listed("p", a="c1/m1"), listed("q", a="c1/m1")],
            "several pods",
            id="two pods hold them",
        ),
        pytest.param(
            entries("u", a="c1/m1", b="c2/m2"),
            [listed("p", a="c1/m1", b="/m2")],
            "other ids",
            id="a container lacks some",
        ),
        pytest.param(
            entries("u", i="c1/m1", a="c2/m1"),
            [listed("p", a="c2/"), listed("q", a="c1/m1")],
            "that others have",
            id="another pod's",
        ),
    ],
)
def test_unclear_ids_raise_a_doubt(said, pods, words):
    with pytest.raises(pod_identity.DoubtError, match=words):
        pod_identity.identify(VCORE, some("c1"), said, listing(*pods))


def bound_to(uid, name, *, vcore="c1", vmemory="m1"):
    owner = grants.Owner(uid, "default" if name else "", name, "a")
    return grants.Grant(f"{7:016x}", some(vcore), 0.0, owner, some(vmemory), (SHARE,))


def superseded(old, *, kept, name="web-0", vcore="c1"):
    """Return whether the grant ends when a pod with other ids, or the same, starts."""
    there = grant_index.GrantIndex()
    there.change([old], [])
    one = pod_identity.PodContainer("a", f"{8:016x}", some(vcore), some("m9"), listed=True)
    new = pod_identity.KnownPod("new", "default" if name else "", name, (one,))
    return grant_binding.superseded(new, (), there, {old.id}, lambda _: kept) == [old]


def test_ending_pod_keeps_its_grant_beside_its_successor():
    """For a force-deleted pod of a StatefulSet; unless kubelet has reallocated its ids."""
    old = bound_to("old", "web-0")
    assert not superseded(old, kept=True, vcore="c5")
    assert superseded(old, kept=False, vcore="c5")
    assert superseded(old, kept=True, vcore="c1")


def test_pods_without_a_name_are_compared_by_ids():
    old = bound_to("old", "")
    assert superseded(old, kept=False, name="", vcore="c1")
    assert not superseded(old, kept=False, name="", vcore="c5")
