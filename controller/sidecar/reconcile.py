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
        return swaps.reconcile(pod, marks) or actions.Decision(marks.why_not or mains.why)
    living = [entry for entry in marks.sidecars if not entry.ended_for_good]
    if not living:
        return actions.Decision("every container has ended; kubelet will end the pod")

    ended = mains.since.isoformat() if mains.since else ""
    record = records.read(pod, ended)
    waiting, plans = [], []
    for container in living:
        entry = _entry(record, container, settings)
        due = _due(record, mains.since, moment.now)
        if entry and moment.now < due and not _came_back(container, entry):
            waiting.append(due)
            continue
        plans.append(_plan(pod, container, marks, entry, around, mains, moment.now, settings))

    step = record.step + 1 if record else 1
    acting = [plan for plan in plans if plan.path in how.ACTING]
    if acting and step <= records.MOST_STEPS:
        return _begin(pod, acting, record, step, ended, moment, settings)
    return _wait(pod, plans, waiting, record, mains, moment, settings)


def _entry(
    record: records.Record | None, container: pods.Container, settings: Settings
) -> records.Entry | None:
    """Return what is being done about *container*."""
    if record and container.name in record.entries:
        return record.entries[container.name]
    if container.image == settings.fast_exit.image:  # swapped, and the record was taken away
        return records.Entry(Path.SWAP, "", 0)
    return None


def _due(
    record: records.Record | None, since: datetime.datetime | None, now: datetime.datetime
) -> datetime.datetime:
    if record:
        return record.due
    return (since or now) + datetime.timedelta(seconds=60)


def _came_back(container: pods.Container, entry: records.Entry) -> bool:
    """Tell whether kubelet started again what was stopped, because its code was not 0."""
    return (
        entry.path is Path.STOP
        and container.id != entry.id
        and container.state is not pods.State.ENDED
    )


def _plan(
    pod: pods.Pod,
    container: pods.Container,
    marks: marking.Marking,
    entry: records.Entry | None,
    around: how.Surroundings,
    mains: when.Moment,
    now: datetime.datetime,
    settings: Settings,
) -> Plan:
    wishes = marks.wishes[container.name]
    situation = how.situate(pod, container, wishes, around, settings)
    tried = entry.tried | {entry.path} if entry else frozenset()
    patience = datetime.timedelta(seconds=settings.provider_seconds)
    if mains.since is None or now >= mains.since + patience:
        tried |= {Path.PROVIDER}
    situation = dataclasses.replace(
        situation,
        tried=tried,
        hurried=situation.hurried or bool(entry),  # its grace period is over
        clean=situation.clean and not (entry and entry.path is Path.STOP),
    )
    return Plan(container, wishes, situation, how.choose(situation))


def _begin(
    pod: pods.Pod,
    plans: Sequence[Plan],
    record: records.Record | None,
    step: int,
    ended: str,
    moment: Moment,
    settings: Settings,
) -> actions.Decision:
    entries = dict(record.entries) if record else {}
    operations: list[Operation] = []
    for plan in plans:
        before = entries.get(plan.container.name)
        entries[plan.container.name] = _begun(pod, plan, before)
        if plan.path in (Path.SWAP, Path.HYBRID):
            operations += actions.set_image(plan.container, settings.fast_exit.image)
    changes: dict[str, str | None] = {
        plan.container.program_annotation: settings.fast_exit.program
        for plan in plans
        if plan.path in (Path.SWAP, Path.HYBRID) and plan.container.program_annotation
    }
    changes[names.STOP_ANNOTATION] = records.write(
        records.Record(
            uid=pod.uid,
            mains_ended=ended,
            step=step,
            at=moment.now,
            seconds=_patience(pod, plans, entries, settings),
            entries=entries,
        )
    )
    operations += objects.annotate(pod.annotations, changes)
    said = "; ".join(f"{plan.container.name}: {plan.path.value}" for plan in plans)
    escalated = "again: " if step > 1 else ""
    return actions.Decision(
        f"the main containers are done, {said}",
        (
            actions.event(
                pod,
                "SidecarsStillRunning" if step > 1 else "SidecarsEnding",
                f"the main containers are done; ending the sidecars {escalated}{said}",
                warning=step > 1 or any(plan.situation.tight for plan in plans),
            ),
            *(
                actions.Count(
                    "escalations_total" if step > 1 else "decisions_total",
                    {"path": plan.path.value},
                    f"{pod.uid} {plan.container.name} {step}",
                )
                for plan in plans
            ),
            actions.patch(pod, operations),
        ),
    )


