"""The agent's link to the scheduler: publish the devices, follow the chosen ones."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import isolation
from pyvgpu.deviceplugin.agent_settings import Placement, Profile
from pyvgpu.deviceplugin.cluster import node_annotation, scheduler_choice
from pyvgpu.deviceplugin.gpu_manager import predicate_annotations, profile
from pyvgpu.deviceplugin.grants import interfaces

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.agent_settings import AgentSettings
    from pyvgpu.deviceplugin.cluster import node_pods, own_node
    from pyvgpu.deviceplugin.components import Components
    from pyvgpu.deviceplugin.grants import placement, pod_identity
    from pyvgpu.deviceplugin.grants.manager import GrantManager


@dataclasses.dataclass(frozen=True, slots=True)
class Scheduling:
    """The agent's link to the scheduler."""

    policy: interfaces.StartPolicy
    trouble: Callable[[], str]  # why no pod can be placed here yet; '' if pods can


def add(
    components: Components,
    settings: AgentSettings,
    node: own_node.OwnNode | None,
    known: node_pods.Pods | None,
    observers: interfaces.Observers,
    grant_manager: Callable[[], GrantManager],
    minors: predicate_annotations.Minors,
) -> Scheduling:
    """Add the components that exchange placements through the API server, if there is one.

    *grant_manager* and *minors* are called once the components run. UsageError if the settings
    need an API server; DataError for a malformed key.
    """
    if node is None or known is None:
        if settings.placement is Placement.EXTENDER:
            raise errors.UsageError(
                "--placement extender: needs the API server, which stores the extender's choice: "
                "run as a pod, or give --kubeconfig FILE"
            )
        return Scheduling(interfaces.StartPolicy(), str)
    choose, trouble = _chooser(components, settings, known, observers, minors)

    def text() -> str:
        granted = grant_manager().known.values()
        return node_annotation.text_of(settings.unit, grant_manager().devices, minors(), granted)

    def labels() -> dict[str, str]:
        found = dict(settings.labels)
        if settings.profile is Profile.GAIA:
            found |= profile.labels(grant_manager().devices)
        return found

    publisher = node_annotation.NodePublisher(
        node, text, labels, lambda: isolation.describe(grant_manager().devices)
    )
    observers.changed.add(publisher.changed)
    components.add("publisher", publisher.run, publisher.stop)
    policy = interfaces.StartPolicy(
        find_name=known.name_of,
        choose=choose,
        wait_published=publisher.wait if settings.placement is Placement.AGENT else None,
        is_over=known.is_over,
    )
    return Scheduling(policy, trouble)


def _chooser(
    components: Components,
    settings: AgentSettings,
    known: node_pods.Pods,
    observers: interfaces.Observers,
    minors: predicate_annotations.Minors,
) -> tuple[Callable[[pod_identity.KnownPod], placement.Chosen], Callable[[], str]]:
    """Return what reads a pod's chosen devices, and why it cannot yet, '' if it can."""
    if settings.profile is Profile.GAIA:
        noting = predicate_annotations.Predicates(known, settings.node, minors)
        observers.bound.add(noting.note)
        components.add("predicates", noting.run, noting.stop)
        if settings.placement_key is None:
            return noting.choose, str
    if settings.placement_key is None:
        return scheduler_choice.UserSelection(known).choose, str
    keys = scheduler_choice.KeyFile(settings.placement_key)
    with contextlib.suppress(errors.UnavailableError):  # the scheduler has yet to create it
        keys.read()
    return scheduler_choice.Sealed(known, settings.node, keys.read).choose, lambda: keys.trouble
