"""Bind a pod to a node, and name its devices in the same request.

The API server copies the annotations of a Binding onto the pod, over existing ones, in the very
write that sets its node, and only if uid and resourceVersion are those of the pod that was
evaluated. So no pod is ever bound without its choice, and a choice that anyone else wrote does not
count.

Devices are reserved in the cache before the request is sent. A refusal releases them; where the
outcome is unknown, as when an answer is lost, they stay reserved until the API server says that
the pod is bound, or that this request can never bind it.
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
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyvgpu.controller.scheduler import cache
    from pyvgpu.kube.objects import Object

log = logging.getLogger(__name__)

# To connect to the API server, and as long again for the handshake; a replica that may have lost
# the lease by then sends no bind. With WRITE_SECONDS that is less than a lease lasts.
CONNECT_SECONDS = 1.5
WRITE_SECONDS = 5  # after which the API server aborts a request
LAND_SECONDS = 30.0  # after which a lost request has surely been done or aborted
MOST_WRITES = 16  # at once; more wait here, not in the API server
NEWS_SECONDS = 3.0  # for which a bind waits while watches are lost
TRIES = 3  # while other clients write to the pod, too

_POLL_SECONDS = 0.05
_GONE = 404
_CONFLICT = 409
_REFUSED = range(400, 500)  # answers after which nothing was done
_UNSURE = frozenset({408})  # except these


class NotBoundError(errors.UnavailableError):
    """A pod was not bound; kube-scheduler is to retry."""


class GoneError(NotBoundError):
    """The pod no longer exists."""


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluatedPod:
    """A pod as it was when filter evaluated it."""

    pod: pod_request.PodRequest
    version: str  # its resourceVersion
    containers: tuple[str, ...] = ()  # all, if it requests gpu-manager's resources, else none
    stale: tuple[str, ...] = ()  # gpu-manager annotations that name devices already

    @classmethod
    def of(cls, thing: Object, keys: Sequence[bytes]) -> EvaluatedPod | None:
        """Return the record of a pod; None if it requests no device of ours."""
        pod = pod_request.read(thing, keys)
        if pod is None:
            return None
        version = str(objects.section(thing, "metadata").get("resourceVersion") or "")
        listed = objects.entries(objects.section(thing, "spec"), "containers")
        if any(pod_request.is_of_gaia(container) for container in listed):
            noted = objects.section(thing, "metadata", "annotations")
            stale = tuple(key for key in noted if key.startswith(predicates.INDEX))
            return cls(
                pod,
                version,
                tuple(str(container.get("name") or "") for container in listed),
                stale,
            )
        return cls(pod, version)


class Binder:
    """Binds pods; thread-safe, with one thread at a time for each pod."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        known: cache.Cache,
        keys: Callable[[], Sequence[bytes]],
        may_send: Callable[[], bool],
        is_current: Callable[[float], bool] = lambda _: True,
    ) -> None:
        """Bind nothing yet.

        *is_current* tells whether the cache is in step with the API server, and waits up to so
        many seconds for that.
        """
        self._api = api
        self._cache = known
        self._keys = keys
        self._may_send = may_send
        self._is_current = is_current
        self._places = threading.BoundedSemaphore(MOST_WRITES)
        self._lock = threading.Lock()
        self._busy: set[str] = set()  # uids
        self._sent: dict[str, tuple[str, float]] = {}  # by uid, unanswered: version, time

    def bind(self, evaluated: EvaluatedPod, node: str) -> None:
        """Bind a pod to *node*; NotBoundError, or Refused (placement_explanation) if not fit."""
        uid = evaluated.pod.uid
        if not self._is_current(NEWS_SECONDS):
            raise NotBoundError(
                f"pod {evaluated.pod.key}: the watches of the API server are broken"
            )
        with self._alone(uid):
            if uid in self._sent and self._settle(uid, evaluated.pod.key) == node:
                return  # the request whose answer was lost was done
            for _ in range(TRIES):
                shares = self._cache.reserve(evaluated.pod, node, time.monotonic())
                try:
                    self._write(evaluated, notes.DeviceChoice(uid, node, shares))
                    return
                except apiserver.ServerError as exc:
                    again = self._refused(evaluated, node, exc)
                if again is None:
                    return
                evaluated = again
            self._cache.release(uid)
            raise NotBoundError(f"pod {evaluated.pod.key}: other clients keep changing it")

    def bind_without(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Bind a pod that requests no device; NotBoundError if that was not done."""
        try:
            self._send(f"{namespace}/{name}", {"uid": uid}, node)
        except apiserver.ServerError as exc:
            raise NotBoundError(f"pod {namespace}/{name}: {exc}") from exc

    def drain(self) -> None:
        """Wait until every request that was sent is done or can no longer be."""
        end = time.monotonic() + 2 * CONNECT_SECONDS + WRITE_SECONDS + 1
        while self._busy and time.monotonic() < end:
            time.sleep(_POLL_SECONDS)

    def resolve(self) -> int:
        """Resolve binds in doubt; return how many of their reservations were released."""
        freed = 0
        for reservation in self._cache.doubtful(time.monotonic()):
            uid = reservation.pod.uid
            try:
                with self._alone(uid):
                    if self._settle(uid, reservation.pod.key) is None:
                        freed += 1
            except NotBoundError as exc:
                log.info("bind of pod %s has no known result yet: %s", reservation.pod.key, exc)
        return freed

    def find(self, key: str, uid: str) -> Object:
        """Return a pod as the API server has it now.

        GoneError if it does not have this one, NotBoundError if it does not answer.
        """
        try:
            thing = self._api.call("GET", path_of(key), seconds=WRITE_SECONDS)
        except apiserver.ServerError as exc:
            kind = GoneError if exc.status == _GONE else NotBoundError
            raise kind(f"pod {key}: {exc}") from exc
        if objects.section(thing, "metadata").get("uid") != uid:
            raise GoneError(f"pod {key}: another pod has this name now")
        return thing

    def _evaluate(self, key: str, uid: str) -> EvaluatedPod | None:
        """Return a pod as it is now; None if it is gone."""
        try:
            return EvaluatedPod.of(self.find(key, uid), self._keys())
        except GoneError:
            return None

    def _write(self, evaluated: EvaluatedPod, choice: notes.DeviceChoice) -> None:
        pod = evaluated.pod
        sealed = notes.seal(choice, self._keys()[0])
        noted = {names.DEVICES_ANNOTATION: sealed}
        if evaluated.containers:
            when = predicates.now(time.time())
            minors = self._cache.minors(choice.node)
            noted |= dict.fromkeys(evaluated.stale, "")  # a Binding cannot remove annotations
            noted |= predicates.notes(
                evaluated.containers, choice.containers, choice.node, minors, when
            )
            noted[predicates.ASSIGNED] = "false"  # the agent says when it is
        metadata: dict[str, object] = {"uid": pod.uid, "annotations": noted}
        if evaluated.version:
            metadata["resourceVersion"] = evaluated.version
        with self._places:
            if not (self._may_send() and self._is_current(0.0)):  # the wait may have been long
                self._cache.release(pod.uid)
                raise NotBoundError("another replica is the leader now, or a watch is broken")
            self._sent[pod.uid] = evaluated.version, time.monotonic()
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

    def _refused(
        self, evaluated: EvaluatedPod, node: str, exc: apiserver.ServerError
    ) -> EvaluatedPod | None:
        """Return the pod as it is now if a retry makes sense, None if it is bound as wanted.

        NotBoundError if neither.
        """
        pod = evaluated.pod
        if exc.status not in _REFUSED or exc.status in _UNSURE:
            raise NotBoundError(f"pod {pod.key}: unknown whether it was bound: {exc}")
        del self._sent[pod.uid]
        if exc.status != _CONFLICT:
            self._cache.release(pod.uid)
            raise NotBoundError(f"pod {pod.key}: {exc}") from exc
        try:
            now = self._evaluate(pod.key, pod.uid)
        except NotBoundError:
            self._cache.release(pod.uid)  # whatever its state, this request did not bind it
            raise
        if now is not None:
            if now.pod.node == node and now.pod.held is not None:
                return None  # an earlier request of ours was done after all
            if now.pod.waits and now.pod.shape == pod.shape and now.version != evaluated.version:
                return now
        self._cache.release(pod.uid)
        raise NotBoundError(f"pod {pod.key}: {exc}") from exc

    def _settle(self, uid: str, key: str) -> str | None:
        """Return the node of a pod whose bind is in doubt, None if it has none: devices released.

        NotBoundError while that is unknown.
        """
        version, since = self._sent.get(uid, ("", 0.0))
        now = self._evaluate(key, uid)
        if now is not None:
            if now.pod.node:
                self._sent.pop(uid, None)  # the watch will deliver it, too
                return now.pod.node
            # Once the version has changed, the API server refuses the request when it arrives.
            if now.version == version and time.monotonic() < since + LAND_SECONDS:
                raise NotBoundError(f"pod {key}: not known yet whether it was bound")
        self._cache.release(uid)
        self._sent.pop(uid, None)
        return None

    @contextlib.contextmanager
    def _alone(self, uid: str) -> Iterator[None]:
        with self._lock:
            if uid in self._busy:
                raise NotBoundError("it is being bound already")
            self._busy.add(uid)
        try:
            yield
        finally:
            with self._lock:
                self._busy.discard(uid)


def path_of(key: str) -> str:
    """Return the URL path of the pod namespace/name."""
    namespace, _, name = key.partition("/")
    return f"/api/v1/namespaces/{namespace}/pods/{name}"