def _begun(pod: pods.Pod, plan: Plan, before: records.Entry | None) -> records.Entry:
    own = plan.wishes.grace_seconds
    grace = 0 if before else pod.grace_seconds if own is None else own
    # If it does not end in time it is swapped, and only then killed: so its last code is 0.
    kill = not (plan.path is Path.STOP and how.can_swap(plan.situation))
    return records.Entry(
        path=plan.path,
        id=plan.container.id if plan.container.state is pods.State.RUNNING else "",
        grace_seconds=grace,
        kill=kill,
        order=plan.wishes.order,
        command="" if before else plan.wishes.command,
        tried=before.tried | {before.path} if before else frozenset(),
    )


def _patience(
    pod: pods.Pod,
    plans: Sequence[Plan],
    entries: Mapping[str, records.Entry],
    settings: Settings,
) -> float:
    """Return for how long the paths just begun may take.

    Groups of one order end one after the other. A swap waits for kubelet's own grace period (the
    pod's) and for the new image.
    """
    begun = [entries[plan.container.name] for plan in plans]
    in_turn = sum(
        max(entry.grace_seconds for entry in group)
        for _, group in itertools.groupby(
            sorted(begun, key=lambda entry: entry.order), key=lambda entry: entry.order
        )
    )
    if any(entry.path is not Path.STOP for entry in begun):
        in_turn = max(in_turn, pod.grace_seconds) + int(settings.pull_seconds)
    return in_turn + settings.margin_seconds


def _wait(
    pod: pods.Pod,
    plans: Sequence[Plan],
    waiting: Sequence[datetime.datetime],
    record: records.Record | None,
    mains: when.Moment,
    moment: Moment,
    settings: Settings,
) -> actions.Decision:
    """Say what is waited for, and when to look again."""
    left = [plan for plan in plans if plan.path is not Path.PROVIDER]
    said: list[actions.Action] = []
    for plan in left:
        name = plan.container.name
        because = (
            "it did not end in time, and there is no other way"
            if record and (name in record.entries or plan.path in how.ACTING)
            else f"{plan.row.because} ({_what_would_help(plan.situation)})"
        )
        said.append(
            actions.event(
                pod, "SidecarLeft", f"sidecar {name} is left running: {because}", warning=True
            )
        )
        said.append(actions.Count("left_total", {}, f"{pod.uid} {name} left"))
    seconds = settings.recheck_seconds
    if waiting:
        seconds = min(seconds, *((due - moment.now).total_seconds() for due in waiting))
    if len(plans) > len(left) and mains.since:
        patience = datetime.timedelta(seconds=settings.provider_seconds)
        seconds = min(seconds, (mains.since + patience - moment.now).total_seconds())
    wake = actions.Wake(max(seconds, 0) + settings.margin_seconds * moment.jitter() / 5)
    why = (
        "; ".join(action.message for action in said if isinstance(action, actions.Event))
        or "the sidecars are ending"
    )
    return actions.Decision(why, (*said, wake))


def _what_would_help(situation: how.Situation) -> str:
    if situation.eternal:
        return "its restartPolicy decides"
    if not situation.swappable:
        return (
            "its command was not transformed when the pod was created; "
            f"if it ends with code 0, say {names.SIDECAR_VARIABLE}_EXITS_ZERO=true"
        )
    if not situation.image_ready:
        return "the fast-exit image is not on the node, or its imagePullPolicy is Always"
    return "see docs/sidecar.md"
