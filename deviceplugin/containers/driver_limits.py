"""Memory limits that the driver itself enforces on containers; see pyvgpu/machine/memory_limit.py.

Before a container's program starts, the runtime runs a hook (csrc/programs/hook/created.c), which
notifies the agent. A container without that notification, such as one without CDI or one started
while no agent ran, gets its limit when the audit first sees one of its processes on a device. The
limit is recorded in a file in the grant's folder, which the container may read and the next agent
reads.

A limit follows its grant's quota: it is raised before the quota, and lowered after. It ends with
the cgroup, which the runtime removes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml

from pyvgpu import errors, names, nvml, shim
from pyvgpu.deviceplugin.containers import cdi_edits, process_owner
from pyvgpu.machine import cgroups, ipc, memory_limit
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from pyvgpu.deviceplugin.containers.store import GrantStore
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

_HOOK = "pyvgpu-created"  # in the state folder; the node's runtime runs it there
_FOLDER = "created"  # in the run folder, for the socket


class DriverLimits:
    """The driver's limits for all containers of shares."""

    def __init__(
        self,
        folders: GrantStore,
        state: Path,
        run: Path,
        granted: Callable[[], Mapping[str, Grant]],
    ) -> None:
        self._folders = folders
        self._hook = cdi_edits.Hook(state / _HOOK, run / _FOLDER / names.CONTROL_SOCKET)
        self._granted = granted
        self._library: Path | None = None  # NVML of a driver that supports such limits
        self._lock = threading.Lock()
        self._known: dict[str, memory_limit.Limit] = {}  # by grant
        self._asked: dict[str, tuple[int, ...]] = {}  # the quotas for which limits were set
        self._met: dict[str, set[int]] = {}  # processes whose cgroup was checked
        self._listener: ipc.Listener | None = None

    def meet(self, library: Path | None) -> cdi_edits.Hook | None:
        """Use the node's current driver; return the hook for its containers.

        *library* is its NVML, None if it does not support limits: then there is no hook either.
        """
        with self._lock:
            self._library, self._asked = library, {}
        if library is None:
            return None
        try:
            program = shim.created_hook().read_bytes()
            if not self._hook.program.is_file() or self._hook.program.read_bytes() != program:
                atomic_files.write(self._hook.program, program, mode=0o755)
            self._listen()
        except (OSError, errors.PyVgpuError) as exc:
            log.warning("driver limits are set only after containers have started: %s", exc)
            return None
        return self._hook

    def stop(self) -> None:
        """Stop listening to the hook; limits stay in effect."""
        if self._listener is not None:
            self._listener.stop()

    def poll(self, grants: Iterable[Grant], pids: Mapping[str, Collection[int]]) -> None:
        """Set missing limits, in an NVML session; *pids* are each grant's, by its id."""
        with self._lock:
            if self._library is None:
                return
            there = {granted.id: granted for granted in grants}
            for grant in there.values():
                new = set(pids.get(grant.id, ())) - self._met.get(grant.id, set())
                self._met[grant.id] = set(pids.get(grant.id, ()))
                found = [
                    process_owner.container_folder(path)
                    for path in map(cgroups.of_process, new)
                    if path
                ]
                fresh = [path for path in found if not self._covers(grant.id, path)]
                if fresh or (
                    self._recall(grant.id).cgroups and self._asked.get(grant.id) != _wanted(grant)
                ):
                    self._put(grant, fresh)
            for kept in (self._known, self._asked, self._met):
                for gone in kept.keys() - there.keys():
                    del kept[gone]

    def grow(self, grant: Grant) -> None:
        """Raise a container's limit if its quota is about to be raised."""
        with self._lock:
            before = self._asked.get(grant.id)
            if self._library is None or before is None or not self._recall(grant.id).cgroups:
                return
            if any(new > old for new, old in zip(_wanted(grant), before, strict=True)):
                with self._session():
                    self._put(grant, ())

    def of(self, grant_id: str) -> memory_limit.Limit:
        """Return a grant's limit, as recorded."""
        with self._lock:
            return memory_limit.NONE if self._library is None else self._recall(grant_id)

    def _listen(self) -> None:
        if self._listener is not None:
            return
        folder = self._hook.socket.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            self._hook.socket.unlink()
        listener = ipc.Listener(folder, "limits of containers", self._created)
        listener.start()
        self._listener = listener

    def _created(self, asked: Mapping[str, Any]) -> Mapping[str, object]:
        """Set the limit of a container that the runtime has just created."""
        grant_id, pid = asked.get("grant"), asked.get("pid")
        if not isinstance(grant_id, str) or type(pid) is not int:
            raise errors.DataError(f"{dict(asked)}: must be the grant and the pid of a container")
        grant = self._granted().get(grant_id)
        if grant is None or grant.whole or not grant.bound:
            raise errors.DataError(f"grant {grant_id}: not a bound grant of a share")
        cgroup = cgroups.of_process(pid)
        with self._lock, self._session():
            if cgroup is None:
                self._note(grant, memory_limit.Limit(why=f"no mount shows the cgroup of {pid}"))
            else:
                self._put(grant, [cgroup])
            return {"sizes": list(self._recall(grant_id).sizes)}

    @contextlib.contextmanager
    def _session(self) -> Iterator[None]:
        """Open an NVML session; UnavailableError if that fails."""
        if self._library is None:
            raise errors.UnavailableError("the driver has no limits for cgroups")
        try:
            with nvml.session(self._library):
                yield
        except (OSError, pynvml.NVMLError) as exc:
            raise errors.UnavailableError(f"NVML: {exc}") from exc

    def _covers(self, grant_id: str, cgroup: Path) -> bool:
        return any(cgroup.is_relative_to(parent) for parent in self._recall(grant_id).cgroups)

    def _put(self, grant: Grant, new: Iterable[Path]) -> None:
        """Set the limit of all existing cgroups of a grant, including the *new* ones."""
        before = self._recall(grant.id)
        known = [Path(text) for text in before.cgroups]
        found = [path for path in dict.fromkeys((*known, *new)) if path.is_dir()]
        sizes: tuple[int, ...] = ()
        why = ""
        try:
            for cgroup in found:
                sizes = tuple(
                    memory_limit.put(share.uuid, cgroup, share.vmemory) for share in grant.shares
                )
        except memory_limit.NotSetError as exc:
            sizes, why = before.sizes, str(exc)
        if not (why and sizes):  # the next poll retries an outdated limit
            self._asked[grant.id] = _wanted(grant)
        self._note(grant, memory_limit.Limit(tuple(map(str, found)), sizes, why))

    def _note(self, grant: Grant, limit: memory_limit.Limit) -> None:
        before = self._known.get(grant.id)
        if limit == before:
            return
        self._known[grant.id] = limit
        if limit.why and (before is None or before.why != limit.why):
            log.warning("no driver limit for %s: %s", grant.label, limit.why)
        with contextlib.suppress(OSError):
            file = self._folders.path(grant.id) / names.LIMIT_FILE
            atomic_files.write(file, limit.dump(), lasting=False)

    def _recall(self, grant_id: str) -> memory_limit.Limit:
        known = self._known.get(grant_id)
        if known is None:
            known = memory_limit.NONE
            with contextlib.suppress(OSError, errors.DataError):
                file = self._folders.path(grant_id) / names.LIMIT_FILE
                known = memory_limit.load(file.read_bytes())
            self._known[grant_id] = known
        return known


def _wanted(grant: Grant) -> tuple[int, ...]:
    return tuple(share.vmemory for share in grant.shares)
