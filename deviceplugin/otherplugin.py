"""Whether another device plugin, such as NVIDIA's, gives out the GPUs of this node.

Two plugins that count the same GPUs give each of them out twice. So while the node's capacity has
a resource of NVIDIA's plugin (HAMi's plugin and the GPU Operator use the same names), the agent
offers no device, neither to kubelet's counters nor to claims. Running containers keep what they
have.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin import events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.deviceplugin import ownnode

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0

# nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-1g.10gb. Other resources of nvidia.com
# are network devices, or GPUs of virtual machines, which the driver of the node does not have.
_GPU = "nvidia.com/gpu"
_BEGINNINGS = (f"{_GPU}.", "nvidia.com/mig-")


def counted(capacity: Mapping[str, object]) -> str:
    """Return what of a node's *capacity* counts GPUs for another plugin; empty: nothing."""
    return ", ".join(
        f"{name}: {amount}"
        for name, amount in sorted(capacity.items())
        if (name == _GPU or name.startswith(_BEGINNINGS)) and _is_positive(str(amount))
    )


def _is_positive(amount: str) -> bool:
    """Tell whether a quantity of Kubernetes is above 0, whatever its suffix or exponent."""
    number = amount.lower().partition("e")[0]
    return not number.startswith("-") and any(it in "123456789" for it in number)


class Follower:
    """Follows the capacity of a node, from whichever thread runs it."""

    def __init__(
        self,
        node: ownnode.OwnNode,
        stand_back: Callable[[str], None],
        tell: Callable[[events.Event], None],
    ) -> None:
        self._node = node
        self._stand_back = stand_back
        self._tell = tell
        self._known = ""
        self._complaint = ""

    def run(self, wait: Callable[[float], bool]) -> None:
        """Look until *wait* returns, after some seconds, that the agent ends."""
        while not wait(LOOK_SECONDS):
            self.look(LOOK_SECONDS / 2)  # the follower of cordons has mostly just read it

    def look(self, seconds: float = 0.0) -> None:
        """Look once at the node as it was at most *seconds* ago.

        Where it cannot be read, what was seen last still holds.
        """
        try:
            found = counted(self._node.capacity(seconds))
        except errors.PyVgpuError as exc:
            self._complain(str(exc))
            return
        self._complaint = ""
        if found != self._known:
            self._change(found)

    def _change(self, found: str) -> None:
        before, self._known = self._known, found
        self._stand_back(f"another device plugin ({found})" if found else "")
        name = self._node.name
        if found:
            text = (
                f"node {name} offers no device: its capacity has {found}, so another device "
                "plugin, such as NVIDIA's, gives out the same GPUs. Remove that plugin or this "
                "agent from the node, or force this agent with --beside-nvidia"
            )
            log.warning("%s", text)
        else:
            text = f"node {name} offers its devices again: no other device plugin counts its GPUs"
            log.info("%s (before: %s)", text, before)
        reason = events.Reason.NOT_OFFERED if found else events.Reason.OFFERED
        self._tell(events.Event(self._node.uid, "", name, text, reason, of_node=True))

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            still = "none was seen" if not self._known else f"{self._known} was seen last"
            log.warning(
                "cannot see whether another device plugin gives out this node's GPUs (%s): %s",
                still,
                text,
            )
        self._complaint = text
