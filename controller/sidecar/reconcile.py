"""From a pod as it is now to what is to be done about its sidecars now.

Nothing is remembered between two calls: what was decided stands in the pod (``records``), what
came of it in the pod's status. So a controller that dies loses nothing, and two that run at once
come to the same conclusion, of which the API server takes one.

A pod is written to at most twice for its end. The first write begins the path that ``how`` chose
for each sidecar that lives; if one still lives when its time is up, or is running again after a
stop, a second write takes the next path. Then an event says what it waits for.
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller import objects
from pyvgpu.controller.sidecar import actions, how, marking, pods, records, swaps, when
from pyvgpu.controller.sidecar.how import Path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu.controller.objects import Operation
    from pyvgpu.controller.sidecar.settings import Settings


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """When a decision is made, and the chance in it."""

    now: datetime.datetime
    jitter: Callable[[], float]  # from 0 to 1


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A pod whose main containers are done, and all that the decision rests on."""

    pod: pods.Pod
    marks: marking.Marking
    mains: when.Moment
    record: records.Record | None
    around: how.Surroundings
    moment: Moment
    settings: Settings

    @property
    def step(self) -> int:
        """Return which write to the pod the next one is."""
        return self.record.step + 1 if self.record else 1

    @property
    def provider_until(self) -> datetime.datetime:
        """Return until when a provider may take to end what its own switch names."""
        patience = datetime.timedelta(seconds=self.settings.provider_seconds)
        return (self.mains.since or self.moment.now - patience) + patience


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about one sidecar."""

    container: pods.Container
    wishes: marking.Wishes
    situation: how.Situation
    row: how.Row

    @property
    def path(self) -> Path:
        """Return the path of its row."""
        return self.row.path


def reconcile(
    pod: pods.Pod, around: how.Surroundings, moment: Moment, settings: Settings
) -> actions.Decision:
    """Decide what to do about *pod* at this *moment*."""
    marks = marking.mark(pod, settings.policies)
    mains = when.look(pod, marks.mains)
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
    acting = [plan for plan in plans if plan.path in how.ACTING]
    if case.step <= min(settings.most_writes, records.MOST_STEPS):
        if any(plan.path is Path.RAISE for plan in plans):
            return _raise(case)
        if acting:
            return _begin(case, acting)
    return _wait(case, plans, waiting)


def _entry(case: Case, container: pods.Container) -> records.Entry | None:
    """Return what is being done about *container*, None if nothing is."""
    if case.record and container.name in case.record.entries:
        return case.record.entries[container.name]
    if container.image == case.settings.fast_exit.image:
        return records.Entry(Path.SWAP, "")  # swapped, and the record was taken away
    return None


def _due(case: Case, container: pods.Container) -> datetime.datetime | None:
    """Return when something else is to be tried, None for at once."""
    entry = _entry(case, container)
    if entry is None:
        return None
    came_back = (  # kubelet started again what was stopped, because its code was not 0
        entry.path is Path.STOP
        and container.id != entry.id
        and container.state is not pods.State.ENDED
    )
    if came_back:
        return None
    if case.record:
        return case.record.due
    patience = datetime.timedelta(seconds=case.settings.pull_seconds + case.pod.grace_seconds)
    return (case.mains.since or case.moment.now) + patience


def _plan(case: Case, container: pods.Container) -> Plan:
    wishes = case.marks.wishes[container.name]
    entry = _entry(case, container)
    situation = how.situate(case.pod, container, case.marks, case.around, case.settings)
    tried = entry.tried | {entry.path} if entry else frozenset()
    if case.moment.now >= case.provider_until:
        tried |= {Path.PROVIDER}
    situation = dataclasses.replace(
        situation,
        tried=tried,
        hurried=situation.hurried or bool(entry),  # its grace period is over
    )
    return Plan(container, wishes, situation, how.choose(situation))


def _begin(case: Case, plans: Sequence[Plan]) -> actions.Decision:
    """Write what is begun, and say so; who comes after a crash says it by the record."""
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
            _told(case.pod, case.step, {plan.container.name: plan.path for plan in plans}),
        ),
    )


def _told(pod: pods.Pod, step: int, begun: Mapping[str, Path]) -> actions.Event:
    """Return the event on what that write has begun."""
    words = "; ".join(f"sidecar {name} {how.IN_WORDS[begun[name]]}" for name in sorted(begun))
    if step > 1:
        message = f"it did not end in time: {words}"
        return actions.event(pod, "SidecarsStillRunning", message, warning=True)
    return actions.event(pod, "SidecarsEnding", f"the main containers are done: {words}")


def _raise(case: Case) -> actions.Decision:
    """Make room in the pod's Job for the restarts that swaps are; then look again."""
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


