"""What the node part does for a record: it trusts nothing that it can see for itself.

A request holds for one pod (by uid) and one container (by id). Whether the main containers are
done is asked again of the container runtime, which knows it first. What holds no longer is
dropped without a word; the controller sees the same and decides anew.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import how, marking, pods, records, when
from pyvgpu.controller.sidecar.how import Path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Running:
    """A container of the pod as the runtime has it: the newest of its name."""

    name: str
    id: str
    exit_code: int | None  # None: it runs
    ended_at: float = 0.0  # by the node's clock, in seconds since 1970


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Tell one container to end: the command, its preStop hook, its signal, at last KILL.

    For a container that kubelet is replacing only the last two: kubelet ran the hook.
    """

    name: str
    id: str
    grace_seconds: int
    kill: bool  # after that; else the runtime is given all the time there is
    command: str
    replaced: bool
    hastened: bool = False  # by a deletion that grants less than was granted before
    quits: bool = False  # its command makes it end, and a signal might spoil its code

    @property
    def mark(self) -> str:
        """Return the name of the file that says that this stop was begun.

        A stop that is hastened is another one: its time counts from when it is begun.
        """
        identity = self.id.rpartition("/")[2]
        return f"{identity}.{self.grace_seconds}" if self.hastened else identity

    def left_after(self, seconds: float) -> float:
        """Return what is left of its time when it was begun *seconds* ago.

        Less than none is a clock that was set back since.
        """
        return max(self.grace_seconds - max(seconds, 0.0), 0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What to stop now, and why nothing else."""

    stops: tuple[Stop, ...]
    why: str
    waits: bool = False  # for something of which no news will come: look again soon


def check(
    pod: pods.Pod,
    node: str,
    runtime: Sequence[Running],
    replacing: frozenset[str],
    policies: Sequence[marking.Policy] = (),
) -> Answer:
    """Decide what of the record in *pod* holds on this *node*.

    *replacing* has the ids of containers that kubelet said it kills because their definition
    changed. Before that, a stop would be the end of a container in a pod with ``Never``.
    """
    if pod.node != node:
        return Answer((), "the pod is on another node")
    marks = marking.mark(pod, policies)
    if pod.deleted:
        return _hasten(pod, marks, runtime, replacing)
    if marks.why_not:
        return Answer((), marks.why_not)
    moment = when.look(pod, marks.mains)
    if not moment.done:
        return Answer((), moment.why)
    record = records.read(pod, moment.ended_text)
    if record is None:
        return Answer((), "there is no record of this end of the main containers")
    found = {entry.name: entry for entry in runtime}
    if why := not_done(marks, found):
        return Answer((), why, waits=True)
    sidecars = {entry.name: entry for entry in marks.sidecars}
    stoppable = [
        (entry.order, _stop(sidecars[name], entry, replacing, marks.wishes[name]))
        for name, entry in record.entries.items()
        if name in sidecars
        and entry.path in (Path.STOP, Path.HYBRID)
        and name in found
        and (found[name].id, found[name].exit_code) == (entry.id, None)
    ]
    if not stoppable:
        return Answer((), "no container that was to be stopped runs")
    first = min(order for order, _ in stoppable)
    swapped = [
        name
        for name, entry in record.entries.items()
        if entry.path is Path.SWAP
        and entry.order < first
        and name in found
        and (found[name].id, found[name].exit_code) == (entry.id, None)
    ]
    if swapped:
        return Answer(
            (), f"kubelet has not ended {swapped[0]} yet, whose turn is before", waits=True
        )
    stops = tuple(stop for order, stop in stoppable if order == first and stop)
    if not stops:
        return Answer((), "kubelet has not begun to replace it", waits=True)
    return Answer(stops, "")


def _hasten(
    pod: pods.Pod, marks: marking.Marking, runtime: Sequence[Running], replacing: frozenset[str]
) -> Answer:
    """Decide what to stop in a pod that is being deleted.

    Kubelet ends it, with one exception: for a container that it replaces it waits as long as the
    pod grants of itself, whatever less the deletion does.
    """
    record = records.read_any(pod)  # while kubelet replaces a container it says nothing of others
    entries = record.entries.items() if record else ()
    swapped = {name for name, entry in entries if entry.path in how.SWAPS}
    if names.SWAPPED_ANNOTATION in pod.annotations:
        swapped |= {entry.name for entry in marks.sidecars}
    running = {
        entry.name: entry.id
        for entry in runtime
        if entry.exit_code is None and entry.name in swapped & marks.wishes.keys()
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
    return Answer(stops, "" if stops else when.refused(pod), waits=len(stops) < len(running))


def foresee(
    pod: pods.Pod,
    node: str,
    runtime: Sequence[Running],
    policies: Sequence[marking.Policy] = (),
) -> Answer:
    """Decide which stops in *pod* need nobody's decision, before kubelet says that it is done.

    A sidecar that is known to end with 0 is told to end as soon as the runtime says that the main
    containers are done: the controller would decide the same, a second later. It is told and not
    killed; what becomes of it if that does not help is the controller's to decide.
    """
    if pod.node != node:
        return Answer((), "the pod is on another node")
    if names.STOP_ANNOTATION in pod.annotations:
        return Answer((), "the controller has decided")
    marks = marking.mark(pod, policies)
    refused = marks.why_not or when.refused(pod)
    found = {entry.name: entry for entry in runtime}
    if refused or (refused := is_kubelets_to_say(pod) or not_done(marks, found)):
        return Answer((), refused)
    running = [
        entry
        for entry in marks.sidecars
        if entry.name in found and found[entry.name].exit_code is None
    ]
    first = min((marks.wishes[entry.name].order for entry in running), default=0)
    return Answer(
        tuple(
            Stop(
                entry.name,
                found[entry.name].id,
                pod.grace_seconds if wishes.grace_seconds is None else wishes.grace_seconds,
                kill=False,
                command=wishes.command,
                replaced=False,
                quits=wishes.quits,
            )
            for entry in running
            if (wishes := marks.wishes[entry.name]).order == first
            and how.is_clean(wishes)
            and not how.is_eternal(entry)
        ),
        "",
    )


def is_kubelets_to_say(pod: pods.Pod) -> str:
    """Return why the runtime alone does not know whether work is done; empty if it does."""
    if not pod.restarts_all:
        return ""
    return "kubelet may be ending every container, to start all of them again"


def not_done(marks: marking.Marking, found: Mapping[str, Running]) -> str:
    """Return of which main container the runtime does not say that it is done, if of any."""
    for main in marks.mains:
        seen = found.get(main.name)
        if seen is None or seen.exit_code is None or main.will_restart(seen.exit_code):
            return f"the runtime says that main container {main.name} is not done"
    return ""


def _stop(
    container: pods.Container,
    entry: records.Entry,
    replacing: frozenset[str],
    wishes: marking.Wishes,
) -> Stop | None:
    replaced = entry.path is Path.HYBRID
    # Ended before, it would not be started again with Never; and with OnFailure as it was, where
    # kubelet has not seen the new image yet, and once more with that: a Job counts both.
    if replaced and entry.id not in replacing:
        return None
    return Stop(
        container.name,
        entry.id,
        entry.grace_seconds,
        entry.kill,
        entry.command,
        replaced,
        quits=wishes.quits and not replaced,
    )
