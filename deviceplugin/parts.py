"""The parts of the agent, each in a thread of its own, until all of them shall end."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)


def nothing() -> None:
    """Do nothing, as what stops a part that looks at :meth:`Parts.wait`."""


class Parts:
    """What runs side by side; where one fails, all end, and the agent is started again."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {}
        self._ended = threading.Event()
        self._failure: errors.PyVgpuError | None = None

    def add(self, name: str, run: Callable[[], None], stop: Callable[[], None] = nothing) -> None:
        """Let *run* run, too; *stop* is called once when it shall be back."""
        self._parts[name] = (run, stop)

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Sleep, not beyond the end; whether that has come."""
        return self._ended.wait(seconds)

    def run(self) -> None:
        """Run all of them until they shall end; raise what one of them failed with."""
        threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name)
            for name, (run, _) in self._parts.items()
        ]
        for thread in threads:
            thread.start()
        self._ended.wait()
        for _, stop in self._parts.values():
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
