"""Prometheus metrics of this machine's runs, for `pyvgpu top --serve`: name and help of each.

The series of a run exist from its reservation until its end. They contain no command lines: every
user who can connect reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyvgpu
from pyvgpu import quantity
from pyvgpu.http import metric_text
from pyvgpu.http.metric_text import MetricText
from pyvgpu.machine import users

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyvgpu.machine.move_record import MoveRecord
    from pyvgpu.run.runs import DeviceView, RunShare

RUN_LABELS = ("user", "run", "uuid")
DEVICE_LABELS = ("uuid", "model")


def _of_moves(read: Callable[[MoveRecord], float]) -> Callable[[RunShare], float | None]:
    """Return a reader of a run's record of moves; None: it cannot be read, there is no sample."""
    return lambda part: None if part.moves is None else read(part.moves)


RUN: tuple[tuple[MetricText, Callable[[RunShare], float | None]], ...] = (
    (
        MetricText(
            "pyvgpu_run_vcore_reserved_ratio", "Fraction of a device's time that is reserved."
        ),
        lambda part: part.reserved_vcore / quantity.WHOLE_DEVICE,
    ),
    (
        MetricText(
            "pyvgpu_run_vcore_limit_ratio",
            "Fraction of a device's time that a run may use while others are idle, 0 to 1.",
        ),
        lambda part: part.limits.vcore_limit / quantity.WHOLE_DEVICE,
    ),
    (
        MetricText(
            "pyvgpu_run_busy_seconds_total",
            "Device time that a run has used; not counted for a run without a limit of time.",
        ),
        lambda part: part.busy_seconds,
    ),
    (
        MetricText(
            "pyvgpu_run_throttled_seconds_total",
            "Total time for which launches of a run were throttled.",
        ),
        lambda part: part.throttled_seconds,
    ),
    (
        MetricText("pyvgpu_run_memory_limit_bytes", "Device memory that a run may hold."),
        lambda part: part.limits.vmemory,
    ),
    (
        MetricText(
            "pyvgpu_run_memory_reserved_bytes",
            "Device memory that is reserved for a run; 0 while its reservation is released.",
        ),
        lambda part: part.reserved,
    ),
    (
        MetricText(
            "pyvgpu_run_memory_used_bytes",
            "Device memory that a run holds; 0 while it is suspended.",
        ),
        lambda part: part.held,
    ),
    (
        MetricText(
            "pyvgpu_run_memory_host_bytes",
            "Device memory of a run that is in host memory while it is suspended.",
        ),
        lambda part: part.host,
    ),
    (
        MetricText(
            "pyvgpu_run_memory_host_limit_bytes",
            "Host memory of all suspended runs beyond which oversubscription suspends no run "
            "(--host-memory); no series without such a bound.",
        ),
        lambda part: None if part.record is None else part.record.host_memory,
    ),
    (
        MetricText(
            "pyvgpu_run_refused_allocations_total",
            "Allocations of a run that were refused because they exceeded its quota.",
        ),
        lambda part: part.refused,
    ),
    (
        MetricText("pyvgpu_run_processes", "Processes of a run that use its device."),
        lambda part: len(part.processes),
    ),
    (
        MetricText(
            "pyvgpu_run_suspended",
            "1 while a run is suspended, or waits for room to start.",
        ),
        lambda part: part.suspension.suspended,
    ),
    (
        MetricText(
            "pyvgpu_run_waiting_seconds",
            "For how long an oversubscribed run has waited for room to work; 0: it does not wait.",
        ),
        lambda part: part.waiting,
    ),
    (
        MetricText(
            "pyvgpu_run_suspensions_total",
            "Suspensions of a run, by commands and by oversubscription.",
        ),
        _of_moves(lambda moves: moves.suspensions),
    ),
    (
        MetricText("pyvgpu_run_resumptions_total", "Resumptions of a run, likewise."),
        _of_moves(lambda moves: moves.resumptions),
    ),
    (
        MetricText(
            "pyvgpu_run_refused_moves_total",
            "Suspensions and resumptions of a run that were refused or taken back.",
        ),
        _of_moves(lambda moves: moves.refused_moves),
    ),
    (
        MetricText(
            "pyvgpu_run_moved_to_host_bytes_total",
            "Memory of a run that suspensions have moved from the device to the host.",
        ),
        _of_moves(lambda moves: moves.to_host_bytes),
    ),
    (
        MetricText(
            "pyvgpu_run_moved_to_device_bytes_total",
            "Memory of a run that resumptions have moved from the host to the device.",
        ),
        _of_moves(lambda moves: moves.to_device_bytes),
    ),
    (
        MetricText(
            "pyvgpu_run_suspended_seconds_total",
            "Total time for which a run has been suspended since it started.",
        ),
        lambda part: None if part.moves is None else part.suspended_seconds,
    ),
)

DEVICE: tuple[tuple[MetricText, Callable[[DeviceView], float | None]], ...] = (
    (
        MetricText("pyvgpu_machine_device_memory_bytes", "Total memory of a device with runs."),
        lambda device: device.memory_bytes,
    ),
    (
        MetricText(
            "pyvgpu_machine_device_memory_reserved_bytes",
            "Device memory that is reserved for runs.",
        ),
        lambda device: device.reserved_bytes,
    ),
    (
        MetricText(
            "pyvgpu_machine_device_memory_used_bytes", "Device memory that runs of a device hold."
        ),
        lambda device: device.held,
    ),
    (
        MetricText(
            "pyvgpu_machine_device_vcore_reserved_ratio",
            "Fraction of a device's time that is reserved for runs.",
        ),
        lambda device: device.reserved_vcore / quantity.WHOLE_DEVICE,
    ),
    (
        MetricText(
            "pyvgpu_machine_device_moves_per_minute_limit",
            "Most suspensions and resumptions per minute by oversubscription: the lowest --moves "
            "of a device's runs; no series without oversubscribed runs.",
        ),
        lambda device: min(
            (part.record.rules.moves_per_minute for part in device.parts if part.record),
            default=None,
        ),
    ),
)

BUILD = MetricText("pyvgpu_build_info", "Version of pyvgpu, as a label; always 1.")


def text(devices: Sequence[DeviceView]) -> bytes:
    """Return the metrics of one sample in Prometheus' text format."""
    return "".join(_families(devices)).encode()


def _families(devices: Sequence[DeviceView]) -> Iterator[str]:
    parts = [
        (metric_text.labels(RUN_LABELS, (users.name(part.uid), part.name, device.uuid)), part)
        for device in devices
        for part in device.parts
    ]
    for figure, read in RUN:
        values = [(label, read(part)) for label, part in parts]
        yield metric_text.of_figure(
            figure, ((x, value) for x, value in values if value is not None)
        )
    whole = [
        (metric_text.labels(DEVICE_LABELS, (device.uuid, device.name)), device)
        for device in devices
    ]
    for shown, value_of in DEVICE:
        found = [(label, value_of(device)) for label, device in whole]
        yield metric_text.of_figure(shown, ((x, value) for x, value in found if value is not None))
    label = metric_text.labels(("version",), (pyvgpu.__version__,))
    yield metric_text.of_figure(BUILD, [(label, 1)])
