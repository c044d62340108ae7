"""MIG instances that the agent creates for containers, and destroys after them.

Each has a record, which is on disk before NVML is called, so that an agent that was killed at any
step continues or undoes it:

    creating   there may be the GPU instance, its compute instance, or neither
    ready      the MIG device has this UUID
    ending     no container uses it any more; what is left of it is destroyed, again and again if
               a process still uses it

An instance without a record was made by the administrator. It is never changed, and its place is
taken. Nor is the mode of a GPU ever changed: if a reload of the driver has ended it, the GPU is
unhealthy as long as there are records of it. No instance is created while another manager of MIG
instances works on the node.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pynvml

from pyvgpu import errors, nvml
from pyvgpu.allocator import datatypes, mig_placement
from pyvgpu.deviceplugin import agent_settings
from pyvgpu.deviceplugin.containers import gpu_instances
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from ctypes import c_void_p

log = logging.getLogger(__name__)

FILE = "mig-instances.json"  # in the agent's state folder
_VERSION = 1
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class InstanceState(enum.StrEnum):
    """How far an instance is."""

    CREATING = "creating"
    READY = "ready"
    ENDING = "ending"


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """The instance of one grant."""

    grant: str
    gpu: str  # UUID
    share: datatypes.NodeShare
    boot: str  # no instance outlives a boot
    state: InstanceState = InstanceState.CREATING
    uuid: str = ""  # of the MIG device; empty: not known
    gpu_instance: int = -1
    compute_instance: int = -1


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU in MIG mode on which instances are created."""

    uuid: str
    index: int
    name: str
    profiles: tuple[datatypes.MigProfile, ...]

    def profile(self, name: str) -> datatypes.MigProfile:
        """Return a profile by its name; DataError if the GPU has none."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        raise errors.DataError(
            f"GPU {self.uuid} has no MIG profile {name}; it has "
            f"{mig_placement.describe(self.profiles)}"
        )


class MigInstances:
    """Creates, finds and destroys the instances of grants; thread-safe."""

    def __init__(
        self,
        folder: Path,
        wanted: frozenset[str],
        boot: Callable[[], str] | None = None,
        other_manager: Callable[[], str] = str,
    ) -> None:
        """Read the records in *folder*; DataError if they are damaged.

        *other_manager* returns what else manages the MIG instances of the node; empty: nothing.
        """
        self._file = folder / FILE
        self._wanted = wanted
        self._other_manager = other_manager
        self._boot = (boot or _read_boot)()
        self._lock = threading.RLock()
        self._library: Path | None = None
        self._gpus: dict[str, Gpu] = {}
        self._taken: dict[str, tuple[str, ...]] = {}
        self._used: dict[str, int] = {}
        self._mode_off: frozenset[str] = frozenset()
        self._last_read = (
            "",
            frozenset[str](),
        )  # other manager and stranded GPUs at the last poll
        self._reported: dict[str, tuple[str, ...]] = {}  # at the last collection
        self._records = _read(self._file)

    @property
    def records(self) -> Mapping[str, Record]:
        """The records, by grant."""
        return dict(self._records)

    def read(self, library: Path) -> tuple[Gpu, ...]:
        """Return the GPUs on which instances are created now; *library* is the driver's NVML.

        A GPU in MIG mode whose instances were all made by others is none of them. OSError or
        NVMLError if NVML does not start.
        """
        with self._lock:
            self._library, self._gpus, self._taken = library, {}, {}
            self._mode_off = frozenset()
            self._last_read = (self._other_manager(), frozenset())
            if not (self._wanted or self._records):
                return ()
            with nvml.session(library):
                for index in range(pynvml.nvmlDeviceGetCount()):
                    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                    uuid = str(pynvml.nvmlDeviceGetUUID(handle))
                    gpu = self._read_gpu(handle, uuid, index)
                    if gpu is not None:
                        self._gpus[uuid] = gpu
                        self._see(gpu, handle)
            self._last_read = (self._last_read[0], self.stranded)
            return tuple(self._gpus.values())

    def _read_gpu(self, handle: c_void_p, uuid: str, index: int) -> Gpu | None:
        own = any(record.gpu == uuid for record in self._records.values())
        if not (own or self._wanted & {uuid, agent_settings.ALL}):
            return None
        if not nvml.is_in_mig_mode(handle):
            self._mode_off |= {uuid}
            return None
        other, _ = self._last_read
        if other:
            log.warning("pods get no new MIG instances on GPU %s: %s", uuid, other)
        if other and not own:
            return None
        profiles = gpu_instances.profiles(handle)
        if not profiles:
            return None
        there = gpu_instances.listing(handle, profiles)
        if there and not own:
            log.warning(
                "GPU %s has MIG instances that pyvgpu did not create (%s): they stay as they are, "
                "and pods get no others on it",
                uuid,
                ", ".join(instance.place for instance in there),
            )
            return None
        return Gpu(uuid, index, str(pynvml.nvmlDeviceGetName(handle)), profiles)

    @property
    def stranded(self) -> frozenset[str]:
        """The GPUs that have left MIG mode although there are records of instances on them."""
        return self._mode_off & {record.gpu for record in self._records.values()}

    @property
    def is_outdated(self) -> bool:
        """Whether GPUs must be read again: another manager, or a GPU is stranded no more."""
        return self._last_read != (self._other_manager(), self.stranded)

    def taken(self, uuid: str) -> tuple[str, ...]:
        """Return the placements on a GPU that are occupied, but by no container's instance."""
        return self._taken.get(uuid, ())

    def _see(self, gpu: Gpu, handle: c_void_p) -> None:
        live = {
            record.share.mig
            for record in self._records.values()
            if record.gpu == gpu.uuid and record.state is not InstanceState.ENDING
        }
        there = (instance.place for instance in gpu_instances.listing(handle, gpu.profiles))
        self._taken[gpu.uuid] = tuple(sorted(place for place in there if place not in live))

    def ensure(self, grant: str, share: datatypes.NodeShare) -> Record:
        """Return the instance of a grant, created if it does not exist; idempotent.

        UnavailableError if the driver refuses, or the place is taken.
        """
        with self._lock, self._open(share.uuid) as (gpu, handle):
            record = self._records.get(grant)
            if record is not None and record.state is InstanceState.ENDING:
                raise errors.UnavailableError(f"grant {grant}: its MIG instance is being ended")
            there = _at(gpu, handle, share.mig)
            if record is not None and record.boot != self._boot:
                record = None  # its instance is gone
            if there is not None and (record is None or not _is_ours(record, there)):
                raise _occupied(gpu, share.mig)
            if record is None:
                if other := self._other_manager():
                    raise errors.UnavailableError(
                        f"GPU {gpu.uuid}: gets no new MIG instance: {other}"
                    )
                record = Record(grant, gpu.uuid, share, self._boot)
                self._put(record)
            return self._complete(gpu, handle, record, there)

    def _complete(
        self,
        gpu: Gpu,
        handle: c_void_p,
        record: Record,
        there: gpu_instances.GpuInstance | None,
    ) -> Record:
        """Create what is missing of an instance, and record it."""
        name, start = mig_placement.split(record.share.mig)
        profile = gpu.profile(name)
        made = False
        if there is None:
            gpu_instances.create(handle, profile, start)
            there, made = _at(gpu, handle, record.share.mig), True
            if there is None:
                raise errors.UnavailableError(
                    f"GPU {gpu.uuid}: NVML created {record.share.mig}, but does not list it"
                )
        try:
            device = (
                there.devices[0]
                if there.devices
                else gpu_instances.complete(handle, there.id, profile)
            )
        except (errors.UnavailableError, pynvml.NVMLError):
            if made:  # half an instance is of no use
                with contextlib.suppress(pynvml.NVMLError):
                    gpu_instances.destroy(handle, there.id)
            raise
        ready = dataclasses.replace(
            record,
            state=InstanceState.READY,
            uuid=device.uuid,
            gpu_instance=there.id,
            compute_instance=device.id,
        )
        if ready != record:
            self._put(ready)
            log.info(
                "created MIG instance %s on GPU %s for %s: %s",
                record.share.mig,
                gpu.uuid,
                record.grant,
                device.uuid,
            )
        return ready

    def release(self, grant: str) -> None:
        """Destroy the instance of a grant, if it has one; later, if a process still uses it."""
        with self._lock:
            record = self._records.get(grant)
            if record is None:
                return
            if record.state is not InstanceState.ENDING:
                record = dataclasses.replace(record, state=InstanceState.ENDING)
                self._put(record)
            self._destroy(record)

    def collect(self, wanted: Callable[[], Collection[str]]) -> bool:
        """Destroy instances of grants that are not *wanted*.

        Returns whether other placements are taken than after the last time, or it is outdated.
        """
        with self._lock:
            known = list(self._records)
        if known:
            live = wanted()
            for grant in known:
                if grant not in live:
                    self.release(grant)
        with self._lock:
            for uuid in list(self._gpus):
                with contextlib.suppress(errors.UnavailableError), self._open(uuid):
                    self._measure(uuid)
            before, self._reported = self._reported, dict(self._taken)
            return self._reported != before or self.is_outdated

    @property
    def used_bytes(self) -> Mapping[str, int]:
        """The memory in use of each instance at the last collection, by GPU/placement."""
        return self._used

    def _measure(self, uuid: str) -> None:
        for record in self._records.values():
            if record.gpu == uuid and record.state is InstanceState.READY:
                with contextlib.suppress(pynvml.NVMLError):
                    self._used = {**self._used, record.share.target: nvml.used_bytes(record.uuid)}

    def _destroy(self, record: Record) -> None:
        if record.boot != self._boot or record.gpu in self._mode_off:  # its instance is gone
            self._drop(record)
            return
        try:
            with self._open(record.gpu) as (gpu, handle):
                there = _at(gpu, handle, record.share.mig)
                if there is not None and _is_ours(record, there):
                    for device in there.devices:
                        gpu_instances.destroy_device(handle, there.id, device.id)
                    gpu_instances.destroy(handle, there.id)
                self._drop(record)
        except errors.UnavailableError as exc:
            log.debug("MIG instance %s on GPU %s stays: %s", record.share.mig, record.gpu, exc)

    @contextlib.contextmanager
    def _open(self, uuid: str) -> Iterator[tuple[Gpu, c_void_p]]:
        """Yield a GPU and its handle in a session; UnavailableError for NVML's errors inside."""
        gpu = self._gpus.get(uuid)
        if gpu is None or self._library is None:
            raise errors.UnavailableError(f"GPU {uuid}: is not in MIG mode, or is gone")
        try:
            with nvml.session(self._library):
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                try:
                    yield gpu, handle
                finally:
                    with contextlib.suppress(pynvml.NVMLError):
                        self._see(gpu, handle)
        except (OSError, pynvml.NVMLError) as exc:
            raise errors.UnavailableError(f"MIG on GPU {uuid}: {exc}") from exc

    def _put(self, record: Record) -> None:
        self._write({**self._records, record.grant: record})

    def _drop(self, record: Record) -> None:
        self._write({k: one for k, one in self._records.items() if k != record.grant})
        self._used = {k: size for k, size in self._used.items() if k != record.share.target}
        log.info("ended MIG instance %s on GPU %s", record.share.mig, record.gpu)

    def _write(self, records: dict[str, Record]) -> None:
        document = {"v": _VERSION, "instances": [_dump(one) for one in records.values()]}
        try:
            atomic_files.write(self._file, json.dumps(document).encode(), mode=0o600)
        except OSError as exc:
            raise errors.of_files(f"{self._file}: cannot be written", exc) from exc
        self._records = records