def _operations(case: Case, plans: Sequence[Plan]) -> list[Operation]:
    operations: list[Operation] = []
    entries = dict(case.record.entries) if case.record else {}
    changes: dict[str, str | None] = {}
    full = how.is_full(case.pod, case.marks, case.settings)
    for plan in plans:
        entries[plan.container.name] = _begun(case.pod, plan, entries.get(plan.container.name))
        if plan.path in how.SWAPS:
            image = case.settings.fast_exit.image
            operations += actions.set_image(plan.container, image)
            if plan.container.program_annotation:
                changes[plan.container.program_annotation] = case.settings.fast_exit.program
                if full:  # the program that takes any arguments needs none
                    changes |= dict.fromkeys(case.pod.arguments_of(plan.container))
    begun = [entries[plan.container.name] for plan in plans]
    record = records.Record(
        uid=case.pod.uid,
        mains_ended=case.mains.ended_text,
        step=case.step,
        at=case.moment.now,
        seconds=_patience(case, begun),
        entries=entries,
    )
    if case.pod.has_room(how.record_bytes(case.marks)):  # else the image alone says what was done
        changes[names.STOP_ANNOTATION] = records.write(record)
    return operations + objects.annotate(case.pod.annotations, changes)


def _begun(pod: pods.Pod, plan: Plan, before: records.Entry | None) -> records.Entry:
    own = plan.wishes.grace_seconds
    return records.Entry(
        path=plan.path,
        id=plan.container.id if plan.container.state is pods.State.RUNNING else "",
        grace_seconds=0 if before else pod.grace_seconds if own is None else own,
        # One that does not end in time is swapped, and only then killed: so its last code is 0.
        kill=not (plan.path is Path.STOP and how.can_follow(plan.situation)),
        order=plan.wishes.order,
        command="" if before else plan.wishes.command,
        tried=before.tried | {before.path} if before else frozenset(),
    )


def _patience(case: Case, begun: Sequence[records.Entry]) -> float:
    """Return for how long what was just begun may take.

    Groups of one order end one after the other. A swap waits for kubelet's own grace period (the
    pod's) and for the new image.
    """
    groups = itertools.groupby(sorted(begun, key=_order), key=_order)
    seconds: float = sum(max(entry.grace_seconds for entry in group) for _, group in groups)
    if any(entry.path in how.SWAPS for entry in begun):
        seconds = max(seconds, case.pod.grace_seconds) + case.settings.pull_seconds
    return min(seconds + case.settings.margin_seconds, records.LONGEST_SECONDS)


def _order(entry: records.Entry) -> int:
    return entry.order


def _wait(
    case: Case, plans: Sequence[Plan], waiting: Sequence[datetime.datetime]
) -> actions.Decision:
    """Say what is waited for, and when to look again."""
    left = [plan for plan in plans if plan.path is not Path.PROVIDER]
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
    told: list[actions.Action] = [
        actions.event(case.pod, "SidecarLeft", message, warning=True) for message in said
    ]
    if case.record and (begun := case.record.begun):
        told.append(_told(case.pod, case.record.step, begun))
    counts = [
        actions.Count("left_total", {}, f"{case.pod.uid} {plan.container.name} left")
        for plan in left
    ]
    wake = actions.Wake(seconds + case.settings.margin_seconds * case.moment.jitter() / 5)
    return actions.Decision("; ".join(said) or "the sidecars are ending", (*told, *counts, wake))


def _why_left(case: Case, plan: Plan) -> str:
    if plan.path in how.ACTING or _entry(case, plan.container):
        return "it did not end in time, and there is no other way"
    return f"{plan.row.because} ({_what_would_help(plan.situation)})"


def _what_would_help(situation: how.Situation) -> str:
    if situation.eternal:
        return "its restartPolicy decides"
    if Path.SWAP in situation.forbidden:
        return "the settings allow no swap"
    if situation.cramped and not situation.swappable:
        return "the pod's annotations have no room for a record of what is done"
    if not situation.swappable:
        return (
            "its command was not transformed when the pod was created; "
            f"if it ends with code 0, say {marking.EXITS_ZERO}=true"
        )
    if not situation.image_ready:
        return "the fast-exit image is not on the node, or its imagePullPolicy is Always"
    return (
        "its restart would be one too many for the backoffLimit of its Job; "
        f"if it ends with code 0, say {marking.EXITS_ZERO}=true"
    )
