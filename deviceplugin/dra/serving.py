"""The sockets of a DRA driver: the one on which kubelet finds it, and the one on which it asks.

Kubelet watches a folder for sockets, and asks each who is there; so nobody registers. One that has
started finds them, too. Ours are made anew where they are gone.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.deviceplugin import counting
from pyvgpu.deviceplugin.dra import messages
from pyvgpu.rpc import server, status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from pyvgpu.deviceplugin.dra.preparing import Preparer

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two looks whether the sockets are there


class Health:
    """What kubelet is told of the devices' health; those who listen are told of changes alone."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._changed = threading.Condition()
        self._sick: dict[str, str] | None = None  # None: nothing is known yet

    def set(self, sick: Mapping[str, str]) -> None:
        """Let these be all devices, by name: why each is sick, empty if it is well."""
        with self._changed:
            if self._sick != sick:
                self._sick = dict(sick)
                self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def said(self, _request: bytes, listener: server.Listener) -> Iterator[bytes]:
        """Yield what there is to say, while anybody listens."""
        if not listener.add_callback(self._wake):
            return
        before: dict[str, str] | None = None
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: not listener.is_active() or self._sick != before  # noqa: B023
                )
                if not listener.is_active() or self._sick is None:
                    return
                before = self._sick
            yield messages.health(self._pool, before, int(time.time()))


class Sockets:
    """Both of them, from :meth:`run` until it is over; *folder* is for the one that is asked."""

    def __init__(self, registry: Path, folder: Path, preparer: Preparer, health: Health) -> None:
        self._found = registry / f"{names.DRA_DRIVER}-reg.sock"
        self._asked = folder / names.DRA_DRIVER / "dra.sock"
        self._preparer = preparer
        self._health = health
        self._servers: dict[Path, server.Server] = {}
        self.trouble = "kubelet has not asked yet which DRA drivers there are"
        self.met = False  # whether a kubelet has taken us
        self.registered: Callable[[], None] = lambda: None  # a kubelet has taken us
        self.count: counting.Count = lambda *_: None

    def run(self, wait: Callable[[float], bool]) -> None:
        """Serve until *wait* says, after some seconds, that there is no more need."""
        complaint = ""
        try:
            while True:
                try:
                    self._look()
                    complaint = ""
                except errors.UnavailableError as exc:
                    if str(exc) != complaint:
                        log.warning("cannot serve claims: %s", exc)
                    self.trouble = complaint = str(exc)
                if wait(LOOK_SECONDS):
                    return
        finally:
            self._preparer.stop()
            for path in list(self._servers):
                self._stop(path)

    def _look(self) -> None:
        for path, methods in (
            (self._asked, self._methods()),  # first: who finds the other asks there at once
            (self._found, self._registration()),
        ):
            known = self._servers.get(path)
            if known is None or not known.serves:
                self._serve(path, methods)

    def _serve(self, path: Path, methods: dict[str, server.Kind]) -> None:
        self._stop(path)
        self._servers[path] = server.listen(path, methods, folder_mode=0o750)

    def _stop(self, path: Path) -> None:
        known = self._servers.pop(path, None)
        if known is not None:
            known.stop()

    def _registration(self) -> dict[str, server.Kind]:
        def notify(request: bytes) -> bytes:
            self.trouble = messages.registered(request)
            if self.trouble:
                log.warning("kubelet does not take the DRA driver: %s", self.trouble)
            else:
                log.info("kubelet has taken the DRA driver %s", names.DRA_DRIVER)
                self.met = True
                self.registered()
            return messages.NOTHING

        endpoint = messages.info(str(self._asked))
        return {
            f"{messages.REGISTRATION}/GetInfo": server.Method(lambda _: endpoint),
            f"{messages.REGISTRATION}/NotifyRegistrationStatus": server.Method(notify),
        }

    def _methods(self) -> dict[str, server.Kind]:
        preparer = self._preparer

        def prepare(request: bytes) -> bytes:
            with counting.counted(self.count, "prepare") as call:
                found = preparer.prepare(messages.claims(request))
                call.done = not any(isinstance(it, str) for it in found.values())
                return messages.prepared(found)

        def unprepare(request: bytes) -> bytes:
            with counting.counted(self.count, "unprepare") as call:
                found = preparer.unprepare(messages.claims(request))
                call.done = not any(found.values())
                return messages.unprepared(found)

        return {
            f"{messages.SERVICE}/NodePrepareResources": _waiting(prepare),
            f"{messages.SERVICE}/NodeUnprepareResources": _waiting(unprepare),
            messages.HEALTH: server.Streaming(self._health.said),
        }


def _waiting(answer: Callable[[bytes], bytes]) -> server.Waiting:
    def call(request: bytes) -> bytes:
        try:
            return answer(request)
        except ValueError as exc:
            raise status.CallError(status.Code.INVALID_ARGUMENT, f"pyvgpu: {exc}") from exc

    return server.Waiting(call)
