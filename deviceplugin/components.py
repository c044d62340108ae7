"""Run the components of the agent, each on a thread of its own."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


def nothing() -> None:
    """Do nothing: the stop function of a component that uses :meth:`Components.wait`."""


class Components:
    """Components that run concurrently; if one returns or fails, all end."""

    def __init__(self) -> None:
        self._components: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._ended = threading.Event()
        self._failure: errors.PyVgpuError | None = None

    def add(self, name: str, run: Callable[[], None], stop: Callable[[], None] = nothing) -> None:
        """Add a component; *stop* is called once, to make *run* return."""
        self._components[name] = (run, stop)

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Sleep until *seconds* have passed or all are to end; whether they are to end."""
        return self._ended.wait(seconds)

    def run(self) -> None:
        """Run all components until :meth:`stop`, or until one ends; raise its failure, if any."""
        threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name)
            for name, (run, _) in self._components.items()
        ]
        for thread in threads:
            thread.start()
        self._ended.wait()
        for _, stop in self._components.values():
            stop()
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except errors.PyVgpuError as exc:
            self._failure = exc
        except Exception:
            name = threading.current_thread().name
            log.exception("%s failed", name)
            self._failure = errors.PyVgpuError(f"{name} failed")
        self._ended.set()
