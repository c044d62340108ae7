"""Move devices between device plugin, DRA and time slices, and record each one's API.

allocation-apis.json    {"GPU-8c9f5a3e-...": "dra"}, in the agent's state folder
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.deviceplugin import allocation_api
from pyvgpu.deviceplugin.allocation_api import Api
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

FILE = "allocation-apis.json"
POLL_SECONDS = 5.0


class DeviceApis:
    """The current and the configured APIs of a node's devices."""

    def __init__(
        self,
        state: Path,
        wanted: allocation_api.Configured,
        settle_seconds: float = allocation_api.SETTLE_SECONDS,
    ) -> None:
        self._file = state / FILE
        self._wanted = wanted
        self._settle_seconds = settle_seconds
        self._lock = threading.Lock()
        self._known = self._read()
        self._states: dict[str, allocation_api.ApiState] = {}
        self._closed: dict[str, float] = {}  # devices that move, and since when

    def meet(self, uuids: Iterable[str], known: Collection[Grant]) -> None:
        """Update the set of devices; *known* are the grants."""
        held = {
            share.uuid for grant in known if grant.claim is None for share in grant.shares
        } | self._closed.keys()
        with self._lock:
            self._states = allocation_api.states(uuids, self._wanted, self._known, held)
            self._keep({uuid: state.now for uuid, state in self._states.items()})
            now = time.monotonic()
            self._closed = {
                uuid: self._closed.get(uuid, now)
                for uuid, state in self._states.items()
                if state.moves
            }
            for uuid in self._closed:
                state = self._states[uuid]
                log.warning(
                    "device %s will be allocated by %s, once nothing of it is allocated by %s",
                    uuid,
                    state.wanted.value,
                    state.now.value,
                )

    def any_of(self, api: Api) -> bool:
        """Whether *api* allocates any device, or did when the agent ran last."""
        return api in self._known.values()

    @property
    def any_dra(self) -> bool:
        """Whether DRA allocated any device when the agent ran last."""
        return self.any_of(Api.DRA)

    def state(self, uuid: str) -> allocation_api.ApiState | None:
        """Return the current and the configured API of a device; None: it is not known."""
        return self._states.get(uuid)

    def elsewhere(self, uuid: str) -> str:
        """Return the API other than the device plugin that allocates a device; empty: none."""
        state = self._states.get(uuid)
        return "" if state is None else state.elsewhere

    def published(self, uuid: str) -> bool:
        """Return whether claims may be allocated on a device."""
        state = self._states.get(uuid)
        return state is not None and state.published

    def gives(self, uuid: str) -> bool:
        """Return whether claims may hold a device: also one that is moving away from DRA."""
        state = self._states.get(uuid)
        return state is not None and state.now is Api.DRA

    def run(
        self,
        wait: Callable[[float], bool],
        held: Callable[[Api], Collection[str] | None],
        moved: Callable[[], None],
    ) -> None:
        """Move free devices to their configured API, until *wait* returns true.

        *held* returns the UUIDs of devices that an API has allocated, None if unknown.
        """
        while not wait(POLL_SECONDS):
            if self.poll(held):
                moved()

    def poll(self, held: Callable[[Api], Collection[str] | None]) -> bool:
        """Move free devices once; whether any has moved."""
        settled = time.monotonic() - self._settle_seconds
        waiting = [uuid for uuid, since in self._closed.items() if since <= settled]
        if not waiting:
            return False
        by_api = {api: held(api) for api in {self._states[closed].now for closed in waiting}}
        with self._lock:
            free = [
                uuid
                for uuid in waiting
                if (taken := by_api[self._states[uuid].now]) is not None and uuid not in taken
            ]
            self._keep({uuid: self._states[uuid].wanted for uuid in free})
            for uuid in free:
                wanted = self._states[uuid].wanted
                self._states[uuid] = allocation_api.ApiState(wanted, wanted)
                del self._closed[uuid]
                log.warning("device %s is allocated by %s from now on", uuid, wanted.value)
        return bool(free)

    def _keep(self, found: dict[str, Api]) -> None:
        after = {**self._known, **found}
        if after != self._known:
            atomic_files.write(self._file, json.dumps(after, sort_keys=True).encode())
            self._known = after

    def _read(self) -> dict[str, Api]:
        try:
            found = json.loads(self._file.read_bytes())
            return {str(uuid): Api(name) for uuid, name in found.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as exc:
            # A guess could let both APIs allocate one device.
            raise errors.DataError(
                f"{self._file}: cannot be read ({errors.reason_of(exc)}); fix it, for "
                'example {"GPU-8c9f5a3e-...": "dra"}, or remove it if no container uses a device'
            ) from exc
