"""Audits a room's memory as the supervisor of a run does."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import forked

from pyvgpu import names, region
from pyvgpu.run import run_auditor

if TYPE_CHECKING:
    from collections.abc import Callable

    from shim_room import Room

_PERIOD_SECONDS = 0.01
_POLLS = 30


def audit(room: Room, meanwhile: Callable[[], None] = lambda: None) -> tuple[int, bool]:
    """Audit many times before and after *meanwhile*, which a forked child calls.

    Returns the most bytes of a slot that are published beyond its charges, and whether the ledger
    was found changed by something other than the shim.
    """
    published, marked = forked.call(lambda: _audit(room, meanwhile))
    return published, marked


def _audit(room: Room, meanwhile: Callable[[], None]) -> tuple[int, bool]:
    run_auditor.PERIOD_SECONDS = _PERIOD_SECONDS
    auditor = run_auditor.RunAuditor(
        run_auditor.Audited(
            quota=room.quota,
            usage=room.folder / names.USAGE_FILE,
            devices=tuple(room.devices),
            libnvidia_ml=room.driver.libnvidia_ml,
            machine=room.machine.folder,
        )
    )
    auditor.start()
    threading.Event().wait(_POLLS * _PERIOD_SECONDS)
    meanwhile()
    threading.Event().wait(_POLLS * _PERIOD_SECONDS)
    extra = region.read_extra(room.quota, 1)
    auditor.stop()
    marked = (room.folder / names.TAMPERED_FILE).exists()
    return max(map(max, extra)), marked
