"""Reconcile one pod: decide from its current state what to do about its sidecars now. Pure.

Stateless: past decisions are in the pod (``records``), their results in the pod's status. So a
controller that crashes loses nothing, and two replicas come to the same decision, of which the API
server accepts one.

A pod is patched at most twice to end its sidecars. The first patch begins the path that
``termination_methods`` chose for each live sidecar; if one is still alive at its deadline, or runs
again after a stop, a second patch takes the next path. After that, an event says what blocks the
pod.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import (
    actions,
    main_completion,
    mark_names,
    marking,
    records,
    sidecar_pods,
    swaps,
    termination_methods,
)
from pyvgpu.controller.sidecar.termination_methods import Method
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
    from pyvgpu.kube.objects import Operation


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionMoment:
    """The time of a decision, and its source of randomness."""

    now: datetime.datetime
    jitter: Callable[[], float]  # from 0 to 1


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A pod whose main containers are done, with all other inputs of the decision."""

    pod: sidecar_pods.WatchedPod
    marks: marking.Marking
    mains: main_completion.MainsState
    record: records.PodRecord | None
    around: termination_methods.Surroundings
    moment: DecisionMoment
    settings: SidecarSettings

    @property
    def step(self) -> int:
        """The number of the next write to the pod, from 1."""
        return self.record.step + 1 if self.record else 1

    @property
    def provider_until(self) -> datetime.datetime:
        """The deadline for a provider to end the containers that its own switch names."""
        timeout = datetime.timedelta(seconds=self.settings.provider_seconds)
        since = self.likely(timeout, self.mains.since)
        return self.moment.now if since is None else since + timeout

    def likely(
        self, timeout: datetime.timedelta, *ends: datetime.datetime | None
    ) -> datetime.datetime | None:
        """Return the first of *ends* that is at most *timeout* in the future.

        Times in a status are by the node's clock, which may be years off: such a time would mean
        to wait for years.
        """
        latest = self.moment.now + timeout
        return next((end for end in ends if end is not None and end <= latest), None)


@dataclasses.dataclass(frozen=True, slots=True)
class SidecarPlan:
    """The decision about one sidecar."""

    container: sidecar_pods.ObservedContainer
    options: marking.SidecarOptions
    situation: termination_methods.Situation
    row: termination_methods.DecisionRow

    @property
    def path(self) -> Method:
        """The path of its row."""
        return self.row.path


def reconcile(
    pod: sidecar_pods.WatchedPod,
    around: termination_methods.Surroundings,
    moment: DecisionMoment,
    settings: SidecarSettings,
) -> actions.Decision:
    """Decide what to do about *pod* at this *moment*."""
    marks = marking.mark(pod, settings.policies)
    mains = main_completion.read(pod, marks.mains)
    if marks.why_not or not mains.done:
        return swaps.reconcile(pod, marks, around.node) or actions.Decision(
            marks.why_not or mains.why
        )
    living = [entry for entry in marks.sidecars if not entry.ended_for_good]
    if not living:
        return actions.Decision("every container has ended; kubelet will end the pod")

    record = records.read(pod, mains.ended_text)
    case = Case(pod, marks, mains, record, around, moment, settings)
    dues = {entry.name: _due(case, entry) for entry in living}
    waiting = [due for due in dues.values() if due and moment.now < due]
    plans = [
        _plan(case, entry)
        for entry in living
        if not (due := dues[entry.name]) or moment.now >= due
    ]
    acting = [plan for plan in plans if plan.path in termination_methods.ACTING]
    if case.step <= min(settings.most_writes, records.MOST_STEPS):
        if any(plan.path is Method.RAISE for plan in plans):
            return _raise(case)
        if acting:
            return _begin(case, acting)
    return _wait(case, plans, waiting)


def _entry(case: Case, container: sidecar_pods.ObservedContainer) -> records.ActionRecord | None:
    """Return the action in progress on *container*; None if there is none."""
    if case.record and container.name in case.record.entries:
        return case.record.entries[container.name]
    if container.image == case.settings.fast_exit.image:
        return records.ActionRecord(Method.SWAP, "")  # swapped, and the record was removed
    return None