def _is_ours(record: Record, there: gpu_instances.GpuInstance) -> bool:
    """Return whether the instance at a record's place is that of the record.

    While it is being created, the place was free when the record was written. One whose compute
    instance is gone is half destroyed.
    """
    if not record.uuid:
        return len(there.devices) <= 1
    if not there.devices:
        return there.id == record.gpu_instance
    return [device.uuid for device in there.devices] == [record.uuid]


def _at(gpu: Gpu, handle: c_void_p, place: str) -> gpu_instances.GpuInstance | None:
    for instance in gpu_instances.listing(handle, gpu.profiles):
        if instance.place == place:
            return instance
    return None


def _occupied(gpu: Gpu, place: str) -> errors.UnavailableError:
    return errors.UnavailableError(
        f"GPU {gpu.uuid}: {place} is occupied by a MIG instance that pyvgpu did not create for "
        "this container"
    )


def _read_boot() -> str:
    return _BOOT.read_text(encoding="ascii").strip()


def _dump(record: Record) -> dict[str, Any]:
    return {
        "grant": record.grant,
        "gpu": record.gpu,
        "vcore": record.share.vcore,
        "bytes": record.share.vmemory,
        "place": record.share.mig,
        "boot": record.boot,
        "state": record.state.value,
        "uuid": record.uuid,
        "gi": record.gpu_instance,
        "ci": record.compute_instance,
    }


def _read(file: Path) -> dict[str, Record]:
    try:
        document = json.loads(file.read_bytes())
        if document["v"] != _VERSION:
            raise ValueError(f"version {document['v']}")
        return {record.grant: record for record in map(_load, document["instances"])}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, errors.DataError) as exc:
        raise errors.DataError(
            f"{file}: is damaged, so it is not known which MIG instances are pyvgpu's: {exc!r}; "
            "after a reboot, or once `nvidia-smi mig -lgi` lists none, remove it"
        ) from exc


def _load(found: Mapping[str, Any]) -> Record:
    place = str(found["place"])
    mig_placement.split(place)
    gpu = str(found["gpu"])
    return Record(
        str(found["grant"]),
        gpu,
        datatypes.NodeShare(gpu, int(found["vcore"]), int(found["bytes"]), place),
        str(found["boot"]),
        InstanceState(found["state"]),
        str(found["uuid"]),
        int(found["gi"]),
        int(found["ci"]),
    )
