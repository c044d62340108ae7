"""Assemble the device plugin of time slices, and add it to the agent.

It also serves a resource that is no longer configured, until no device is allocated by it: then
its containers can restart, and kubelet gives out no more of it.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from pyvgpu.deviceplugin import agent_settings as agent_settings
from pyvgpu.deviceplugin.grants import interfaces
from pyvgpu.deviceplugin.kubelet import checkpoint_file, device_ids, pod_resources
from pyvgpu.deviceplugin.plugin import plugin_server, registration, time_slices

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.deviceplugin.agent_settings import AgentSettings, TimeSlicing
    from pyvgpu.deviceplugin.components import Components
    from pyvgpu.deviceplugin.kubelet import call_timing

log = logging.getLogger(__name__)


def wanted(
    configured: TimeSlicing, served: time_slices.ServedResources, *, in_use: bool
) -> TimeSlicing | None:
    """Return the resource to serve; None, and forget the served ones, if no device needs any.

    *in_use*: whether any device was allocated by time slices when the agent ran last.
    """
    if configured.replicas:
        return configured
    if not in_use:
        served.forget()
        return None
    if not served.replicas:
        return agent_settings.TimeSlicing(1)  # nothing was ever allocated
    name, replicas = list(served.replicas.items())[-1]
    return agent_settings.TimeSlicing(replicas, name)


@dataclasses.dataclass(frozen=True, slots=True)
class KubeletAccess:
    """The paths through which the agent reaches kubelet, and how its calls are counted."""

    plugins: Path
    pod_resources: Path
    count: call_timing.Count

    @classmethod
    def of(cls, settings: AgentSettings, count: call_timing.Count) -> KubeletAccess:
        """Return the paths of *settings*."""
        return cls(settings.plugins, settings.pod_resources, count)


def add(
    components: Components,
    serve: TimeSlicing,
    served: time_slices.ServedResources,
    node: time_slices.TimeSliceNode,
    kubelet: KubeletAccess,
) -> time_slices.TimeSlices:
    """Add the components that serve *serve*."""
    resources = [
        time_slices.resource(name) for name in dict.fromkeys((*served.replicas, serve.resource))
    ]
    sources = interfaces.KubeletSources(
        checkpoint_file.CheckpointFile(kubelet.plugins, (*device_ids.EITHER, *resources)),
        pod_resources.PodResources(kubelet.pod_resources, resources),
    )
    slices = time_slices.TimeSlices(serve, node, sources)
    plugin = plugin_server.Plugin(kubelet.plugins, slices.offer, slices, kubelet.count)
    registrar = registration.Registrar(kubelet.plugins, [plugin], time_slices.LOCK)
    components.add("time slices", slices.run, slices.stop)

    def register() -> None:
        node.ready()
        # Kubelet would take the other plugin's resource from it.
        warned = False
        while serve.is_foreign and (other := node.other_plugin()):
            if not warned:
                log.warning("not serving %s yet: %s", serve.resource, other)
            warned = True
            if components.wait(time_slices.POLL_SECONDS):
                return
        served.add(serve.resource, serve.replicas)
        slices.poll()
        log.info("serving %d of %s for each device", serve.replicas, serve.resource)
        registrar.run()

    components.add("registrar of time slices", register, registrar.stop)
    return slices
