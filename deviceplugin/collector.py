"""Ends the grants of pods that are over, every other second."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.granting import Granter
    from pyvgpu.deviceplugin.making import Grants

log = logging.getLogger(__name__)

COLLECT_SECONDS = 2.0  # dead grants are gone within 5 s

_KUBELET_SECONDS = 30.0  # between two words on a kubelet that does not answer


def collect(granter: Granter, made: Grants, wait: Callable[[float], bool]) -> None:
    """Collect until *wait* says, after some seconds, that there is no more need.

    The first time at once: kubelet looks after its own list of who lives when it is asked for it,
    and writes that down when we register.
    """
    silent_since = None
    due = 0.0
    while not wait(due):
        due = COLLECT_SECONDS
        try:
            granter.collect()
            made.collect(granter.wanted)
            silent_since = None
        except errors.UnavailableError as exc:
            now = time.monotonic()
            if silent_since is None or now - silent_since > _KUBELET_SECONDS:
                log.warning("nothing can be collected: %s", exc)
                silent_since = now
