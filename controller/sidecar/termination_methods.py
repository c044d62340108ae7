"""Decision table for ending a sidecar: the first row that applies decides.

``docs/sidecar.md`` shows the same rows. They rest on two facts: a pod succeeds if each of its
containers exited with 0, and kubelet restarts a container whose image changed, whatever the pod's
restartPolicy. So a sidecar that exits with 143 or 137 makes a pod with ``Never`` fail and restarts
under ``OnFailure``, while one whose image was swapped for the fast-exit image exits with 0.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import mark_names, sidecar_pods

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
    from pyvgpu.controller.sidecar.marking import Marking, SidecarOptions
    from pyvgpu.controller.sidecar.nodes import NodeState


class Method(enum.Enum):
    """The action taken on a sidecar."""

    NOTHING = "nothing"
    LEAVE = "leave"  # every action would do harm; an event says what would help
    TRANSFORM = "transform"  # move argv into annotations, when the pod is created
    CONVERT = "convert"  # make it a native sidecar, when the pod is created
    PROVIDER = "provider"  # rely on a virtual node's own switch
    STOP = "stop"  # the node part stops it through the container runtime
    SWAP = "swap"  # replace its image by the fast-exit image
    HYBRID = "hybrid"  # swap, and the node part cuts kubelet's grace period short
    RAISE = "raise"  # raise its Job's backoffLimit by the restarts that swaps cause


IN_WORDS = {  # for events
    Method.STOP: "is stopped the way kubelet stops containers",
    Method.SWAP: "gets an image that ends at once with 0",
    Method.HYBRID: "gets an image that ends at once with 0, "
    "and is killed when its own grace period is over",
}

SWAPS = frozenset({Method.SWAP, Method.HYBRID})
ACTING = SWAPS | {Method.STOP}  # begun with a write to the pod


@dataclasses.dataclass(frozen=True, slots=True)
class Situation:
    """All inputs of the decision, as booleans."""

    native: bool = False  # an init container with restartPolicy Always
    creating: bool = False  # the pod is being created
    convertible: bool = False  # its namespace enables native sidecars, the order rules allow it
    ended: bool = False  # kubelet will not restart it
    eternal: bool = False  # kubelet restarts it even after code 0, or the whole pod
    virtual: bool = False  # it is on a virtual node
    provider_switch: bool = False  # set on the pod
    live: bool = False  # our node part on its node is alive
    cramped: bool = False  # no room in the annotations for the record that the node part reads
    running: bool = False
    clean: bool = False  # known to exit with 0 when it is stopped
    swappable: bool = False  # the fast-exit program can replace its own
    image_ready: bool = False  # the fast-exit image can be started there
    hurried: bool = False  # its own grace period is shorter than the pod's
    tight: bool = False  # one more restart may fail the Job
    may_raise: bool = False  # the settings allow raising the Job's backoffLimit
    insist: bool = False  # settings.insist
    forbidden: frozenset[Method] = frozenset()  # not allowed by the settings
    tried: frozenset[Method] = frozenset()

    def may(self, path: Method) -> bool:
        """Return whether *path* is allowed and was not tried yet."""
        return path not in self.tried and path not in self.forbidden


@dataclasses.dataclass(frozen=True, slots=True)
class DecisionRow:
    """A row of the decision table."""

    condition: str
    path: Method
    because: str
    applies: Callable[[Situation], bool]


def _is_swap_possible(s: Situation) -> bool:
    return s.swappable and s.image_ready and s.may(Method.SWAP) and Method.HYBRID not in s.tried


def can_swap(s: Situation) -> bool:
    """Return whether the fast-exit image can still replace a sidecar."""
    return _is_swap_possible(s) and not s.tight


def can_follow(s: Situation) -> bool:
    """Return whether a swap can follow a stop that had no effect."""
    return _is_swap_possible(s) and (not s.tight or s.may_raise)


TABLE: tuple[DecisionRow, ...] = (
    DecisionRow(
        "it is a native sidecar (an init container with `restartPolicy: Always`)",
        Method.NOTHING,
        "kubelet ends it after the main containers, and its code does not count",
        lambda s: s.native,
    ),
    DecisionRow(
        "the pod is being created, its namespace enables native sidecars, and the order rules "
        "allow it",
        Method.CONVERT,
        "kubelet ends a native sidecar without pyvgpu",
        lambda s: s.creating and s.convertible,
    ),
    DecisionRow(
        "the pod is being created",
        Method.TRANSFORM,
        "its command can be made changeable only at creation",
        lambda s: s.creating,
    ),
    DecisionRow(
        "it has ended, and kubelet will not start it again",
        Method.NOTHING,
        "there is nothing left to end",
        lambda s: s.ended,
    ),
    DecisionRow(
        "kubelet restarts it even after code 0, or restarts the whole pod when it ends",
        Method.LEAVE,
        "its own restartPolicy or restartPolicyRules must change first",
        lambda s: s.eternal,
    ),
    DecisionRow(
        "it is on a virtual node, and the provider's own switch is set",
        Method.PROVIDER,
        "the provider ends it, or ignores its exit code",
        lambda s: s.virtual and s.provider_switch and Method.PROVIDER not in s.tried,
    ),
    DecisionRow(
        "our node part is alive there, the sidecar runs and is known to exit with code 0",
        Method.STOP,
        "that is the shortest way, and changes nothing in the pod",
        lambda s: s.live and s.running and s.clean and s.may(Method.STOP),
    ),
    DecisionRow(
        "it could be swapped, but its restart may be one too many for the `backoffLimit` of its "
        "Job (`OnFailure`)",
        Method.RAISE,
        "the restarts that we cause must not fail the Job; it is swapped next",
        lambda s: s.tight and s.may_raise and _is_swap_possible(s),
    ),
    DecisionRow(
        "it can be swapped, our node part is alive there, it runs, and its own grace period is "
        "shorter than the pod's or is over",
        Method.HYBRID,
        "it ends with code 0 after its own grace period; kubelet alone would wait for the pod's",
        lambda s: s.live and s.running and s.hurried and s.may(Method.HYBRID) and can_swap(s),
    ),
    DecisionRow(
        "it can be swapped (also on virtual nodes and nodes without a live node part)",
        Method.SWAP,
        "it ends with code 0, also if it never started or ignores every signal",
        can_swap,
    ),
    DecisionRow(
        "our node part is alive there, the sidecar runs, and `insist` is set",
        Method.STOP,
        "the pod ends, but Failed if the sidecar's code is not 0",
        lambda s: s.insist and s.live and s.running and s.may(Method.STOP),
    ),
    DecisionRow(
        "otherwise",
        Method.LEAVE,
        "to stop it would make finished work fail and run again",
        lambda _: True,
    ),
)


def choose(situation: Situation) -> DecisionRow:
    """Return the first row that applies."""
    return next(row for row in TABLE if row.applies(situation))


@dataclasses.dataclass(frozen=True, slots=True)
class OwningJob:
    """The fields of a pod's batch Job that matter; pods of other controllers have none."""

    backoff_limit: int
    restarts: int  # sum over all containers of its unfinished pods
    live_pods: int  # unfinished pods; each may restart its sidecars at the same time
    name: str = ""
    uid: str = ""
    version: str = ""  # metadata.resourceVersion

    def is_tight(self, swaps: int) -> bool:
        """Return whether *swaps* restarts in each pod may reach the limit.

        The Job controller sums the restarts of unfinished pods, and fails the Job at the limit,
        or at the first restart if the limit is 0. A pod whose last container has ended counts,
        too: kubelet reports that a second before it reports that the pod has succeeded.
        """
        return self._expected(swaps) >= max(self.backoff_limit, 1)

    def enough(self, swaps: int) -> int:
        """Return the lowest limit that is not tight."""
        return max(self.backoff_limit, self._expected(swaps) + 1)

    def _expected(self, swaps: int) -> int:
        return self.restarts + swaps * max(self.live_pods, 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Surroundings:
    """A pod's node and Job."""

    node: NodeState
    job: OwningJob | None = None
    clean_images: frozenset[str] = frozenset()  # observed to exit with 0 before


def situate(
    pod: sidecar_pods.WatchedPod,
    container: sidecar_pods.ObservedContainer,
    marks: Marking,
    around: Surroundings,
    settings: SidecarSettings,
) -> Situation:
    """Return the situation of a sidecar in a pod whose main containers are done."""
    node = around.node
    options = marks.options[container.name]
    running = container.state is sidecar_pods.ContainerState.RUNNING
    grace = options.grace_seconds
    cramped = not pod.has_room(record_bytes(marks))
    return Situation(
        ended=container.ended_for_good,
        eternal=is_eternal(container),
        virtual=node.virtual,
        provider_switch=has_provider_switch(pod, container),
        live=node.live and not cramped,
        cramped=cramped,
        running=running,
        clean=is_clean(options) or container.image in around.clean_images,
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
    """Return the maximum annotation bytes that a swap and its record take."""
    return 512 + sum(640 + 6 * len(marks.options[one.name].command) for one in marks.sidecars)


def growth_bytes(
    pod: sidecar_pods.WatchedPod,
    container: sidecar_pods.ObservedContainer,
    settings: SidecarSettings,
) -> int:
    """Return by how many bytes the pod's annotations grow when *container* is swapped."""
    if not container.program_annotation:
        return 0
    before = pod.annotations.get(container.program_annotation, "")
    return len(settings.fast_exit.program.encode()) - len(before.encode())


def is_full(pod: sidecar_pods.WatchedPod, marks: Marking, settings: SidecarSettings) -> bool:
    """Return whether the pod's annotations lack room even for swaps without a record."""
    grown = (max(growth_bytes(pod, one, settings), 0) for one in marks.sidecars)
    return not pod.has_room(sum(grown))


def _fits(
    pod: sidecar_pods.WatchedPod,
    container: sidecar_pods.ObservedContainer,
    marks: Marking,
    settings: SidecarSettings,
) -> bool:
    """Return whether its new program fits; the bytes of its arguments can be reused."""
    grown = growth_bytes(pod, container, settings)
    return grown <= container.argument_bytes or not is_full(pod, marks, settings)


def is_clean(options: SidecarOptions) -> bool:
    """Return whether its options declare that a sidecar exits with 0 when it is stopped."""
    return options.exits_zero or bool(options.command)


def is_eternal(container: sidecar_pods.ObservedContainer) -> bool:
    """Return whether kubelet restarts it even after code 0, or by a rule the whole pod."""
    return container.will_restart(0) or any(
        rule.action == sidecar_pods.RESTART_ALL for rule in container.restart_rules
    )


def is_swappable(container: sidecar_pods.ObservedContainer, settings: SidecarSettings) -> bool:
    """Return whether, with the fast-exit image, the container would run that image's program."""
    if container.image == settings.fast_exit.image:
        return False  # already swapped
    if not container.command:
        return True  # runs the image's ENTRYPOINT, which accepts any arguments
    annotation = container.program_annotation or ""
    return (
        annotation.startswith(names.START_COMMAND_ANNOTATION + ".")
        or container.command[0] in settings.fast_exit.other_names
        or container.command[0] in (settings.fast_exit.program, names.LAUNCH_PROGRAM)
    )


def has_provider_switch(
    pod: sidecar_pods.WatchedPod, container: sidecar_pods.ObservedContainer
) -> bool:
    """Return whether a virtual node's provider is configured to ignore this container's exit."""
    eci = (
        container.environment.get("ECI_CONTAINER_TYPE") == "sidecar"
        and container.environment.get(mark_names.ECI_IGNORE) == "true"
    )
    listed = pod.annotations.get(mark_names.BCI_IGNORE, "").split(",")
    return eci or container.name in (name.strip() for name in listed)