def _due(case: Case, container: sidecar_pods.ObservedContainer) -> datetime.datetime | None:
    """Return when the next path is due; None: now."""
    entry = _entry(case, container)
    if entry is None:
        return None
    came_back = (  # kubelet restarted it after the stop, because its exit code was not 0
        entry.path is Method.STOP
        and container.id != entry.id
        and container.state is not sidecar_pods.ContainerState.ENDED
    )
    if came_back:
        return None
    if case.record:
        return case.record.due
    timeout = datetime.timedelta(seconds=case.settings.pull_seconds + case.pod.grace_seconds)
    since = case.likely(timeout, case.mains.since, container.ended_at)
    return None if since is None else since + timeout


def _plan(case: Case, container: sidecar_pods.ObservedContainer) -> SidecarPlan:
    options = case.marks.options[container.name]
    entry = _entry(case, container)
    situation = termination_methods.situate(
        case.pod, container, case.marks, case.around, case.settings
    )
    tried = entry.tried | {entry.path} if entry else frozenset()
    if case.moment.now >= case.provider_until:
        tried |= {Method.PROVIDER}
    situation = dataclasses.replace(
        situation,
        tried=tried,
        hurried=situation.hurried or bool(entry),  # its grace period is over
    )
    return SidecarPlan(container, options, situation, termination_methods.choose(situation))


def _begin(case: Case, plans: Sequence[SidecarPlan]) -> actions.Decision:
    """Begin *plans*: patch and event; after a crash, the event is made from the record."""
    again = case.step > 1
    said = ", ".join(f"{plan.container.name} by {plan.path.value}" for plan in plans)
    message = f"the main containers are done; ending {'once more ' if again else ''}{said}"
    counts = (
        actions.Count(
            "escalations_total" if again else "decisions_total",
            {"path": plan.path.value},
            f"{case.pod.uid} {plan.container.name} {case.step}",
        )
        for plan in plans
    )
    return actions.Decision(
        message,
        (
            actions.patch(case.pod, _operations(case, plans)),
            *counts,
            _begun_event(case.pod, case.step, {plan.container.name: plan.path for plan in plans}),
        ),
    )


def _begun_event(
    pod: sidecar_pods.WatchedPod, step: int, begun: Mapping[str, Method]
) -> actions.SidecarEvent:
    """Return the event about the paths *begun* by write *step*."""
    words = "; ".join(
        f"sidecar {name} {termination_methods.IN_WORDS[begun[name]]}" for name in sorted(begun)
    )
    if step > 1:
        message = f"it did not end in time: {words}"
        return actions.event(pod, "SidecarsStillRunning", message, warning=True)
    return actions.event(pod, "SidecarsEnding", f"the main containers are done: {words}")


def _raise(case: Case) -> actions.Decision:
    """Raise the Job's backoffLimit by the restarts that swaps cause; then reconcile again."""
    job = case.around.job
    if job is None:
        raise ValueError("a pod without a Job has no backoffLimit")
    limit = job.enough(len(case.marks.sidecars))
    message = (
        f"raising the backoffLimit of Job {job.name} from {job.backoff_limit} to {limit}, for "
        "the restarts of sidecars that are swapped"
    )
    patch = actions.Patch(
        case.pod.namespace,
        job.name,
        (
            objects.expect(job.uid, "metadata", "uid"),
            objects.expect(job.version, "metadata", "resourceVersion"),
            objects.put(limit, "spec", "backoffLimit"),
        ),
        resource="jobs",
    )
    wake = actions.Wake(0.2 + 0.3 * case.moment.jitter())
    return actions.Decision(
        message,
        (
            patch,
            actions.Count("backoff_limits_raised_total", {}, f"{job.uid} {limit}"),
            actions.event(case.pod, "BackoffLimitRaised", message),
            wake,
        ),
    )


def _operations(case: Case, plans: Sequence[SidecarPlan]) -> list[Operation]:
    operations: list[Operation] = []
    entries = dict(case.record.entries) if case.record else {}
    changes: dict[str, str | None] = {}
    full = termination_methods.is_full(case.pod, case.marks, case.settings)
    for plan in plans:
        entries[plan.container.name] = _begun(case.pod, plan, entries.get(plan.container.name))
        if plan.path in termination_methods.SWAPS:
            image = case.settings.fast_exit.image
            operations += actions.set_image(plan.container, image)
            if plan.container.program_annotation:
                changes[plan.container.program_annotation] = case.settings.fast_exit.program
                if full:  # the fast-exit program needs no arguments
                    changes |= dict.fromkeys(case.pod.arguments_of(plan.container))
    begun = [entries[plan.container.name] for plan in plans]
    record = records.PodRecord(
        uid=case.pod.uid,
        mains_ended=case.mains.ended_text,
        step=case.step,
        at=case.moment.now,
        seconds=_timeout(case, begun),
        entries=entries,
    )
    if case.pod.has_room(
        termination_methods.record_bytes(case.marks)
    ):  # otherwise the image alone shows the swap
        changes[names.STOP_ANNOTATION] = records.write(record)
    return operations + objects.annotate(case.pod.annotations, changes)


