"""Both ends of the requests to suspend and resume a run, over its supervisor's socket.

A request begins the work and is answered at once; the client then asks until it has ended. So a
supervisor goes on answering `pyvgpu set` meanwhile, and a client that is killed changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, log
from pyvgpu.machine import quota_socket
from pyvgpu.run import suspend_operation, suspender

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.machine.holders import LiveReservation

_POLL = "poll"
_PERIOD_SECONDS = 0.05


def answerer(
    worker: suspender.Suspender,
) -> Callable[[Mapping[str, Any]], Mapping[str, object]]:
    """Return the supervisor's function that answers requests for *worker*."""

    def answer(question: Mapping[str, Any]) -> Mapping[str, object]:
        if question[quota_socket.SUSPENSION] != _POLL:
            worker.begin(suspender.parse_order(question))
        busy, report = worker.poll()
        if report.error is not None:
            raise report.error
        return {"busy": busy, "text": report.text}

    return answer


def request(
    reservation: LiveReservation,
    order: suspend_operation.SuspendOrder,
    sleep: Callable[[float], None],
) -> str:
    """Send *order* to the supervisor of a run, and wait for its end: a line for the user.

    Raises the error that the supervisor reports.
    """
    question: dict[str, object] = {
        quota_socket.SUSPENSION: order.desired.value,
        "keep": order.keep,
        "host_memory": order.host_memory,
        "lock_seconds": order.lock_seconds,
    }
    while True:
        with quota_socket.Supervisor(reservation) as supervisor:
            found = supervisor.ask(question)
        if "busy" not in found:
            raise errors.UnavailableError(
                f"{reservation.name}: was started by an older pyvgpu, which cannot suspend it"
            )
        if not found["busy"]:
            return log.printable(str(found["text"]))
        question = {quota_socket.SUSPENSION: _POLL}
        sleep(_PERIOD_SECONDS)


def send(reservation: LiveReservation, order: suspend_operation.SuspendOrder) -> str:
    """Like :func:`request`, with the name of the run before the line or the error."""
    name = reservation.name
    try:
        return f"{name}: {request(reservation, order, time.sleep)}"
    except errors.PyVgpuError as exc:
        text = str(exc)
        raise type(exc)(text if text.startswith(f"{name}: ") else f"{name}: {text}") from exc
