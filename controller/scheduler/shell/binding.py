"""Binds a pod to a node, and says in the same request on which devices.

The API server copies the annotations of a Binding onto the pod, over whatever stands there, in
the very write that gives it its node, and only if uid and resourceVersion are those of the pod
that was judged. So there is no moment in which a pod is bound without its choice, and no choice
that anybody else has written counts.

Devices are promised in the book before the request leaves. Where it was surely refused, they are
free again; where nobody knows, as when an answer is lost, they stay promised until the API server
says that the pod is bound, or that it can never be by that request.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, names
from pyvgpu.allocator import annotations as notes
from pyvgpu.allocator import predicates
from pyvgpu.controller import objects
from pyvgpu.controller.scheduler import asks
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.scheduler import book

log = logging.getLogger(__name__)

# Until a bind is at the API server, and as long again for the handshake; who may no more lead by
# then sends none. With what follows that is less than a lease lasts.
CONNECT_SECONDS = 1.5
WRITE_SECONDS = 5  # after which the API server gives up a request, and does it no more
LAND_SECONDS = 30.0  # after which a request that was lost has surely been done or given up
MOST_WRITES = 16  # at once; the others wait here and not in the API server
NEWS_SECONDS = 3.0  # that a bind waits while watches are lost
TRIES = 3  # while somebody else writes to the pod, too

_LOOK_SECONDS = 0.05
_GONE = 404
_CONFLICT = 409
_REFUSED = range(400, 500)  # answers after which nothing was done
_UNSURE = frozenset({408})  # but for these


class NotBoundError(errors.UnavailableError):
    """A pod was not bound, and the scheduler is to try again."""


class GoneError(NotBoundError):
    """There is no such pod any more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A pod as it was when it was looked at."""

    pod: asks.Pod
    version: str  # its resourceVersion
    containers: tuple[str, ...] = ()  # all, if it asks in gpu-manager's words, else none
    stale: tuple[str, ...] = ()  # annotations in those words that name devices already

    @classmethod
    def of(cls, thing: Object, keys: Sequence[bytes]) -> Judged | None:
        """Return what is known of a pod; None if it asks for no device of ours."""
        pod = asks.read(thing, keys)
        if pod is None:
            return None
        version = str(objects.section(thing, "metadata").get("resourceVersion") or "")
        listed = objects.entries(objects.section(thing, "spec"), "containers")
        if any(asks.is_of_gaia(it) for it in listed):
            noted = objects.section(thing, "metadata", "annotations")
            stale = tuple(it for it in noted if it.startswith(predicates.INDEX))
            return cls(pod, version, tuple(str(it.get("name") or "") for it in listed), stale)
        return cls(pod, version)


class Binder:
    """Binds pods; several threads may use it, each pod is bound by one at a time."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        known: book.Book,
        keys: Callable[[], Sequence[bytes]],
        may_send: Callable[[], bool],
        is_current: Callable[[float], bool] = lambda _: True,
    ) -> None:
        """Bind nothing yet.

        *is_current* tells whether the book has what the API server has, and waits for that so
        many seconds.
        """
        self._api = api
        self._book = known
        self._keys = keys
        self._may_send = may_send
        self._is_current = is_current
        self._places = threading.BoundedSemaphore(MOST_WRITES)
        self._guard = threading.Lock()
        self._busy: set[str] = set()  # uids
        self._sent: dict[str, tuple[str, float]] = {}  # by uid: version and time of what is lost

    def bind(self, judged: Judged, node: str) -> None:
        """Bind a pod to *node*; NotBoundError, or why it has no place, where that was not done."""
        uid = judged.pod.uid
        if not self._is_current(NEWS_SECONDS):
            raise NotBoundError(f"pod {judged.pod.key}: it is unknown now what the API server has")
        with self._alone(uid):
            if uid in self._sent and self._settle(uid, judged.pod.key) == node:
                return  # what was lost has arrived
            for _ in range(TRIES):
                shares = self._book.reserve(judged.pod, node, time.monotonic())
                try:
                    self._write(judged, notes.Choice(uid, node, shares))
                    return
                except apiserver.ServerError as exc:
                    again = self._refused(judged, node, exc)
                if again is None:
                    return
                judged = again
            self._book.release(uid)
            raise NotBoundError(f"pod {judged.pod.key}: others write to it all the time")

    def bind_without(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Bind a pod that asks for no device; NotBoundError if that was not done."""
        try:
            self._send(f"{namespace}/{name}", {"uid": uid}, node)
        except apiserver.ServerError as exc:
            raise NotBoundError(f"pod {namespace}/{name}: {exc}") from exc

    def drain(self) -> None:
        """Wait until nothing of what was sent can be done any more, or was."""
        end = time.monotonic() + 2 * CONNECT_SECONDS + WRITE_SECONDS + 1
        while self._busy and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)

    def resolve(self) -> int:
        """Look after binds of which nobody knows; return how many of them are free again."""
        freed = 0
        for promise in self._book.doubtful(time.monotonic()):
            uid = promise.pod.uid
            try:
                with self._alone(uid):
                    if self._settle(uid, promise.pod.key) is None:
                        freed += 1
            except NotBoundError as exc:
                log.info("bind of pod %s is in doubt still: %s", promise.pod.key, exc)
        return freed

    def find(self, key: str, uid: str) -> Object:
        """Return a pod as the API server has it now.

        GoneError if it has not this one, NotBoundError if it does not say.
        """
        try:
            thing = self._api.call("GET", path_of(key), seconds=WRITE_SECONDS)
        except apiserver.ServerError as exc:
            kind = GoneError if exc.status == _GONE else NotBoundError
            raise kind(f"pod {key}: {exc}") from exc
        if objects.section(thing, "metadata").get("uid") != uid:
            raise GoneError(f"pod {key}: there is another one of this name by now")
        return thing

    def _judge(self, key: str, uid: str) -> Judged | None:
        """Return a pod as it is now; None if it is gone."""
        try:
            return Judged.of(self.find(key, uid), self._keys())
        except GoneError:
            return None

    def _write(self, judged: Judged, choice: notes.Choice) -> None:
        pod = judged.pod
        sealed = notes.seal(choice, self._keys()[0])
        noted = {names.DEVICES_ANNOTATION: sealed}
        if judged.containers:
            when = predicates.now(time.time())
            minors = self._book.minors(choice.node)
            noted |= dict.fromkeys(judged.stale, "")  # a Binding takes none away
            noted |= predicates.notes(
                judged.containers, choice.containers, choice.node, minors, when
            )
            noted[predicates.ASSIGNED] = "false"  # the agent says when it is
        metadata: dict[str, object] = {"uid": pod.uid, "annotations": noted}
        if judged.version:
            metadata["resourceVersion"] = judged.version
        with self._places:
            if not (self._may_send() and self._is_current(0.0)):  # perhaps it was a long wait
                self._book.release(pod.uid)
                raise NotBoundError("another leads by now, or news are missing")
            self._sent[pod.uid] = judged.version, time.monotonic()
            self._send(pod.key, metadata, choice.node)
        del self._sent[pod.uid]

    def _send(self, key: str, metadata: Mapping[str, object], node: str) -> None:
        namespace, _, name = key.partition("/")
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": namespace, "name": name, **metadata},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        limit = {"timeout": f"{WRITE_SECONDS}s"}
        path = f"{path_of(key)}/binding"
        self._api.call(
            "POST", path, limit, body, seconds=WRITE_SECONDS + 1, connect=CONNECT_SECONDS
        )

    def _refused(self, judged: Judged, node: str, exc: apiserver.ServerError) -> Judged | None:
        """Return the pod as it is now if it may be tried again, None if it is bound as wanted.

        NotBoundError if neither.
        """
        pod = judged.pod
        if exc.status not in _REFUSED or exc.status in _UNSURE:
            raise NotBoundError(f"pod {pod.key}: it is not known whether it was bound: {exc}")
        del self._sent[pod.uid]
        if exc.status != _CONFLICT:
            self._book.release(pod.uid)
            raise NotBoundError(f"pod {pod.key}: {exc}") from exc
        try:
            now = self._judge(pod.key, pod.uid)
        except NotBoundError:
            self._book.release(pod.uid)  # whatever it is now, it was not bound by this
            raise
        if now is not None:
            if now.pod.node == node and now.pod.held is not None:
                return None  # an earlier request of ours was done after all
            if now.pod.waits and now.pod.shape == pod.shape and now.version != judged.version:
                return now
        self._book.release(pod.uid)
        raise NotBoundError(f"pod {pod.key}: {exc}") from exc

    def _settle(self, uid: str, key: str) -> str | None:
        """Return where a pod is whose bind was lost, None if it is nowhere and its devices free.

        NotBoundError while that is open.
        """
        version, since = self._sent.get(uid, ("", 0.0))
        now = self._judge(key, uid)
        if now is not None:
            if now.pod.node:
                self._sent.pop(uid, None)  # the watch will say so, too
                return now.pod.node
            # A request for another version than this is refused whenever it arrives.
            if now.version == version and time.monotonic() < since + LAND_SECONDS:
                raise NotBoundError(f"pod {key}: it is not known yet whether it was bound")
        self._book.release(uid)
        self._sent.pop(uid, None)
        return None

    @contextlib.contextmanager
    def _alone(self, uid: str) -> Iterator[None]:
        with self._guard:
            if uid in self._busy:
                raise NotBoundError("it is being bound already")
            self._busy.add(uid)
        try:
            yield
        finally:
            with self._guard:
                self._busy.discard(uid)


def path_of(key: str) -> str:
    """Return where the pod called namespace/name is, in a URL."""
    namespace, _, name = key.partition("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
