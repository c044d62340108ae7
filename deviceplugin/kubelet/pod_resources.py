"""Client of kubelet's PodResources API: the pods on this node and the ids of their containers.

Kubelet answers a hundred calls a second, ten at once, and refuses more. So one call serves all
waiting callers: each gets the answer of a call that began after its own request. The answer has an
entry for each id, tens of thousands on a full node, in an order of its own in each answer: so the
ids of a pod are read only where they are needed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import threading
import time
from typing import TYPE_CHECKING

import grpc
from google.protobuf import message

from pyvgpu import errors
from pyvgpu._api import pod_resources_pb2 as api
from pyvgpu._api import pod_resources_pb2_grpc as api_grpc
from pyvgpu.deviceplugin import grpc_socket
from pyvgpu.deviceplugin.kubelet import device_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SECONDS = 5.0  # for one call
RETRY_SECONDS = 10.0  # for retries: less than the 30 s that kubelet waits for the plugin

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_PASSING = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
_MOST_BYTES = 64 << 20  # of an answer


class UnansweredError(errors.UnavailableError):
    """Kubelet did not answer PodResources."""


class ListedPod:
    """A pod as kubelet lists it; DecodeError if *content* is not a PodResources message."""

    def __init__(self, content: bytes, kinds: Mapping[str, device_ids.ResourceKind]) -> None:
        read = api.PodResources.FromString(content)
        self.name = read.name
        self.namespace = read.namespace
        self._content, self._kinds = content, kinds  # smaller than the message

    @functools.cached_property
    def containers(self) -> Mapping[str, Mapping[device_ids.ResourceKind, frozenset[str]]]:
        """The ids of its containers, without ordinary init containers."""
        read = api.PodResources.FromString(self._content)
        return {container.name: _held(container, self._kinds) for container in read.containers}

    @functools.cached_property
    def everything(self) -> frozenset[str]:
        """All ids of the pod, of every kind."""
        given = (own for held in self.containers.values() for own in held.values())
        return frozenset[str]().union(*given)


def _held(
    container: api.ContainerResources, kinds: Mapping[str, device_ids.ResourceKind]
) -> dict[device_ids.ResourceKind, frozenset[str]]:
    # By resource, since to hash a kind takes long.
    named: dict[str, list[str]] = collections.defaultdict(list)
    for devices in container.devices:  # usually many, with one id each
        named[devices.resource_name] += devices.device_ids
    found: dict[device_ids.ResourceKind, frozenset[str]] = {}
    for name, own in named.items():
        if name in kinds:
            found[kinds[name]] = found.get(kinds[name], frozenset()).union(own)
    return found


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """One run of kubelet, from its start to its end, identified by its socket."""

    device: int
    inode: int
    begun: int  # nanoseconds since the epoch


@dataclasses.dataclass(frozen=True)
class Listing:
    """The result of one List call."""

    life: Life | None  # of kubelet; None: its socket was not found
    pods: tuple[ListedPod, ...]

    @functools.cached_property
    def names(self) -> frozenset[tuple[str, str]]:
        """The pods, by namespace and name."""
        return frozenset((pod.namespace, pod.name) for pod in self.pods)

    def mentioning(self, wanted: Iterable[str]) -> list[ListedPod]:
        """Return the pods that have any of the ids *wanted*."""
        marks = frozenset(wanted)
        return [pod for pod in self.pods if not pod.everything.isdisjoint(marks)]


class PodResources:
    """Kubelet's PodResources socket, with one call at a time.

    The connection is kept as long as kubelet runs and answers.
    """

    def __init__(
        self,
        socket: Path,
        resources: Iterable[device_ids.Resource] = device_ids.EITHER,
        *,
        seconds: float = SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._socket = socket
        self._seconds = seconds
        self._retry_seconds = retry_seconds
        self._kinds = {resource.name: resource.kind for resource in resources}
        self._changed = threading.Condition()
        self._begun = 0  # calls
        self._ended = 0
        self._busy = False
        self._answer: Listing | UnansweredError = Listing(None, ())
        self._read: dict[bytes, ListedPod] = {}  # parsed pods of the last answer, by their message
        self._connection = contextlib.ExitStack()
        self._lister: api_grpc.PodResourcesListerStub | None = None
        self._connected_to: Life | None = None

    def pods(self) -> tuple[ListedPod, ...]:
        """Return kubelet's current pods; UnansweredError if it does not answer."""
        return self.listing().pods

    def listing(self) -> Listing:
        """Return the same, with the run of kubelet that answered."""
        with self._changed:
            wanted = self._begun + 1
            while self._busy and self._ended < wanted:
                self._changed.wait()
            if self._ended < wanted:
                self._busy = True
                self._begun += 1
            else:
                return self._found()
        answer = self._ask()
        with self._changed:
            self._answer, self._ended, self._busy = answer, wanted, False
            self._changed.notify_all()
            return self._found()

    def _found(self) -> Listing:
        if isinstance(self._answer, UnansweredError):
            raise UnansweredError(str(self._answer)) from self._answer
        return self._answer

    def _ask(self) -> Listing | UnansweredError:
        end = time.monotonic() + self._retry_seconds
        pause = _FIRST_PAUSE
        while True:
            try:
                life = self.life()
                lister = self._connect(life)
                answer = lister.List(api.ListPodResourcesRequest(), timeout=self._seconds)
                pods = self._pods(answer.pod_resources)
                if life == self.life():
                    return Listing(life, pods)
                failure = "kubelet restarted meanwhile"
            except message.DecodeError as exc:
                return UnansweredError(f"{self._socket}: kubelet's answer is malformed: {exc}")
            except grpc.RpcError as exc:
                self._disconnect()
                failure = f"kubelet said {exc.code().name}: {exc.details()}"
                if exc.code() not in _PASSING:
                    return UnansweredError(f"{self._socket}: {failure}")
            if time.monotonic() + pause > end:
                return UnansweredError(f"{self._socket}: {failure}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _connect(self, life: Life | None) -> api_grpc.PodResourcesListerStub:
        """Return a stub that is connected to the kubelet of this *life*."""
        if self._lister is None or life is None or self._connected_to != life:
            self._disconnect()
            channel = self._connection.enter_context(
                grpc_socket.channel(self._socket, receive_bytes=_MOST_BYTES)
            )
            self._lister = api_grpc.PodResourcesListerStub(channel)
            self._connected_to = life
        return self._lister

    def _disconnect(self) -> None:
        self._lister = None
        self._connection.close()

    def _pods(self, said: Iterable[bytes]) -> tuple[ListedPod, ...]:
        """Parse the pods; those with an unchanged message are reused."""
        pods = {raw: self._read.get(raw) or ListedPod(raw, self._kinds) for raw in said}
        self._read = pods
        return tuple(pods.values())

    def life(self) -> Life | None:
        """Return the current run of kubelet; None if its socket does not exist."""
        try:
            found = self._socket.stat()
        except OSError:
            return None
        return Life(found.st_dev, found.st_ino, found.st_ctime_ns)
