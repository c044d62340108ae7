"""Sample the usage of containers from their ledgers, every few seconds.

The container writes its ledger, so readings are limited to plausible values: time goes forward,
and no faster than the clock; if a file cannot be read, its last values stay. A whole device has no
ledger; its usage is NVML's of the device, see ``health``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, region

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.deviceplugin.containers.store import GrantStore
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

PERIOD_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """A container's usage of one device; the sums are since the grant."""

    ratio: float = 0.0  # of the device's time, between the last two polls; 0 to 1
    busy_seconds: float = 0.0  # of the device's time, sum
    held_bytes: int = 0
    refused: int = 0  # allocations, sum
    waits: int = 0  # launches that were throttled, sum
    waited_seconds: float = 0.0  # their delay, sum
    processes: int = 0  # of the container, that use this or another of its devices
    suspended: bool = False
    host_bytes: int = 0  # of device memory, in host memory while it is suspended
    suspended_seconds: float = 0.0  # between samples in which it was suspended, sum


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a ledger, for one of its devices; the sums are since it was created."""

    at: float  # seconds of a monotonic clock
    busy_ns: int = 0
    waited_ns: int = 0
    waits: int = 0
    refused: int = 0
    held_bytes: int = 0
    processes: int = 0
    suspended: bool = False
    host_bytes: int = 0


NOTHING = Use()


def used(before: Use, old: Reading, new: Reading) -> Use:
    """Return the usage after the reading *new*; *before* was the usage after *old*."""
    elapsed = new.at - old.at
    if elapsed <= 0:
        return before
    busy = min(_grown(old.busy_ns, new.busy_ns) / 1e9, elapsed)
    return Use(
        ratio=busy / elapsed,
        busy_seconds=before.busy_seconds + busy,
        held_bytes=new.held_bytes,
        refused=before.refused + _grown(old.refused, new.refused),
        waits=before.waits + _grown(old.waits, new.waits),
        waited_seconds=before.waited_seconds + _grown(old.waited_ns, new.waited_ns) / 1e9,
        processes=new.processes,
        suspended=new.suspended,
        host_bytes=new.host_bytes,
        suspended_seconds=before.suspended_seconds
        + (elapsed if old.suspended and new.suspended else 0.0),
    )


def _grown(old: int, new: int) -> int:
    return max(new - old, 0)


class Uses:
    """The usage of all grants of shares, by grant and device."""

    def __init__(self, folders: GrantStore, granted: Callable[[], Mapping[str, Grant]]) -> None:
        self._folders = folders
        self._granted = granted
        self._read: dict[tuple[str, str], Reading] = {}
        self._used: dict[tuple[str, str], Use] = {}

    def of(self, grant_id: str, uuid: str) -> Use:
        """Return the usage of a device by the container of a grant; zeros if not known."""
        return self._used.get((grant_id, uuid), NOTHING)

    def run(self, wait: Callable[[float], bool], polled: Callable[[], None]) -> None:
        """Sample periodically until *wait*, which sleeps for some seconds, returns true.

        *polled* is called after each sample.
        """
        while not wait(PERIOD_SECONDS):
            self.poll()
            polled()

    def poll(self) -> None:
        """Sample all grants once."""
        shared = [
            granted for granted in self._granted().values() if granted.bound and not granted.whole
        ]
        for grant in shared:
            with contextlib.suppress(OSError, errors.DataError):
                self._sample_grant(grant)
        live = {(granted.id, share.uuid) for granted in shared for share in granted.shares}
        self._read = {key: reading for key, reading in self._read.items() if key in live}
        self._used = {key: usage for key, usage in self._used.items() if key in live}

    def _sample_grant(self, grant: Grant) -> None:
        for share, new in zip(grant.shares, self._readings(grant), strict=True):
            key = grant.id, share.uuid
            begun = Reading(new.at - max(time.time() - grant.created, 0.0))
            self._used[key] = used(self.of(*key), self._read.get(key, begun), new)
            self._read[key] = new

    def _readings(self, grant: Grant) -> list[Reading]:
        count = len(grant.shares)
        with self._folders.opened_both(grant.id) as (usage, quota):
            processes, figures = region.read_figures(usage, count)
            at = time.monotonic()
            extra = region.read_extra_totals(quota, count)
            suspended = region.read_suspension(quota).suspended
        return [
            Reading(
                at=at,
                busy_ns=one.busy_ns,
                waited_ns=one.waited_ns,
                waits=one.waits,
                refused=one.refused,
                held_bytes=0 if suspended else one.charged + beyond,
                processes=processes,
                suspended=suspended,
                host_bytes=one.charged if suspended else 0,
            )
            for one, beyond in zip(figures, extra, strict=True)
        ]
