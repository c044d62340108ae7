"""Which devices are well: by NVML's events, and by asking each of them now and then.

An Xid is what the kernel's driver says of a device. Some are a program's own fault (a wrong
address in a kernel): these say nothing of the device. All others make it sick, and so does a
device that does not answer, or is in MIG mode: its instances are not ours to give. It is well
again when it was quiet and answered for some time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

import pynvml

from pyvgpu import nvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from ctypes import c_void_p
    from pathlib import Path

    Tell = Callable[[Mapping[str, str]], None]  # why each device is sick, by UUID; or nothing

log = logging.getLogger(__name__)

# Application errors, as NVIDIA's list of Xids has them: exceptions in a kernel, wrong addresses,
# a program that was stopped, preemption, a video engine's program, a context's time.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
PROBE_SECONDS = 5.0
AGAIN_SECONDS = 1.0  # from one try to speak with NVML to the next

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
class Rules:
    """What makes a device sick, and well again."""

    ignored_xids: frozenset[int] = APPLICATION_XIDS
    recover_seconds: float = 60.0  # without any trouble


@dataclasses.dataclass(frozen=True, slots=True)
class Condition:
    """How a device is."""

    reason: str = ""  # why it is sick; empty: it is well
    troubled_at: float = 0.0  # seconds of a clock that never goes back


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What a device says of itself when it is asked."""

    trouble: str = ""  # empty: it answers well
    used_bytes: int = 0  # of its memory, by whomever
    busy: float = 0.0  # part of the last moment in which it worked; 0 where that is not told
    bus_id: str = ""  # its PCI address


SILENT = Answer()


def after_xid(before: Condition, xid: int, now: float, rules: Rules) -> Condition:
    """Return how a device is after the driver has said *xid* of it."""
    if xid in rules.ignored_xids:
        return before
    name = _NAMES.get(xid)
    return Condition(f"Xid {xid}{f' ({name})' if name else ''}", now)


def after_probe(before: Condition, trouble: str, now: float, rules: Rules) -> Condition:
    """Return how a device is after it was asked, and *trouble* if it did not answer well."""
    if trouble:
        return Condition(trouble, now)
    if before.reason and now - before.troubled_at >= rules.recover_seconds:
        return Condition()
    return before


class Watcher:
    """Watches devices from a thread of its own, and tells what has changed."""

    def __init__(self, library: Path, sick: Mapping[str, str], rules: Rules, tell: Tell) -> None:
        self._library = library
        self._tell = tell
        self._rules = rules
        now = time.monotonic()
        self._conditions = {uuid: Condition(reason, now) for uuid, reason in sick.items()}
        self._told = dict(sick)
        self.answers: Mapping[str, Answer] = {}  # the last of each device that answered
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        """Begin to watch; what is sick already is told at once."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more. Harmless if it was never started."""
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
        """Wait for events and probe, until that must begin anew or there is no more need."""
        with _events(self._conditions) as (events, heard):
            due = 0.0
            while not self._stopped.is_set():
                if time.monotonic() >= due:
                    answers = {uuid: probe(uuid) for uuid in self._conditions}
                    back = [uuid for uuid, it in answers.items() if not it.trouble]
                    if not heard.issuperset(back):
                        return  # one is back: first its Xids must be asked for
                    self.answers = {uuid: answers[uuid] for uuid in back}
                    self._probed({uuid: it.trouble for uuid, it in answers.items()})
                    due = time.monotonic() + PROBE_SECONDS
                self._take(events, max(0.0, min(AGAIN_SECONDS, due - time.monotonic())))

    def _take(self, events: c_void_p, seconds: float) -> None:
        """Wait for one event for some time."""
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
        with contextlib.suppress(pynvml.NVMLError):  # else it may be of any device
            uuids = [pynvml.nvmlDeviceGetUUID(event.device)]
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
            if condition.reason != self._told[uuid]
        }
        if not news:
            return
        self._told |= news
        self._tell(news)


def probe(uuid: str) -> Answer:
    """Ask a device how it is; NVMLError if the driver cannot be asked at all."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        if nvml.is_in_mig_mode(handle):
            return Answer(nvml.MIG_MODE)
        used = int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        bus_id = pynvml.nvmlDeviceGetPciInfo(handle).busId
    except pynvml.NVMLError as exc:
        if exc.value == pynvml.NVML_ERROR_NOT_FOUND:
            return Answer("it is not there any more")
        if exc.value in (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            raise
        return Answer(f"it does not answer: {exc}")
    text = bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
    return Answer("", used, _busy(handle), text)


def _busy(handle: c_void_p) -> float:
    with contextlib.suppress(pynvml.NVMLError):  # some devices do not tell
        return float(min(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, 100)) / 100
    return 0.0


@contextlib.contextmanager
def _events(uuids: Iterable[str]) -> Iterator[tuple[c_void_p, frozenset[str]]]:
    """Give a set in which the Xids of devices arrive, and of which devices they do.

    Of a device that has no events they never do, and that is not to be waited for.
    """
    events = pynvml.nvmlEventSetCreate()
    heard = set()
    try:
        for uuid in uuids:
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, events
                )
            except pynvml.NVMLError as exc:
                log.warning("could not ask for the Xids of device %s: %s", uuid, exc)
                if exc.value != pynvml.NVML_ERROR_NOT_SUPPORTED:
                    continue
            heard.add(uuid)
        yield events, frozenset(heard)
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(events)
