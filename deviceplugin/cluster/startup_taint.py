"""Removes a taint from the agent's node once pods with devices can start there.

A fresh node that registers with this taint takes no pod before its agent is ready, so no pod fails
there, and cluster autoscalers count its devices as on their way rather than missing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.cluster import own_node

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0


class StartupTaint:
    """Removes the taint with one key; other taints stay."""

    def __init__(self, node: own_node.OwnNode, key: str, trouble: Callable[[], str]) -> None:
        """*trouble* returns why no pod with devices can start yet; empty if they can."""
        self._node = node
        self._key = key
        self._trouble = trouble

    def run(self, wait: Callable[[float], bool]) -> None:
        """Poll periodically until *wait*, which sleeps for some seconds, returns true."""
        failing = False
        while not wait(POLL_SECONDS):
            try:
                self.poll()
                failing = False
            except apiserver.ServerError as exc:
                if not failing and not exc.outdated:
                    log.warning("cannot remove taint %s of this node yet: %s", self._key, exc)
                failing = True

    def poll(self) -> None:
        """Remove the taint if the agent is ready; ServerError if the node cannot be changed."""
        taints = self._node.taints()
        left = [taint for taint in taints if taint.get("key") != self._key]
        if len(left) != len(taints) and not self._trouble():
            self._node.set_taints(left)
            log.info("removed taint %s of this node", self._key)
