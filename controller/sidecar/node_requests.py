"""Decide which requests of a pod's record the node part carries out; pure.

A request applies to one pod (by uid) and one container (by ID). The container runtime is asked
again whether the main containers are done, because it knows first. Requests that no longer apply
are dropped silently; the controller sees the same state and decides again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import (
    main_completion,
    marking,
    records,
    sidecar_pods,
    termination_methods,
)
from pyvgpu.controller.sidecar.termination_methods import Method

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """The newest container of its name in the pod, as the runtime lists it."""

    name: str
    id: str
    exit_code: int | None  # None: running
    ended_at: float = 0.0  # by the node's clock, seconds since the epoch


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Stop one container: preStop hook, command, signal, and finally KILL.

    A container that kubelet is replacing gets only the last two: kubelet ran the hook.
    """

    name: str
    id: str
    grace_seconds: int
    kill: bool  # after the grace period; false: never
    command: str
    replaced: bool
    hastened: bool = False  # by a deletion with a shorter grace period
    quits: bool = False  # its command ends it; a signal might change its exit code

    @property
    def mark(self) -> str:
        """The name of the marker file of this stop.

        A hastened stop has its own: its grace period counts from its own beginning.
        """
        identity = self.id.rpartition("/")[2]
        return f"{identity}.{self.grace_seconds}" if self.hastened else identity

    def left_after(self, seconds: float) -> float:
        """Return the rest of its grace period if it began *seconds* ago.

        Negative *seconds* mean that the clock was set back, and count as 0.
        """
        return max(self.grace_seconds - max(seconds, 0.0), 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class NodeStops:
    """The stops to carry out now, or why there are none."""

    stops: tuple[Stop, ...]
    why: str
    waits: bool = False  # for a change that no event announces: check again soon


def check(
    pod: sidecar_pods.WatchedPod,
    node: str,
    runtime: Sequence[Running],
    replacing: frozenset[str],
    policies: Sequence[marking.MarkingPolicy] = (),
) -> NodeStops:
    """Decide which stops of the record in *pod* to carry out on this *node*.

    *replacing* has the IDs of containers that kubelet is killing because their definition changed.
    A stop before that would end the container for good in a pod with ``Never``.
    """
    if pod.node != node:
        return NodeStops((), "the pod is on another node")
    marks = marking.mark(pod, policies)
    if pod.deleted:
        return _hasten(pod, marks, runtime, replacing)
    if marks.why_not:
        return NodeStops((), marks.why_not)
    moment = main_completion.read(pod, marks.mains)
    if not moment.done:
        return NodeStops((), moment.why)
    record = records.read(pod, moment.ended_text)
    if record is None:
        return NodeStops((), "the exit of the main containers is not recorded")
    found = {entry.name: entry for entry in runtime}
    if why := not_done(marks, found):
        return NodeStops((), why, waits=True)
    sidecars = {entry.name: entry for entry in marks.sidecars}
    stoppable = [
        (entry.order, _stop(sidecars[name], entry, replacing, marks.options[name]))
        for name, entry in record.entries.items()
        if name in sidecars
        and entry.path in (Method.STOP, Method.HYBRID)
        and name in found
        and (found[name].id, found[name].exit_code) == (entry.id, None)
    ]
    if not stoppable:
        return NodeStops((), "no recorded container is running")
    first = min(order for order, _ in stoppable)
    swapped = [
        name
        for name, entry in record.entries.items()
        if entry.path is Method.SWAP
        and entry.order < first
        and name in found
        and (found[name].id, found[name].exit_code) == (entry.id, None)
    ]
    if swapped:
        return NodeStops(
            (), f"kubelet has not ended {swapped[0]} yet, which comes first", waits=True
        )
    stops = tuple(stop for order, stop in stoppable if order == first and stop)
    if not stops:
        return NodeStops((), "kubelet has not begun to replace it", waits=True)
    return NodeStops(stops, "")


def _hasten(
    pod: sidecar_pods.WatchedPod,
    marks: marking.Marking,
    runtime: Sequence[Running],
    replacing: frozenset[str],
) -> NodeStops:
    """Decide what to stop in a pod that is being deleted.

    Kubelet ends the pod, with one exception: it gives a container that it is replacing the pod's
    own grace period, even if that of the deletion is shorter.
    """
    record = records.read_any(pod)  # kubelet reports no other ends while it replaces a container
    entries = record.entries.items() if record else ()
    swapped = {name for name, entry in entries if entry.path in termination_methods.SWAPS}
    if names.SWAPPED_ANNOTATION in pod.annotations:
        swapped |= {entry.name for entry in marks.sidecars}
    running = {
        entry.name: entry.id
        for entry in runtime
        if entry.exit_code is None and entry.name in swapped & marks.options.keys()
    }
    stops = tuple(
        Stop(
            name,
            identity,
            pod.deletion_seconds,
            kill=True,
            command="",
            replaced=True,
            hastened=True,
        )
        for name, identity in running.items()
        if identity in replacing
    )
    return NodeStops(
        stops, "" if stops else main_completion.refused(pod), waits=len(stops) < len(running)
    )


def foresee(
    pod: sidecar_pods.WatchedPod,
    node: str,
    runtime: Sequence[Running],
    policies: Sequence[marking.MarkingPolicy] = (),
) -> NodeStops:
    """Decide which sidecars of *pod* to stop without waiting for the controller.

    A sidecar that is known to exit with 0 is signaled as soon as the runtime reports that the main
    containers are done: the controller would decide the same a second later. It is not killed; if
    the signal has no effect, the controller decides what follows.
    """
    if pod.node != node:
        return NodeStops((), "the pod is on another node")
    if names.STOP_ANNOTATION in pod.annotations:
        return NodeStops((), "the controller has decided")
    marks = marking.mark(pod, policies)
    refused = marks.why_not or main_completion.refused(pod)
    found = {entry.name: entry for entry in runtime}
    if refused or (refused := is_kubelets_to_say(pod) or not_done(marks, found)):
        return NodeStops((), refused)
    running = [
        entry
        for entry in marks.sidecars
        if entry.name in found and found[entry.name].exit_code is None
    ]
    first = min((marks.options[entry.name].order for entry in running), default=0)
    return NodeStops(
        tuple(
            Stop(
                entry.name,
                found[entry.name].id,
                pod.grace_seconds if options.grace_seconds is None else options.grace_seconds,
                kill=False,
                command=options.command,
                replaced=False,
                quits=options.quits,
            )
            for entry in running
            if (options := marks.options[entry.name]).order == first
            and termination_methods.is_clean(options)
            and not termination_methods.is_eternal(entry)
        ),
        "",
    )


def is_kubelets_to_say(pod: sidecar_pods.WatchedPod) -> str:
    """Return why only kubelet knows whether the pod is done; empty if the runtime suffices."""
    if not pod.restarts_all:
        return ""
    return "kubelet may be ending every container, to start all of them again"


def not_done(marks: marking.Marking, found: Mapping[str, Running]) -> str:
    """Name a main container that is not done by the runtime; empty if all are."""
    for main in marks.mains:
        seen = found.get(main.name)
        if seen is None or seen.exit_code is None or main.will_restart(seen.exit_code):
            return f"the runtime says that main container {main.name} is not done"
    return ""


def _stop(
    container: sidecar_pods.ObservedContainer,
    entry: records.ActionRecord,
    replacing: frozenset[str],
    options: marking.SidecarOptions,
) -> Stop | None:
    replaced = entry.path is Method.HYBRID
    # Stopped before kubelet replaces it, it would not restart with Never. With OnFailure kubelet
    # would restart it with the old image if it has not seen the new one, and then once more with
    # the new one: a Job counts both restarts.
    if replaced and entry.id not in replacing:
        return None
    return Stop(
        container.name,
        entry.id,
        entry.grace_seconds,
        entry.kill,
        entry.command,
        replaced,
        quits=options.quits and not replaced,
    )
