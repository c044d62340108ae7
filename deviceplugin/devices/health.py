"""Health checks of the devices: NVML's Xid events, and a periodic probe of each device.

An Xid is an error that the kernel driver reports for a device. Some are a program's own fault (a
bad address in a kernel) and are ignored. Any other makes the device unhealthy, as does a probe
without an answer, and MIG mode of a GPU that is taken for a whole one: its MIG devices are devices
of their own. NVML reports the Xids of a MIG device for its GPU, with the instances that they
concern; one without instances concerns all MIG devices of the GPU. A device is healthy again after
some time without errors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

import pynvml

from pyvgpu import device, nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from ctypes import c_void_p
    from pathlib import Path

    from pyvgpu.deviceplugin.agent_settings import HealthRules

    Report = Callable[[Mapping[str, str]], None]  # by UUID: why unhealthy; empty: healthy

log = logging.getLogger(__name__)

NO_INSTANCE = 0xFFFFFFFF  # NVML's id for no instance in particular
GONE = "it is not there any more"
MIG_OFF = "it has left MIG mode, in which pods get instances on it"
PROBE_SECONDS = 5.0
AGAIN_SECONDS = 1.0  # between two attempts to start NVML

_NAMES = {
    48: "double-bit ECC error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "row remapping or page retirement",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "it has fallen off the bus",
    92: "many single-bit ECC errors",
    94: "contained ECC error",
    95: "uncontained ECC error",
    119: "the GSP does not answer",
    120: "GSP error",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """The health of a device."""

    reason: str = ""  # why it is unhealthy; empty: it is healthy
    troubled_at: float = 0.0  # seconds of a monotonic clock


@dataclasses.dataclass(frozen=True, slots=True)
class HealthSource:
    """The GPU that reports events of a device, and the instances that a MIG device is."""

    parent: str  # the device's own UUID, if it is no MIG device
    gpu_instance: int | None = None
    compute_instance: int | None = None

    def concerns(self, parent: str, gpu_instance: int, compute_instance: int) -> bool:
        """Return whether an event of GPU *parent* is about this device."""
        return self.parent == parent and all(
            own is None or named in (NO_INSTANCE, own)
            for named, own in (
                (gpu_instance, self.gpu_instance),
                (compute_instance, self.compute_instance),
            )
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of probing a device."""

    trouble: str = ""  # empty: none
    used_bytes: int = 0  # of its memory, by all processes
    busy: float | None = 0.0  # utilization over NVML's last sample period, 0 to 1; None: unknown
    bus_id: str = ""  # its PCI address


SILENT = ProbeResult()


def after_xid(before: Condition, xid: int, now: float, rules: HealthRules) -> Condition:
    """Return the condition of a device after the driver has reported *xid*."""
    if xid in rules.ignored_xids:
        return before
    name = _NAMES.get(xid)
    return Condition(f"Xid {xid}{f' ({name})' if name else ''}", now)


def after_probe(before: Condition, trouble: str, now: float, rules: HealthRules) -> Condition:
    """Return the condition of a device after a probe; *trouble* is empty if that succeeded."""
    if trouble:
        return Condition(trouble, now)
    if before.reason and now - before.troubled_at >= rules.recover_seconds:
        return Condition()
    return before