def _begun(
    pod: sidecar_pods.WatchedPod, plan: SidecarPlan, before: records.ActionRecord | None
) -> records.ActionRecord:
    own = plan.options.grace_seconds
    return records.ActionRecord(
        path=plan.path,
        id=plan.container.id
        if plan.container.state is sidecar_pods.ContainerState.RUNNING
        else "",
        grace_seconds=0 if before else pod.grace_seconds if own is None else own,
        # A stop that times out is followed by a swap, and only then KILL, so the last code is 0.
        kill=not (plan.path is Method.STOP and termination_methods.can_follow(plan.situation)),
        order=plan.options.order,
        command="" if before else plan.options.command,
        tried=before.tried | {before.path} if before else frozenset(),
    )


def _timeout(case: Case, begun: Sequence[records.ActionRecord]) -> float:
    """Return how many seconds the paths just begun may take.

    Groups of equal order end one after the other. A swap takes kubelet's own grace period (the
    pod's), then the pull of the new image.
    """
    groups = itertools.groupby(sorted(begun, key=_order), key=_order)
    seconds: float = sum(max(entry.grace_seconds for entry in group) for _, group in groups)
    if any(entry.path in termination_methods.SWAPS for entry in begun):
        seconds = max(seconds, case.pod.grace_seconds) + case.settings.pull_seconds
    return min(seconds + case.settings.margin_seconds, records.LONGEST_SECONDS)


def _order(entry: records.ActionRecord) -> int:
    return entry.order


def _wait(
    case: Case, plans: Sequence[SidecarPlan], waiting: Sequence[datetime.datetime]
) -> actions.Decision:
    """Report what blocks the pod, and requeue it."""
    left = [plan for plan in plans if plan.path is not Method.PROVIDER]
    dues = list(waiting) if len(left) == len(plans) else [*waiting, case.provider_until]
    seconds = min(
        [
            case.settings.recheck_seconds,
            *((due - case.moment.now).total_seconds() for due in dues),
        ]
    )
    said = [
        f"sidecar {plan.container.name} is left running: {_why_left(case, plan)}" for plan in left
    ]
    events: list[actions.Action] = [
        actions.event(case.pod, "SidecarLeft", message, warning=True) for message in said
    ]
    if case.record and (begun := case.record.begun):
        events.append(_begun_event(case.pod, case.record.step, begun))
    counts = [
        actions.Count("left_total", {}, f"{case.pod.uid} {plan.container.name} left")
        for plan in left
    ]
    wake = actions.Wake(seconds + case.settings.margin_seconds * case.moment.jitter() / 5)
    return actions.Decision("; ".join(said) or "the sidecars are ending", (*events, *counts, wake))


def _why_left(case: Case, plan: SidecarPlan) -> str:
    if plan.path in termination_methods.ACTING or _entry(case, plan.container):
        return "it did not end in time, and no other path is left"
    return f"{plan.row.because} ({_what_would_help(plan.situation)})"


def _what_would_help(situation: termination_methods.Situation) -> str:
    if situation.eternal:
        return "its restartPolicy decides"
    if Method.SWAP in situation.forbidden:
        return "the settings allow no swap"
    if situation.cramped and not situation.swappable:
        return "the pod's annotations have no room for a record of the stop"
    if not situation.swappable:
        return (
            "its command was not transformed when the pod was created; "
            f"if it ends with code 0, set {mark_names.EXITS_ZERO}=true"
        )
    if not situation.image_ready:
        return "the fast-exit image is not on the node, or its imagePullPolicy is Always"
    return (
        "its restart would be one too many for the backoffLimit of its Job; "
        f"if it ends with code 0, set {mark_names.EXITS_ZERO}=true"
    )
