"""Scenarios of pod groups that kube-scheduler places as a whole, with our extender."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import extenders

if TYPE_CHECKING:
    from collections.abc import Callable

    import rig

    Scenario = Callable[["PodGroups", rig.Space], None]


class PodGroups(abc.ABC):
    """How pods of one system name their group."""

    @abc.abstractmethod
    def create(self, space: rig.Space, name: str, count: int) -> None:
        """Create a group of which *count* pods run together."""

    @abc.abstractmethod
    def join(self, pod: dict[str, Any], name: str) -> dict[str, Any]:
        """Return *pod* as one of the group called *name*."""

    def members(self, name: str, count: int, vcore: int = 100) -> list[dict[str, Any]]:
        """Return the pods of a group; of 100 vcore each takes a whole device."""
        memory = 16 if vcore == 100 else 4
        pods = [extenders.pod(f"{name}-{n}", vcore, memory) for n in range(count)]
        return [self.join(pod, name) for pod in pods]


def is_refused(pod: dict[str, Any]) -> bool:
    """Return whether kube-scheduler has reported that it cannot place a pod."""
    return any(
        (condition["type"], condition["status"]) == ("PodScheduled", "False")
        for condition in pod["status"].get("conditions", ())
    )


def _until_refused(space: rig.Space, name: str, count: int) -> None:
    for n in range(count):
        space.until("pods", f"{name}-{n}", is_refused)


def _begin(groups: PodGroups, space: rig.Space) -> None:
    """Let a group of four wait while one pod has one of four devices."""
    space.create("pods", extenders.pod("filler", 100, 16))
    extenders.until_bound(space, 1)
    groups.create(space, "red", 4)
    extenders.create_all(space, groups.members("red", 4))
    _until_refused(space, "red", 4)
    assert extenders.bound(space).keys() == {"filler"}


def starts_when_a_device_is_freed(groups: PodGroups, space: rig.Space) -> None:
    """Its event says what is missing, and then all its pods start."""
    with extenders.fake_nodes("group-0", "group-1"):
        _begin(groups, space)
        space.until_event_of("FailedScheduling", "2 Insufficient pyvgpu.io/vcore")
        extenders.bury(space, "filler")
        extenders.until_bound(space, 4)
        extenders.assert_not_overcommitted(space)


def holds_nothing_while_it_waits(groups: PodGroups, space: rig.Space) -> None:
    """Later pods without a group get the three free devices."""
    with extenders.fake_nodes("group-0", "group-1"):
        _begin(groups, space)
        extenders.create_all(space, [extenders.pod(f"single-{n}", 100, 16) for n in range(3)])
        extenders.until_bound(space, 4)
        assert not any(name.startswith("red") for name in extenders.bound(space))
        for name in ("filler", "single-0", "single-1", "single-2"):
            extenders.bury(space, name)
        extenders.until_bound(space, 4)
        extenders.assert_not_overcommitted(space)


def gives_way_to_another(groups: PodGroups, space: rig.Space) -> None:
    """Of two groups of four with six devices one starts, and the other after it."""
    with extenders.fake_nodes("group-0", "group-1", "group-2"):
        pods = []
        for name in ("red", "blue"):
            groups.create(space, name, 4)
            pods.append(groups.members(name, 4))
        extenders.create_all(space, [pod for pair in zip(*pods, strict=True) for pod in pair])
        extenders.until_bound(space, 4)
        found = {name.partition("-")[0] for name in extenders.bound(space)}
        assert len(found) == 1
        (first,) = found
        (second,) = {"red", "blue"} - found
        _until_refused(space, second, 4)
        assert len(extenders.bound(space)) == 4
        for n in range(4):
            extenders.bury(space, f"{first}-{n}")
        extenders.until_bound(space, 4)
        assert {name.partition("-")[0] for name in extenders.bound(space)} == {second}


def fits_by_device(groups: PodGroups, space: rig.Space) -> None:
    """Three pods of 60 vcore wait on two devices, although 180 of 200 would be enough in total."""
    with extenders.fake_nodes("group-0"):
        groups.create(space, "red", 3)
        extenders.create_all(space, groups.members("red", 3, 60))
        _until_refused(space, "red", 3)
        space.until_event_of("VGPUWaits", "not enough left on each device")
        assert extenders.bound(space) == {}
        with extenders.fake_nodes("group-1"):
            extenders.until_bound(space, 3)
            extenders.assert_not_overcommitted(space)


SCENARIOS: tuple[Scenario, ...] = (
    starts_when_a_device_is_freed,
    holds_nothing_while_it_waits,
    gives_way_to_another,
    fits_by_device,
)
