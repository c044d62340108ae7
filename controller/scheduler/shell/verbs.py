"""Extender verbs: filter, prioritize, bind and preempt, each from request body to reply.

A pod is remembered from filter to bind with the resourceVersion that was evaluated, since the bind
request has only its name and uid. Slow work, such as explaining why a pod waits or preempting
for it, is left to other threads. A pod without devices of ours passes.
"""

from __future__ import annotations

import collections
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.scheduler import gang_state, protocol
from pyvgpu.controller.scheduler.shell import binding
from pyvgpu.http import replies
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyvgpu.controller.scheduler import extender, name_lists, pod_request, victims
    from pyvgpu.kube.objects import Object

MOST_GATHERING = 512  # binds that wait for their gang; more must retry
REMEMBERED = 20_000  # pods between their filter and their bind


class Remembered:
    """The pods that were evaluated last, up to a number."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._found: collections.OrderedDict[str, binding.EvaluatedPod] = collections.OrderedDict()

    def keep(self, evaluated: binding.EvaluatedPod) -> None:
        """Remember a pod."""
        with self._lock:
            self._found[evaluated.pod.uid] = evaluated
            self._found.move_to_end(evaluated.pod.uid)
            while len(self._found) > self._most:
                self._found.popitem(last=False)

    def find(self, thing: Object) -> binding.EvaluatedPod | None:
        """Return *thing* as it was evaluated in this very version; None if it was not."""
        meta = objects.section(thing, "metadata")
        found = self._found.get(str(meta.get("uid") or ""))
        if found is None or not found.version or found.version != meta.get("resourceVersion"):
            return None
        return found

    def take(self, uid: str) -> binding.EvaluatedPod | None:
        """Return a pod and forget it."""
        with self._lock:
            return self._found.pop(uid, None)


class Verbs:
    """Answers requests; thread-safe."""

    def __init__(
        self,
        decider: extender.Decider,
        binder: binding.Binder,
        keys: Callable[[], Sequence[bytes]],
        budgets: Callable[[], victims.Budgets],
        waits: Sequence[Callable[[pod_request.PodRequest, Sequence[str]], None]],
    ) -> None:
        """Answer from *decider*; *waits* are called with each refused pod and its nodes."""
        self._decider = decider
        self._binder = binder
        self._keys = keys
        self._budgets = budgets
        self._waits = waits
        self._remembered = Remembered()
        self._gathering = threading.BoundedSemaphore(MOST_GATHERING)

    @property
    def all(self) -> Mapping[str, replies.Route]:
        """Return the verbs by name."""
        return {
            "filter": self.filter,
            "predicates": self.predicates,
            "prioritize": self.prioritize,
            "bind": self.bind,
            "preempt": self.preempt,
        }

    def filter(self, content: bytes) -> replies.Reply:
        """Answer which nodes have room for a pod."""
        return self._filter(content, may_change=False)

    def predicates(self, content: bytes) -> replies.Reply:
        """Do the same for a configuration that was written for gpu-manager."""
        return self._filter(content, may_change=True)

    def prioritize(self, content: bytes) -> replies.Reply:
        """Answer with a score for each node."""
        asked = protocol.read_question(content)
        evaluated = self._remembered.find(asked.pod) or binding.EvaluatedPod.of(
            asked.pod, self._keys()
        )
        scores: name_lists.Codes = bytes(len(asked.names))
        if evaluated is not None:
            scores = self._decider.prioritize(evaluated.pod, asked.names, time.monotonic())
        return replies.Reply(protocol.write_scores(asked.names, scores), "scored")

    def bind(self, content: bytes) -> replies.Reply:
        """Bind a pod; answer whether that was done."""
        asked = protocol.read_bind(content)
        try:
            self._bind(asked)
        except errors.PyVgpuError as exc:
            return replies.Reply(protocol.write_failure(str(exc)), "not bound")
        return replies.Reply(protocol.write_bound(), "bound")

    def preempt(self, content: bytes) -> replies.Reply:
        """Answer on which nodes the victims that kube-scheduler proposes would make room."""
        asked = protocol.read_preemption(content)
        evaluated = binding.EvaluatedPod.of(asked.pod, self._keys())
        those = asked.victims
        if evaluated is not None:
            named = {node: found.uids for node, found in those.items()}
            found = self._decider.spare(evaluated.pod, named, self._budgets(), time.monotonic())
            those = {
                node: protocol.Victims(tuple(uids), asked.victims[node].violations)
                for node, uids in found.items()
            }
        return replies.Reply(protocol.write_preemption(those), "helps" if those else "in vain")

    def _filter(self, content: bytes, *, may_change: bool) -> replies.Reply:
        asked = protocol.read_question(content)
        evaluated = binding.EvaluatedPod.of(asked.pod, self._keys())
        if evaluated is None:
            return replies.Reply(protocol.write_filter(asked, asked.names, {}), "not ours")
        self._remembered.keep(evaluated)
        # kube-scheduler needs reasons only where no node is left; thousands take long to send.
        answer = self._decider.filter(
            evaluated.pod, asked.names, time.monotonic(), every_reason=may_change
        )
        if not answer.fitting:
            for note in self._waits:
                note(evaluated.pod, asked.names)
        said = protocol.write_filter(asked, answer.fitting, answer.failed, may_change=may_change)
        return replies.Reply(said, "fits" if answer.fitting else "waits")

    def _bind(self, asked: protocol.Bind) -> None:
        evaluated = self._remembered.take(asked.uid)
        key = f"{asked.namespace}/{asked.name}"
        if evaluated is None:  # another leader evaluated it, before this term began
            thing = self._binder.find(key, asked.uid)
            evaluated = binding.EvaluatedPod.of(thing, self._keys())
        if evaluated is None:
            self._binder.bind_without(asked.namespace, asked.name, asked.uid, asked.node)
        else:
            self._gather(evaluated, asked.node)
            self._binder.bind(evaluated, asked.node)

    def _gather(self, evaluated: binding.EvaluatedPod, node: str) -> None:
        """Wait for the other pods of a gang or group; NotBoundError if that takes too long.

        A pod that has arrived once counts as present, even though its bind must be retried.
        """
        end = time.monotonic() + gang_state.WAIT_SECONDS
        if not self._gathering.acquire(blocking=False):
            end = 0.0
        try:
            moved = self._decider.moved
            with moved:
                while (until := self._arrive(evaluated, node)) is not None:
                    left = min(until, end) - time.monotonic()
                    if left <= 0:
                        raise binding.NotBoundError(
                            f"pod {evaluated.pod.key}: other pods of its gang or group are not "
                            "bound yet"
                        )
                    moved.wait(left)
        finally:
            if end:
                self._gathering.release()

    def _arrive(self, evaluated: binding.EvaluatedPod, node: str) -> float | None:
        return self._decider.arrive(evaluated.pod, node, time.monotonic())
