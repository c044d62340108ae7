"""Detect another device plugin, such as NVIDIA's, that gives out the GPUs of this node.

Two plugins for the same GPUs would allocate each of them twice. So while the node's capacity has a
resource of NVIDIA's plugin (HAMi's plugin and the GPU Operator use the same names), the agent
offers no device, neither through its device plugin nor through DRA. Running containers keep their
devices.

The last result is stored in the agent's folder and holds until the API server answers. Without
one, no device is offered until then:

other-plugin.json    "nvidia.com/gpu: 8", or "" for none
"""

from __future__ import annotations

import contextlib
import json
import logging
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin.grants import events
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from pyvgpu.deviceplugin.cluster import own_node

log = logging.getLogger(__name__)

FILE = "other-plugin.json"  # in the state folder
POLL_SECONDS = 5.0
_NOT_KNOWN = "possibly another device plugin (the node's capacity has not been read yet)"

# nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-1g.10gb. Other resources of nvidia.com
# are network devices, or GPUs of virtual machines, which the driver of the node does not have.
_GPU = "nvidia.com/gpu"
_MIG_MANAGER = ("nvidia.com/mig.config", "nvidia.com/gpu.deploy.mig-manager")
_NO_MIG_MANAGER = (("nvidia.com/gpu.deploy.mig-manager", "false"),)
_NVIDIA_DRA = "gpu.nvidia.com"
_BEGINNINGS = (f"{_GPU}.", "nvidia.com/mig-")


def counted(capacity: Mapping[str, object], ours: Collection[str] = ()) -> str:
    """Return the resources in a node's *capacity* that another plugin has for GPUs; '' if none.

    *ours* are the resources that this agent serves itself.
    """
    return ", ".join(
        f"{name}: {amount}"
        for name, amount in sorted(capacity.items())
        if (name == _GPU or name.startswith(_BEGINNINGS))
        and name not in ours
        and _is_positive(str(amount))
    )


def mig_manager(labels: Mapping[str, object], registry: Path) -> str:
    """Return why pods get no MIG instances on a node with these *labels*; '' if they may.

    NVIDIA's MIG manager and DRA driver destroy instances that they have not created. The first is
    found by the node's labels, the second by its socket in kubelet's *registry* of plugins.
    """
    for label in _MIG_MANAGER:
        value = str(labels.get(label) or "")
        if value and (label, value) not in _NO_MIG_MANAGER:
            return (
                f"NVIDIA's MIG manager divides the GPUs of this node (label {label}={value}): "
                "remove the label, or leave the GPU out of --dynamic-mig"
            )
    if any(registry.glob(f"{_NVIDIA_DRA}*")):
        return (
            f"NVIDIA's DRA driver {_NVIDIA_DRA} runs on this node, and may divide its GPUs: "
            "remove it, or leave the GPU out of --dynamic-mig"
        )
    return ""


def mig_manager_of(node: own_node.OwnNode, registry: Path) -> str:
    """Return the same for a *node*, by its last seen labels."""
    labels: Mapping[str, object] = {}
    with contextlib.suppress(errors.PyVgpuError):  # it was never seen
        labels = node.metadata().get("labels") or {}
    return mig_manager(labels, registry)


def _is_positive(amount: str) -> bool:
    """Return whether a Kubernetes quantity is above 0, whatever its suffix or exponent."""
    number = amount.lower().partition("e")[0]
    return not number.startswith("-") and any(character in "123456789" for character in number)


class OtherPluginWatch:
    """Follows the capacity of a node, on the thread of :meth:`run`."""

    def __init__(
        self,
        node: own_node.OwnNode,
        state: Path,
        stand_back: Callable[[str], None],
        report: Callable[[events.GrantEvent], None],
        ours: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._node = node
        self._file = state / FILE
        self._stand_back = stand_back
        self._report = report
        self._ours = ours  # the resources that this agent serves itself
        self._known = self._recall()  # None: never read
        self._shown = ""  # the other plugin in whose favour the agent offers nothing
        self._reported = ""
        self._problem = ""

    def run(self, wait: Callable[[float], bool]) -> None:
        """Poll periodically until *wait*, which sleeps for some seconds, returns true."""
        while not wait(POLL_SECONDS):
            self.poll()

    def poll(self) -> None:
        """Read the node's capacity once; while it cannot be read, the stored result holds."""
        try:
            found = counted(self._node.capacity(), self._ours())
        except errors.PyVgpuError as exc:
            self._complain(str(exc))
            self._show()
            return
        self._problem = ""
        before, self._known = self._known, found
        self._show()
        if found != before:
            self._keep(found)
        if found != self._reported:
            self._reported = found
            self._say(found, before or "")

    def _show(self) -> None:
        known = self._known
        text = _NOT_KNOWN if known is None else f"another device plugin ({known})" if known else ""
        if text != self._shown:
            self._shown = text
            self._stand_back(text)

    def _say(self, found: str, before: str) -> None:
        name = self._node.name
        if found:
            text = (
                f"node {name} offers no device: its capacity has {found}, so another device "
                "plugin, such as NVIDIA's, offers the same GPUs. Remove that plugin or this "
                "agent from the node, or override this check with --beside-nvidia"
            )
            log.warning("%s", text)
        else:
            text = f"node {name} offers its devices again: no other device plugin offers its GPUs"
            log.info("%s (before: %s)", text, before)
        reason = events.Reason.NOT_OFFERED if found else events.Reason.OFFERED
        self._report(events.GrantEvent(self._node.uid, "", name, text, reason, of_node=True))

    def _complain(self, text: str) -> None:
        if text != self._problem:
            still = {
                None: "no device is offered until that is known",
                "": "last seen: none",
            }.get(self._known, f"last seen: {self._known}")
            log.warning(
                "cannot detect another device plugin that offers this node's GPUs (%s): %s",
                still,
                text,
            )
        self._problem = text

    def _keep(self, found: str) -> None:
        try:
            atomic_files.write(self._file, json.dumps(found).encode())
        except OSError as exc:
            log.warning("%s: cannot be written: %s", self._file, exc)

    def _recall(self) -> str | None:
        try:
            found = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as exc:
            log.warning("%s: cannot be read: %s", self._file, exc)
            return None
        return found if isinstance(found, str) else None
