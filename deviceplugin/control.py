"""Gives the agent the nodes of its node's devices, so that it needs no privilege to open them.

To speak with the driver (NVML) the agent opens these nodes. A container that is not privileged may
open none but those that kubelet gives it for a device plugin; and the agent cannot be that plugin,
since kubelet does so before it starts. So this is another process, which opens nothing itself: the
plugin of a resource of which there is one.

The nodes of all devices are for nobody else. Allocate names no pod, so what it answers names a CDI
device that nobody has described; PreStartContainer describes it where the pod is of the agent's
namespace by both of kubelet's words (:mod:`.identity`). All nodes are looked up each time, and the
agent starts again where there are others by then: :func:`stay`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.deviceplugin import (
    answers,
    grants,
    identity,
    ids,
    podresources,
    registration,
    service,
    state,
)
from pyvgpu.volumes import cdi

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyvgpu.deviceplugin import starting

log = logging.getLogger(__name__)

VARIABLE = "PYVGPU_CONTROL_NODES"  # in the agent's container: the nodes that it was given

LOOK_SECONDS = 5.0
_NEVER_SECONDS = 86_400.0  # where nothing has to be looked for

_LOCK = "pyvgpu-control.lock"
_PREFIX, _SUFFIX = "pyvgpu.io-control-", ".json"


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Where things are on the node, and for whom it is done."""

    namespace: str  # the agent's
    plugins: Path
    pod_resources: Path
    specifications: Path
    driver_root: Path


class Keeper:
    """Decides who gets the nodes; described in *settings*' folder of CDI specifications."""

    def __init__(
        self, settings: Settings, written: state.State, pods: podresources.PodResources
    ) -> None:
        self._settings = settings
        self._written = written
        self._pods = pods

    def allocate(self, _kind: ids.Kind, _given: frozenset[str]) -> answers.Answer:
        """Answer with a CDI device that nobody has described; that of before is over."""
        for old in self._settings.specifications.glob(f"{_PREFIX}*{_SUFFIX}"):
            old.unlink(missing_ok=True)
        name = grants.new_id()
        return answers.Answer({names.GRANT_KIND: name}, (f"{names.CONTROL_RESOURCE}={name}",))

    def prefer(self, _kind: ids.Kind, asked: answers.Choice) -> tuple[str, ...]:
        """Return the one that there is."""
        return ids.preferred(asked.available, asked.must, asked.size)

    def start(self, kind: ids.Kind, held: frozenset[str], done: starting.Done) -> None:
        """Describe it for a pod of the agent's namespace; UnavailableError for any other."""
        entries = self._written.read()
        pod = identity.identify(kind, held, entries, self._pods.listing())
        if pod.namespace != self._settings.namespace:
            raise errors.UnavailableError(
                f"{names.CONTROL_RESOURCE}: is for pods of namespace {self._settings.namespace} "
                f"alone, and this is {pod.namespace}/{pod.name}"
            )
        for entry in entries:
            if entry.uid == pod.uid and grants.is_id(entry.grant):
                self._describe(entry.grant)
        log.info("gave the nodes of all devices to %s/%s", pod.namespace, pod.name)
        done(None)

    def _describe(self, name: str) -> None:
        nodes = cdi.nodes(self._settings.driver_root)
        edits: dict[str, object] = {"env": [f"{VARIABLE}={_words(nodes)}"]}
        if nodes:
            edits["deviceNodes"] = [it.edit() for it in nodes]
        document = cdi.document(names.CONTROL_RESOURCE, {name: edits})
        cdi.write(document, self._settings.specifications / f"{_PREFIX}{name}{_SUFFIX}")


class Control:
    """The plugin, which :meth:`run` runs until :meth:`stop`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopped = threading.Event()
        self._registrar: registration.Registrar | None = None

    def run(self) -> None:
        """Serve kubelet; UnavailableError if somebody else does so here."""
        settings = self._settings
        pods = podresources.PodResources(settings.pod_resources, (ids.CONTROL,))
        keeper = Keeper(settings, state.State(settings.plugins, (ids.CONTROL,)), pods)
        plugin = service.Plugin(settings.plugins, service.Offer(ids.CONTROL, 1), keeper)
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
    """Be back when *wait* says that the agent ends; called in the agent.

    UnavailableError when the node has other nodes than its container was given: it can open them
    only when it has started again.
    """
    given = before = os.environ.get(VARIABLE)
    while given is None:  # it opens what it likes
        if wait(_NEVER_SECONDS):
            return
    while not wait(LOOK_SECONDS):
        now = _words(cdi.nodes(root))
        if now == before != given:  # twice: they come one after the other
            raise errors.UnavailableError(
                f"{root}/dev: has {now or 'none'} by now, and this container may open "
                f"{given or 'none'}: it must start again"
            )
        before = now


def _words(nodes: tuple[cdi.Node, ...]) -> str:
    return ",".join(f"{it.name}={it.major}:{it.minor}" for it in nodes)
