"""How a sidecar is ended: one table, read from the top; the first row that applies decides.

``docs/sidecar.md`` shows the same rows. What they rest on: a pod succeeds if each of its
containers ended with 0, and kubelet starts a container whose image changed anew, whatever the
pod's restartPolicy. So a sidecar that ends with 143 or 137 makes a pod with ``Never`` fail and
starts again under ``OnFailure``, while one whose image was swapped for one that ends at once ends
with 0.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import marking, pods

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.sidecar.marking import Marking, Wishes
    from pyvgpu.controller.sidecar.nodes import Node
    from pyvgpu.controller.sidecar.settings import Settings


class Path(enum.Enum):
    """What is done about a sidecar."""

    NOTHING = "nothing"
    LEAVE = "leave"  # we can do nothing good; an event says what would help
    TRANSFORM = "transform"  # argv into annotations, when the pod is created
    CONVERT = "convert"  # into a native sidecar, when the pod is created
    PROVIDER = "provider"  # a virtual node's own switch
    STOP = "stop"  # the node part stops it through the container runtime
    SWAP = "swap"  # its image becomes the one that ends at once
    HYBRID = "hybrid"  # swapped, and the node part cuts kubelet's grace period short
    RAISE = "raise"  # the backoffLimit of its Job, by the restarts that are ours


IN_WORDS = {  # for events
    Path.STOP: "is told to end, as kubelet would",
    Path.SWAP: "gets an image that ends at once with 0",
    Path.HYBRID: "gets an image that ends at once with 0, and is killed when its own time is over",
}

SWAPS = frozenset({Path.SWAP, Path.HYBRID})
ACTING = SWAPS | {Path.STOP}  # begun with a write to the pod


@dataclasses.dataclass(frozen=True, slots=True)
class Situation:
    """Everything that the choice depends on, as yes or no."""

    native: bool = False  # an init container with restartPolicy Always
    creating: bool = False  # the pod is being created
    convertible: bool = False  # its namespace wants native sidecars, the order rules allow it
    ended: bool = False  # for good
    eternal: bool = False  # kubelet starts it, or everything, again after any end
    virtual: bool = False  # the node is
    provider_switch: bool = False  # is set on the pod
    live: bool = False  # our node part is
    cramped: bool = False  # the pod has no room for a record, by which a node part is told
    running: bool = False
    clean: bool = False  # is known to end with 0 when it is told to
    swappable: bool = False  # another image's program can take the place of its own
    image_ready: bool = False  # the fast-exit image can be started there
    hurried: bool = False  # its own grace period is shorter than the pod's
    tight: bool = False  # one restart more may fail the Job
    may_raise: bool = False  # the backoffLimit of the Job, by the settings
    insist: bool = False  # by the settings
    forbidden: frozenset[Path] = frozenset()  # by the settings
    tried: frozenset[Path] = frozenset()

    def may(self, path: Path) -> bool:
        """Tell whether *path* can still be taken."""
        return path not in self.tried and path not in self.forbidden


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A row of the table."""

    condition: str
    path: Path
    because: str
    applies: Callable[[Situation], bool]


def _is_swap_possible(s: Situation) -> bool:
    return s.swappable and s.image_ready and s.may(Path.SWAP) and Path.HYBRID not in s.tried


def can_swap(s: Situation) -> bool:
    """Tell whether the fast-exit image can still take a sidecar's place."""
    return _is_swap_possible(s) and not s.tight


def can_follow(s: Situation) -> bool:
    """Tell whether a stop that did not help can be followed by a swap."""
    return _is_swap_possible(s) and (not s.tight or s.may_raise)


TABLE: tuple[Row, ...] = (
    Row(
        "it is a native sidecar (an init container with `restartPolicy: Always`)",
        Path.NOTHING,
        "kubelet ends it after the main containers, and its code does not count",
        lambda s: s.native,
    ),
    Row(
        "the pod is being created, its namespace wants native sidecars, and the order rules "
        "allow it",
        Path.CONVERT,
        "as a native sidecar it needs nothing of ours",
        lambda s: s.creating and s.convertible,
    ),
    Row(
        "the pod is being created",
        Path.TRANSFORM,
        "only then can its program be made one that can be changed later",
        lambda s: s.creating,
    ),
    Row(
        "it has ended, and kubelet will not start it again",
        Path.NOTHING,
        "there is nothing left to end",
        lambda s: s.ended,
    ),
    Row(
        "kubelet starts it again even after code 0, or starts the whole pod again when it ends",
        Path.LEAVE,
        "its own restartPolicy or restartPolicyRules must change first",
        lambda s: s.eternal,
    ),
    Row(
        "it is on a virtual node, and the provider's own switch is set",
        Path.PROVIDER,
        "the provider ends it, or leaves its code out of account",
        lambda s: s.virtual and s.provider_switch and Path.PROVIDER not in s.tried,
    ),
    Row(
        "our node part lives there, it runs, and it is known to end with code 0",
        Path.STOP,
        "that is the shortest way, and changes nothing in the pod",
        lambda s: s.live and s.running and s.clean and s.may(Path.STOP),
    ),
    Row(
        "it could be swapped, but its restart may be one too many for the `backoffLimit` of its "
        "Job (`OnFailure`)",
        Path.RAISE,
        "then the restarts that are ours do not fail the Job; it is swapped next",
        lambda s: s.tight and s.may_raise and _is_swap_possible(s),
    ),
    Row(
        "it can be swapped, our node part lives there, it runs, and its own grace period is "
        "shorter than the pod's or is over",
        Path.HYBRID,
        "it ends with code 0 after its own grace period; kubelet alone would wait for the pod's",
        lambda s: s.live and s.running and s.hurried and s.may(Path.HYBRID) and can_swap(s),
    ),
    Row(
        "it can be swapped (on virtual nodes and where no node part lives, too)",
        Path.SWAP,
        "it ends with code 0, also if it never started or ignores every signal",
        can_swap,
    ),
    Row(
        "our node part lives there, it runs, and the settings insist",
        Path.STOP,
        "the pod ends, but Failed if the sidecar's code is not 0",
        lambda s: s.insist and s.live and s.running and s.may(Path.STOP),
    ),
    Row(
        "otherwise",
        Path.LEAVE,
        "to stop it would make finished work fail and run again",
        lambda _: True,
    ),
)


