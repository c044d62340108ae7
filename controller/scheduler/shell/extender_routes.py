"""HTTP routes of the scheduler extender, answered only by the leader.

Any other replica answers with a status that kube-scheduler treats as a failure, so it retries the
pod. An invalid request is refused with one line that says what a valid one looks like.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.http import replies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.controller.scheduler.shell import session

log = logging.getLogger(__name__)

PREFIX = "/scheduler"
VERBS = ("filter", "prioritize", "bind", "preempt", "predicates")  # the last is gpu-manager's
QUICK = tuple(f"{PREFIX}/{verb}" for verb in ("filter", "prioritize"))  # answered from memory
MOST_CONNECTIONS = 1024  # of which most may be binds that wait for a gang
MOST_BYTES = 32 << 20  # 5,000 whole nodes have 24 MB; for more, send names alone


class ExtenderRoutes:
    """Passes requests to the current term."""

    def __init__(self, failed: Callable[[], None]) -> None:
        """Refuse all requests yet; *failed* is called for each internal error."""
        self._failed = failed
        self._term: session.Term | None = None

    def begin(self, now: session.Term | None) -> None:
        """Let *now* answer from now on; None: refuse all requests."""
        self._term = now

    @property
    def term(self) -> session.Term | None:
        """Return the term that answers; None if this process does not lead."""
        return self._term

    @property
    def routes(self) -> Mapping[str, replies.Route]:
        """Return the route of each path."""
        return {f"{PREFIX}/{verb}": functools.partial(self._answer, verb) for verb in VERBS}

    def _answer(self, verb: str, content: bytes) -> replies.Reply:
        now = self._term
        if now is None or not now.ready:
            return replies.Reply(b"another replica leads, or none yet", "not leading", 503)
        try:
            return now.verbs[verb](content)
        except errors.DataError as exc:
            return replies.Reply(str(exc).encode(), "bad request", 400)
        except Exception:
            log.exception("failed on %s", verb)
            self._failed()
            return replies.Reply(b"internal error, see the log", "failed", 500)