class HealthWatcher:
    """Watches devices from a thread of its own, and reports changes."""

    def __init__(
        self,
        library: Path,
        unhealthy: Mapping[str, str],
        rules: HealthRules,
        report: Report,
        divided: frozenset[str] = frozenset(),
    ) -> None:
        """Watch the devices *unhealthy*; *divided* are GPUs on which pods get MIG instances."""
        self._library = library
        self._divided = divided
        self._report = report
        self._rules = rules
        now = time.monotonic()
        self._conditions = {uuid: Condition(reason, now) for uuid, reason in unhealthy.items()}
        self._reported = dict(unhealthy)
        self.answers: Mapping[str, ProbeResult] = {}  # the last of each device that answered
        self._sources: Mapping[str, HealthSource] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        """Start the thread; devices unhealthy by now are reported at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Harmless if it was never started."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(PROBE_SECONDS + AGAIN_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with nvml.session(self._library):
                    self._watch()
            except (OSError, pynvml.NVMLError) as exc:
                self._probed(dict.fromkeys(self._conditions, f"NVML does not answer: {exc}"))
            self._stopped.wait(AGAIN_SECONDS)

    def _watch(self) -> None:
        """Wait for events and probe, until NVML must be restarted or :meth:`stop` is called."""
        with _events(self._conditions, self._divided) as (events, sources):
            self._sources, subscribed = sources, frozenset(sources)
            due = 0.0
            while not self._stopped.is_set():
                if time.monotonic() >= due:
                    answers = {
                        uuid: probe(uuid, divided=uuid in self._divided)
                        for uuid in self._conditions
                    }
                    back = [uuid for uuid, answer in answers.items() if not answer.trouble]
                    if not subscribed.issuperset(back):
                        return  # a device is back: subscribe to its Xids first
                    self.answers = {uuid: answers[uuid] for uuid in back}
                    self._probed({uuid: answer.trouble for uuid, answer in answers.items()})
                    due = time.monotonic() + PROBE_SECONDS
                self._take(events, max(0.0, min(AGAIN_SECONDS, due - time.monotonic())))

    def _take(self, events: c_void_p, seconds: float) -> None:
        """Wait for one event, for *seconds* at most."""
        try:
            event = pynvml.nvmlEventSetWait_v2(events, round(1000 * seconds))
        except pynvml.NVMLError as exc:
            if exc.value == pynvml.NVML_ERROR_TIMEOUT:
                return
            raise
        if event.eventType == pynvml.nvmlEventTypeXidCriticalError:
            self._heard(event)

    def _heard(self, event: pynvml.c_nvmlEventData_t) -> None:
        uuids = list(self._conditions)
        with contextlib.suppress(pynvml.NVMLError):  # else it may concern any device
            parent = pynvml.nvmlDeviceGetUUID(event.device)
            origin = parent, int(event.gpuInstanceId), int(event.computeInstanceId)
            uuids = [uuid for uuid, source in self._sources.items() if source.concerns(*origin)]
        now = time.monotonic()
        for uuid in uuids:
            if uuid in self._conditions:
                before = self._conditions[uuid]
                after = after_xid(before, int(event.eventData), now, self._rules)
                self._conditions[uuid] = after
        self._tell_news()

    def _probed(self, troubles: Mapping[str, str]) -> None:
        now = time.monotonic()
        for uuid, trouble in troubles.items():
            before = self._conditions[uuid]
            self._conditions[uuid] = after_probe(before, trouble, now, self._rules)
        self._tell_news()

    def _tell_news(self) -> None:
        news = {
            uuid: condition.reason
            for uuid, condition in self._conditions.items()
            if condition.reason != self._reported[uuid]
        }
        if not news:
            return
        self._reported |= news
        self._report(news)


def probe(uuid: str, *, divided: bool = False) -> ProbeResult:
    """Probe a device; NVMLError if NVML as a whole does not work.

    *divided*: it is a GPU in MIG mode, on which pods get instances.
    """
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        in_mig_mode = not device.is_instance(uuid) and nvml.is_in_mig_mode(handle)
        if divided and not in_mig_mode:
            return ProbeResult(MIG_OFF)
        if in_mig_mode and not divided:
            divided = any(True for _ in nvml.mig_devices(handle))
            return ProbeResult(nvml.MIG_DIVIDED if divided else nvml.MIG_MODE)
        used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        bus_id = pynvml.nvmlDeviceGetPciInfo(_gpu(uuid, handle)).busId
    except pynvml.NVMLError as exc:
        if exc.value == pynvml.NVML_ERROR_NOT_FOUND:
            return ProbeResult(GONE)
        if exc.value in (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise
        return ProbeResult(f"it does not answer: {exc}")
    text = bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
    return ProbeResult("", used, _busy(handle), text)


def _gpu(uuid: str, handle: c_void_p) -> c_void_p:
    """Return the handle of a device, of a MIG device that of its GPU."""
    if device.is_instance(uuid):
        return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)  # type: ignore[no-any-return]
    return handle


def _busy(handle: c_void_p) -> float | None:
    with contextlib.suppress(pynvml.NVMLError):  # not supported by some devices, nor with MIG
        return float(min(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, 100)) / 100
    return None


@contextlib.contextmanager
def _events(
    uuids: Iterable[str], divided: frozenset[str]
) -> Iterator[tuple[c_void_p, Mapping[str, HealthSource]]]:
    """Yield an NVML event set for Xids, and the devices that are subscribed, with their sources.

    A device that does not support events counts as subscribed, since it never will be.
    """
    events = pynvml.nvmlEventSetCreate()
    subscribed: dict[str, HealthSource] = {}
    try:
        for uuid in uuids:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                # What concerns one instance leaves the others of its GPU healthy.
                source = (
                    HealthSource(uuid, NO_INSTANCE, NO_INSTANCE)
                    if uuid in divided
                    else _source(uuid, handle)
                )
                pynvml.nvmlDeviceRegisterEvents(
                    _gpu(uuid, handle), pynvml.nvmlEventTypeXidCriticalError, events
                )
            except pynvml.NVMLError as exc:
                log.warning("could not subscribe to the Xids of device %s: %s", uuid, exc)
                if exc.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
                    continue
                source = HealthSource(uuid)
            subscribed[uuid] = source
        yield events, subscribed
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(events)


def _source(uuid: str, handle: c_void_p) -> HealthSource:
    if not device.is_instance(uuid):
        return HealthSource(uuid)
    return HealthSource(
        pynvml.nvmlDeviceGetUUID(_gpu(uuid, handle)),
        nvml.number(pynvml.nvmlDeviceGetGpuInstanceId(handle)),
        nvml.number(pynvml.nvmlDeviceGetComputeInstanceId(handle)),
    )