def choose(situation: Situation) -> Row:
    """Return the row that decides."""
    return next(row for row in TABLE if row.applies(situation))


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """What of a pod's batch Job counts; pods of other controllers have none."""

    backoff_limit: int
    restarts: int  # of all containers of all its pods that have not ended
    live_pods: int  # of them; each may restart its sidecars at the same time
    name: str = ""
    uid: str = ""
    version: str = ""  # metadata.resourceVersion

    def is_tight(self, swaps: int) -> bool:
        """Tell whether *swaps* restarts in each pod may reach the limit.

        The Job controller sums the restarts of pods that have not ended, and fails the Job at
        the limit, or at the first if the limit is 0. A pod whose last container has ended counts
        too: kubelet says so a second before it says that the pod has succeeded.
        """
        return self._expected(swaps) >= max(self.backoff_limit, 1)

    def enough(self, swaps: int) -> int:
        """Return the lowest limit that is not tight."""
        return max(self.backoff_limit, self._expected(swaps) + 1)

    def _expected(self, swaps: int) -> int:
        return self.restarts + swaps * max(self.live_pods, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """What lies around a pod."""

    node: Node
    job: Job | None = None
    clean_images: frozenset[str] = frozenset()  # seen to end with 0 before


def situate(
    pod: pods.Pod,
    container: pods.Container,
    marks: Marking,
    around: Surroundings,
    settings: Settings,
) -> Situation:
    """Return where a marked container of a pod stands whose main containers are done."""
    node = around.node
    wishes = marks.wishes[container.name]
    running = container.state is pods.State.RUNNING
    grace = wishes.grace_seconds
    cramped = not pod.has_room(record_bytes(marks))
    return Situation(
        ended=container.ended_for_good,
        eternal=is_eternal(container),
        virtual=node.virtual,
        provider_switch=has_provider_switch(pod, container),
        live=node.live and not cramped,
        cramped=cramped,
        running=running,
        clean=is_clean(wishes) or container.image in around.clean_images,
        swappable=is_swappable(container, settings) and _fits(pod, container, marks, settings),
        image_ready=node.pulls_fast_exit
        or settings.fast_exit.in_registry
        or (node.has_fast_exit and container.pull_policy != "Always"),
        hurried=grace is not None and grace < pod.grace_seconds,
        tight=around.job is not None
        and pod.restart_policy == "OnFailure"
        and around.job.is_tight(len(marks.sidecars)),
        may_raise=settings.raise_backoff_limit,
        insist=settings.insist,
        forbidden=frozenset(path for path in ACTING if path.value not in settings.paths),
    )


def record_bytes(marks: Marking) -> int:
    """Return how many bytes a swap and the record of what is done take at most."""
    return 512 + sum(640 + 6 * len(marks.wishes[it.name].command) for it in marks.sidecars)


def growth_bytes(pod: pods.Pod, container: pods.Container, settings: Settings) -> int:
    """Return by how much the pod's annotations grow when *container* is swapped."""
    if not container.program_annotation:
        return 0
    before = pod.annotations.get(container.program_annotation, "")
    return len(settings.fast_exit.program.encode()) - len(before.encode())


def is_full(pod: pods.Pod, marks: Marking, settings: Settings) -> bool:
    """Tell whether the pod's annotations have no room even for swaps without a record."""
    grown = (max(growth_bytes(pod, it, settings), 0) for it in marks.sidecars)
    return not pod.has_room(sum(grown))


def _fits(pod: pods.Pod, container: pods.Container, marks: Marking, settings: Settings) -> bool:
    """Tell whether there is room for its new program; its arguments can give theirs."""
    grown = growth_bytes(pod, container, settings)
    return grown <= container.argument_bytes or not is_full(pod, marks, settings)


def is_clean(wishes: Wishes) -> bool:
    """Tell whether a sidecar's user says that it ends with 0 when it is told to."""
    return wishes.exits_zero or bool(wishes.command)


def is_eternal(container: pods.Container) -> bool:
    """Tell whether its end leads to its next start, or to that of the whole pod."""
    return container.will_restart(0) or any(
        rule.action == pods.RESTART_ALL for rule in container.restart_rules
    )


def is_swappable(container: pods.Container, settings: Settings) -> bool:
    """Tell whether the fast-exit image would start its own program in its place."""
    if container.image == settings.fast_exit.image:
        return False  # it was
    if not container.command:
        return True  # by its ENTRYPOINT, which takes any arguments
    annotation = container.program_annotation or ""
    return (
        annotation.startswith(names.START_COMMAND_ANNOTATION + ".")
        or container.command[0] in settings.fast_exit.other_names
        or container.command[0] in (settings.fast_exit.program, names.LAUNCH_PROGRAM)
    )


def has_provider_switch(pod: pods.Pod, container: pods.Container) -> bool:
    """Tell whether a provider of virtual nodes was told to leave this container out of account."""
    eci = (
        container.environment.get("ECI_CONTAINER_TYPE") == "sidecar"
        and container.environment.get(marking.ECI_IGNORE) == "true"
    )
    listed = pod.annotations.get(marking.BCI_IGNORE, "").split(",")
    return eci or container.name in (name.strip() for name in listed)
