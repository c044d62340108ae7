"""Device plugin that gives the unprivileged agent /dev/nvidia*.

The agent opens these nodes to use NVML. An unprivileged container may open only nodes that kubelet
gives it for a device plugin; and the agent cannot be that plugin, since kubelet does so before the
agent starts. So this is a process of its own, which opens no device: the plugin of a resource of
which a node has one.

Only the agent may have the nodes of all devices. Allocate names no pod, so its answer names a CDI
device without a specification; PreStartContainer writes the specification if both of kubelet's
sources (``pod_identity``) place the pod in the agent's namespace. The nodes are looked up each
time, and the agent restarts when they have changed: :func:`stay`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.grants import pod_identity
from pyvgpu.deviceplugin.kubelet import (
    checkpoint_file,
    device_ids,
    offers,
    plugin_messages,
    pod_resources,
)
from pyvgpu.deviceplugin.plugin import plugin_server, registration
from pyvgpu.volumes import capabilities, cdi

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyvgpu.deviceplugin.grants import prestart

log = logging.getLogger(__name__)

VARIABLE = "PYVGPU_CONTROL_NODES"  # in the agent's container: the nodes that it was given

POLL_SECONDS = 5.0
_NEVER_SECONDS = 86_400.0  # where there is nothing to check

_LOCK = "pyvgpu-control.lock"
_PREFIX, _SUFFIX = "pyvgpu.io-control-", ".json"


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceNodeSettings:
    """Paths on the node, and the namespace that is served."""

    namespace: str  # the agent's
    plugins: Path
    pod_resources: Path
    specifications: Path
    driver_root: Path


class AgentDeviceNodes:
    """Gives the nodes to the agent's pod only, as a CDI device in *settings*' folder."""

    def __init__(
        self,
        settings: DeviceNodeSettings,
        written: checkpoint_file.CheckpointFile,
        pods: pod_resources.PodResources,
    ) -> None:
        self._settings = settings
        self._written = written
        self._pods = pods

    def allocate(
        self, _kind: device_ids.ResourceKind, _given: frozenset[str]
    ) -> plugin_messages.AllocateResponse:
        """Answer with a CDI device that has no specification; remove the earlier ones."""
        for old in self._settings.specifications.glob(f"{_PREFIX}*{_SUFFIX}"):
            old.unlink(missing_ok=True)
        name = grants.new_id()
        return plugin_messages.AllocateResponse(
            {names.GRANT_KIND: name}, (f"{names.CONTROL_RESOURCE}={name}",)
        )

    def prefer(
        self, _kind: device_ids.ResourceKind, asked: plugin_messages.PreferredRequest
    ) -> tuple[str, ...]:
        """Return the only id."""
        return device_ids.preferred(asked.available, asked.must, asked.size)

    def start(
        self, kind: device_ids.ResourceKind, held: frozenset[str], done: prestart.Done
    ) -> None:
        """Write the CDI device for a pod of the agent's namespace; UnavailableError for others."""
        entries = self._written.read()
        pod = pod_identity.identify(kind, held, entries, self._pods.listing())
        if pod.namespace != self._settings.namespace:
            raise errors.UnavailableError(
                f"{names.CONTROL_RESOURCE}: only for pods of namespace "
                f"{self._settings.namespace}, not for {pod.namespace}/{pod.name}"
            )
        for entry in entries:
            if entry.uid == pod.uid and grants.is_id(entry.grant):
                self._describe(entry.grant)
        log.info("gave the nodes of all devices to %s/%s", pod.namespace, pod.name)
        done(None)

    def _describe(self, name: str) -> None:
        nodes = _nodes(self._settings.driver_root)
        edits: dict[str, object] = {"env": [f"{VARIABLE}={_words(nodes)}"]}
        if nodes:
            edits["deviceNodes"] = [node.edit() for node in nodes]
        document = cdi.document(names.CONTROL_RESOURCE, {name: edits})
        cdi.write(document, self._settings.specifications / f"{_PREFIX}{name}{_SUFFIX}")


class DeviceNodesPlugin:
    """The plugin, which :meth:`run` runs until :meth:`stop`."""

    def __init__(self, settings: DeviceNodeSettings) -> None:
        self._settings = settings
        self._stopped = threading.Event()
        self._registrar: registration.Registrar | None = None

    def run(self) -> None:
        """Serve kubelet; UnavailableError if another process does so on this node."""
        settings = self._settings
        pods = pod_resources.PodResources(settings.pod_resources, (device_ids.CONTROL,))
        keeper = AgentDeviceNodes(
            settings, checkpoint_file.CheckpointFile(settings.plugins, (device_ids.CONTROL,)), pods
        )
        plugin = plugin_server.Plugin(
            settings.plugins, offers.Offer(device_ids.CONTROL, 1), keeper
        )
        registrar = self._registrar = registration.Registrar(settings.plugins, [plugin], _LOCK)
        if self._stopped.is_set():
            registrar.stop()
        registrar.run()

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stopped.set()
        if self._registrar is not None:
            self._registrar.stop()


def stay(root: Path, wait: Callable[[float], bool]) -> None:
    """Block until *wait* says that the agent ends; called in the agent.

    UnavailableError when the device nodes differ from those that its container was given: it can
    open them only after a restart.
    """
    given = before = os.environ.get(VARIABLE)
    while given is None:  # the container is not restricted to given nodes
        if wait(_NEVER_SECONDS):
            return
    while not wait(POLL_SECONDS):
        now = _words(_nodes(root))
        if now == before != given:  # seen twice: nodes appear one after the other
            raise errors.UnavailableError(
                f"{root}/dev: has {now or 'none'} now, but this container may open "
                f"{given or 'none'}: it must restart"
            )
        before = now


def _nodes(root: Path) -> tuple[cdi.CdiNode, ...]:
    """Return the driver's nodes, and the one by which an unprivileged agent sees MIG devices."""
    found = cdi.nodes(root)
    return (*found, *capabilities.monitor(capabilities.proc_of(root))) if found else ()


def _words(nodes: tuple[cdi.CdiNode, ...]) -> str:
    return ",".join(f"{node.name}={node.major}:{node.minor}" for node in nodes)
