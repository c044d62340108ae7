"""Check kube-scheduler's configuration of our extender before it runs.

A mistake there has late effects: pods stay Pending although there is room, or are bound to a node
that then refuses them.
"""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.scheduler import gang_state, pod_request, sampling
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyvgpu.kube.objects import Object

KIND = "KubeSchedulerConfiguration"
ALL = 100  # percent
USUAL_TIMEOUT = 5.0  # seconds, kube-scheduler's default for httpTimeout
_RESOURCES = frozenset(name for pair in pod_request.RESOURCES for name in pair)
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}


@dataclasses.dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake in the configuration."""

    found: str
    remedy: str
    fatal: bool = False  # with it no pod gets devices


def check(document: object) -> tuple[ConfigProblem, ...]:
    """Return the mistakes in kube-scheduler's configuration.

    DataError if *document* is no such configuration.
    """
    if not isinstance(document, dict) or document.get("kind") != KIND:
        kind = document.get("kind") if isinstance(document, dict) else document
        raise errors.DataError(
            f"kind {str(kind)[:40]!r}: must be {KIND}, as in the file of kube-scheduler's --config"
        )
    ours = [entry for entry in objects.entries(document, "extenders") if _is_ours(entry)]
    if not ours:
        return (
            ConfigProblem(
                f"none of its extenders manages {pod_request.RESOURCES[0][0]}",
                "extenders: as in docs/scheduler.md",
                fatal=True,
            ),
        )
    return (*_sampling(document), *(problem for one in ours for problem in _extender(one)))


def _is_ours(extender: Object) -> bool:
    managed = {str(entry.get("name")) for entry in objects.entries(extender, "managedResources")}
    return bool(managed & _RESOURCES)


def _sampling(document: Object) -> Iterator[ConfigProblem]:
    usual = document.get("percentageOfNodesToScore")
    for profile in objects.entries(document, "profiles") or ({},):
        own = profile.get("percentageOfNodesToScore")
        percent = usual if own is None else own
        if percent == ALL:
            continue
        name = profile.get("schedulerName")
        where = f" of profile {name}" if name else ""
        said = "is not set" if percent is None else f"is {percent}"
        yield ConfigProblem(
            f"percentageOfNodesToScore{where} {said}: in a cluster of more than {sampling.LEAST} "
            "nodes kube-scheduler asks about only some of them, and a pod may wait although "
            "another node has room",
            sampling.REMEDY,
        )


def _extender(one: Object) -> Iterator[ConfigProblem]:
    if not one.get("filterVerb"):
        yield ConfigProblem(
            "kube-scheduler does not ask which devices have room", "filterVerb: filter", fatal=True
        )
    if not one.get("bindVerb"):
        yield ConfigProblem(
            "kube-scheduler binds by itself: a pod gets no devices",
            "bindVerb: bind",
            fatal=True,
        )
    if one.get("nodeCacheCapable") is not True:
        yield ConfigProblem("nodes are sent whole, 24 MB for 5,000", "nodeCacheCapable: true")
    if one.get("ignorable") is True:
        yield ConfigProblem(
            "while the extender is down, pods are placed by node totals, and their nodes "
            "refuse them",
            "ignorable: false",
        )
    timeout = _seconds(one.get("httpTimeout"))
    if timeout is not None and timeout <= gang_state.WAIT_SECONDS:
        yield ConfigProblem(
            f"httpTimeout is {timeout:g} s: a gang waits up to {gang_state.WAIT_SECONDS:g} s for "
            "its last pod",
            "httpTimeout: 30s",
        )


def _seconds(text: object) -> float | None:
    """Parse a duration in Go's format; None if it is not one."""
    if text is None:
        return USUAL_TIMEOUT
    parts = re.findall(r"([0-9.]+)(h|ms|m|s)", str(text))
    if not parts or "".join(number + unit for number, unit in parts) != str(text):
        return None
    try:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    except ValueError:
        return None
