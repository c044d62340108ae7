"""Kubelet's PodResources: which pods there are on this node, and what their containers hold.

Kubelet answers a hundred calls a second, ten at once, and refuses more. So one call serves all
who wait: each gets the answer of a call that began after he came. The answer has an entry for each
id, ten thousands of them on a full node; a pod's are read only if somebody asks for that pod.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, wire
from pyvgpu.deviceplugin import ids, messages
from pyvgpu.rpc import client, status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SECONDS = 5.0  # for one call
PATIENCE_SECONDS = 10.0  # until kubelet takes one: less than the 30 s that it waits for us

_LONGEST = 7  # bytes of an id that is looked for without reading
_ID_FIELD = b"\x12"  # what an id stands behind, and then its length: field 2
# The length and the content, wherever such a field of few bytes may begin.
_SHORT = re.compile(
    _ID_FIELD + b"(?=(%s))" % b"|".join(b"%c.{%d}" % (it, it) for it in range(1, _LONGEST + 1)),
    re.DOTALL,
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_PASSING = (status.Code.RESOURCE_EXHAUSTED, status.Code.UNAVAILABLE)
_MOST_BYTES = 64 << 20  # of an answer


class UnansweredError(errors.UnavailableError):
    """Kubelet does not say who holds what."""


class Pod:
    """A pod as kubelet lists it."""

    def __init__(self, content: bytes, kinds: Mapping[str, ids.Kind]) -> None:
        read = wire.Message(content)
        self._kinds = kinds
        self.name = read.text(1)
        self.namespace = read.text(2)
        self._content = content
        self._parts = read.parts(3)

    @functools.cached_property
    def containers(self) -> Mapping[str, Mapping[ids.Kind, frozenset[str]]]:
        """The ids of its containers; there is no ordinary init container among them."""
        found: dict[str, dict[ids.Kind, frozenset[str]]] = {}
        heads = [  # what a message of one id begins with, before the id's length
            (wire.encode({1: name}) + _ID_FIELD, kind) for name, kind in self._kinds.items()
        ]
        for part in self._parts:
            container = wire.Message(part)
            alone: list[tuple[bytes, ids.Kind, list[bytes]]] = [(*it, []) for it in heads]
            held: dict[ids.Kind, set[str]] = {}
            for devices in container.parts(2):
                for head, _, own in alone:  # of most there are thousands with one
                    if devices.startswith(head):
                        rest = devices[len(head) :]
                        if rest and rest[0] == len(rest) - 1:
                            own.append(rest[1:])
                            break
                else:
                    self._read(wire.Message(devices), held)
            for _, kind, own in alone:
                if own:
                    held.setdefault(kind, set()).update(it.decode(errors="replace") for it in own)
            found[container.text(1)] = {kind: frozenset(own) for kind, own in held.items()}
        return found

    def _read(self, devices: wire.Message, held: dict[ids.Kind, set[str]]) -> None:
        kind = self._kinds.get(devices.text(1))
        if kind is not None:
            held.setdefault(kind, set()).update(devices.texts(2))

    @functools.cached_property
    def words(self) -> frozenset[bytes]:
        """All that may be an id of it, behind its length, and more."""
        return frozenset(_SHORT.findall(self._content))


@dataclasses.dataclass(frozen=True, slots=True)
class Life:
    """One run of kubelet, from its start to its end: known by its socket."""

    device: int
    inode: int
    begun: int  # nanoseconds since the epoch


@dataclasses.dataclass(frozen=True)
class Listing:
    """What one call has brought."""

    life: Life | None  # of kubelet; None: its socket could not be seen
    pods: tuple[Pod, ...]

    @functools.cached_property
    def names(self) -> frozenset[tuple[str, str]]:
        """The pods, by namespace and name."""
        return frozenset((it.namespace, it.name) for it in self.pods)

    def mentioning(self, wanted: Iterable[str]) -> list[Pod]:
        """Return the pods among whose ids any *wanted* may be, without reading all of them."""
        marks = {b"%c%s" % (len(it), it) for it in (each.encode()[:255] for each in wanted)}
        if any(len(it) > 1 + _LONGEST for it in marks):
            return list(self.pods)
        return [it for it in self.pods if not it.words.isdisjoint(marks)]


class PodResources:
    """The socket on which kubelet answers, asked by one call at a time."""

    def __init__(
        self,
        socket: Path,
        resources: Iterable[ids.Resource] = ids.EITHER,
        *,
        seconds: float = SECONDS,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        self._socket = socket
        self._seconds = seconds
        self._patience = patience
        self._kinds = {it.name: it.kind for it in resources}
        self._changed = threading.Condition()
        self._begun = 0  # calls
        self._ended = 0
        self._busy = False
        self._answer: Listing | UnansweredError = Listing(None, ())
        self._read: dict[bytes, Pod] = {}  # those of the last answer, by what it said of them

    def pods(self) -> tuple[Pod, ...]:
        """Return the pods that kubelet keeps, as of now; UnansweredError if it does not say."""
        return self.listing().pods

    def listing(self) -> Listing:
        """Return the same, and of which kubelet it is."""
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
        end = time.monotonic() + self._patience
        pause = _FIRST_PAUSE
        while True:
            try:
                life = self.life()
                answer = client.call(
                    self._socket,
                    messages.LIST,
                    messages.NOTHING,
                    seconds=self._seconds,
                    most=_MOST_BYTES,
                )
                pods = self._pods(wire.Message(answer).parts(1))
                if life == self.life():
                    return Listing(life, pods)
                failure = "another kubelet has begun meanwhile"
            except ValueError as exc:
                return UnansweredError(f"{self._socket}: kubelet's answer is no message: {exc}")
            except status.CallError as exc:
                failure = f"kubelet said {exc}"
                if exc.code not in _PASSING:
                    return UnansweredError(f"{self._socket}: {failure}")
            if time.monotonic() + pause > end:
                return UnansweredError(f"{self._socket}: {failure}")
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _pods(self, said: Iterable[bytes]) -> tuple[Pod, ...]:
        """Return the pods; of whom the same is said as before, what was read of it is kept."""
        pods = {it: self._read.get(it) or Pod(it, self._kinds) for it in said}
        self._read = pods
        return tuple(pods.values())

    def life(self) -> Life | None:
        """Return which run of kubelet this is; None if it is not there."""
        try:
            found = self._socket.stat()
        except OSError:
            return None
        return Life(found.st_dev, found.st_ino, found.st_ctime_ns)
