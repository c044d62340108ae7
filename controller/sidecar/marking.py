"""Detect a pod's sidecar containers and read their options.

A container is marked by ``SIDECAR_TERMINATION=true`` in its environment, by the variables that
OpenKruise and Alibaba's elastic instances use for the same, or by a policy of the cluster for a
namespace or for labels. Everything else in spec.containers is a main container. Init containers
(native sidecars among them) and ephemeral containers are neither.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import mark_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyvgpu.controller.sidecar import sidecar_pods


@dataclasses.dataclass(frozen=True, slots=True)
class SidecarOptions:
    """A sidecar's options, from environment variables that begin with SIDECAR_TERMINATION."""

    grace_seconds: int | None = None  # _GRACE_SECONDS; None: the pod's
    order: int = 0  # _ORDER; the lowest ends first
    command: str = ""  # _COMMAND; run in the container, makes it exit with code 0
    exits_zero: bool = False  # _EXITS_ZERO; it exits with code 0 on its stop signal

    @property
    def quits(self) -> bool:
        """Whether only its command is known to make it exit with code 0."""
        return bool(self.command) and not self.exits_zero


@dataclasses.dataclass(frozen=True, slots=True)
class MarkingPolicy:
    """Marks containers without a mark of their own; patterns are shell globs."""

    containers: tuple[str, ...]
    namespace: str = "*"
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def marks(
        self, pod: sidecar_pods.WatchedPod, container: sidecar_pods.ObservedContainer
    ) -> bool:
        """Return whether the policy selects *container*."""
        return (
            fnmatch.fnmatchcase(pod.namespace, self.namespace)
            and all(
                fnmatch.fnmatchcase(pod.labels.get(key, ""), pattern)
                for key, pattern in self.labels.items()
            )
            and any(fnmatch.fnmatchcase(container.name, pattern) for pattern in self.containers)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Marking:
    """A pod's containers by role. If *why_not* is set, the pod is left alone."""

    sidecars: tuple[sidecar_pods.ObservedContainer, ...]
    mains: tuple[sidecar_pods.ObservedContainer, ...]
    options: Mapping[str, SidecarOptions]  # by sidecar name
    warnings: tuple[str, ...]
    why_not: str  # a sentence; empty if the controller handles the pod


def mark(pod: sidecar_pods.WatchedPod, policies: Sequence[MarkingPolicy] = ()) -> Marking:
    """Classify the containers of *pod*."""
    warnings: list[str] = []
    sidecars: list[sidecar_pods.ObservedContainer] = []
    mains: list[sidecar_pods.ObservedContainer] = []
    options: dict[str, SidecarOptions] = {}
    for container in pod.containers:
        said = _said(container, warnings)
        if said is None:
            said = any(policy.marks(pod, container) for policy in policies)
        (sidecars if said else mains).append(container)
        if said:
            options[container.name] = _options(container, warnings)
    return Marking(
        tuple(sidecars),
        tuple(mains),
        options,
        tuple(warnings),
        _why_not(pod, sidecars, mains),
    )


def _why_not(
    pod: sidecar_pods.WatchedPod,
    sidecars: Sequence[sidecar_pods.ObservedContainer],
    mains: Sequence[sidecar_pods.ObservedContainer],
) -> str:
    if not sidecars:
        return "no container is marked as a sidecar"
    if not mains:
        return "every container is marked as a sidecar, so there is no main container to wait for"
    if pod.static:
        return "a static pod is defined by a file on its node"
    if pod.restart_policy not in ("Never", "OnFailure"):
        return (
            f"restartPolicy is {pod.restart_policy}: kubelet starts every container again; "
            "such a pod ends when it is Never or OnFailure"
        )
    if owner := another(pod):
        return f"the controller of {owner} ends the sidecars of its pods itself"
    return ""


def another(pod: sidecar_pods.WatchedPod) -> str:
    """Return the owner of *pod* if that ends its pods' sidecars itself; else empty."""
    keys = (*pod.labels, *pod.annotations)
    found = (
        prefix for prefix in mark_names.OTHERS_OWN if any(key.startswith(prefix) for key in keys)
    )
    return next(found, "").rstrip("/")


def _said(container: sidecar_pods.ObservedContainer, warnings: list[str]) -> bool | None:
    """Return the container's own mark; None if it has none."""
    said: dict[str, bool] = {}
    for variable, text in container.environment.items():
        for mark_name, values in mark_names.MARKS:
            if variable.upper() != mark_name:
                continue
            if text is None:
                warnings.append(
                    f"container {container.name}: {variable} must be a literal value, such as "
                    '"true"; references are not resolved here, so it marks nothing'
                )
                continue
            word = text.strip().lower()
            said[mark_name] = word in values
            if mark_name == names.SIDECAR_VARIABLE and word not in mark_names.YES | mark_names.NO:
                warnings.append(
                    f'container {container.name}: {variable}={text[:40]!r}: must be "true" or '
                    '"false"; it marks nothing'
                )
    if names.SIDECAR_VARIABLE in said:
        return said[names.SIDECAR_VARIABLE]
    return True if any(said.values()) else None


def _options(container: sidecar_pods.ObservedContainer, warnings: list[str]) -> SidecarOptions:
    def find(variable: str) -> str:
        found = [
            text or "" for name, text in container.environment.items() if name.upper() == variable
        ]
        return found[-1].strip() if found else ""

    def number(variable: str, lowest: int, highest: int) -> int | None:
        text = find(variable)
        if not text:
            return None
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if lowest <= value <= highest:
            return value
        warnings.append(
            f"container {container.name}: {variable}={text[:40]!r}: must be a whole number from "
            f"{lowest} to {highest}, such as 5; it is ignored"
        )
        return None

    return SidecarOptions(
        grace_seconds=number(mark_names.GRACE_SECONDS, 0, 86400),
        order=number(mark_names.ORDER, -1000, 1000) or 0,
        command=find(mark_names.COMMAND),
        exits_zero=find(mark_names.EXITS_ZERO).lower() in mark_names.YES,
    )
