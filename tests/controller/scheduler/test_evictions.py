"""The evictor, when kube-scheduler asks at inconvenient moments."""

import threading
import time

import pytest
import schedulerpods as pods
import scheduling_api as make

from pyvgpu.controller.scheduler import cache, extender, pod_request
from pyvgpu.controller.scheduler.shell import (
    disruption_budgets,
    preemption_evictions,
    scheduling_events,
)
from pyvgpu.kube import work_queue


class AskedAgain(work_queue.Queue):
    """Calls *ask* once more in the moment when a pod is taken from the queue."""

    def __init__(self, ask):
        super().__init__()
        self.ask, self.taken = ask, []

    def take(self):
        if len(self.taken) == 2:
            self.close()
        name = super().take()
        if name is not None:
            self.taken.append(name)
            if len(self.taken) == 1:
                self.ask()
        return name


def test_a_pod_requested_again_while_it_is_taken_is_processed_once(cluster, monkeypatch):
    monkeypatch.setattr(preemption_evictions, "KNOWN_SECONDS", 0.0)
    _, connection = cluster
    known = cache.Cache()
    evictor = preemption_evictions.Preemptor(
        connection,
        extender.Decider(known),
        disruption_budgets.Reader(connection, list, known),
        lambda: True,
        scheduling_events.SchedulingEvents(connection, lambda pod, names: ""),
    )
    pod = pod_request.read(make.pod("high", priority=100))
    queue = evictor._queue = AskedAgain(lambda: evictor.consider(pod, ["node-1"]))
    evictor.consider(pod, ["node-1"])
    evictor.run(threading.Event())
    assert queue.taken == [pod.uid, pod.uid]
    assert evictor._asked == {}


class ReadForLong(disruption_budgets.Reader):
    """Returns from a read only once a pod's claim has expired."""

    def __init__(self, connection, known, uid):
        super().__init__(connection, list, known)
        self.uid = uid

    def read(self):
        while self._cache.find(self.uid) is not None:
            self._cache.expire(time.monotonic())
        return super().read()


@pytest.mark.slow
def test_a_claim_that_expires_while_budgets_are_read_is_not_renewed(cluster):
    _, connection = cluster
    known = cache.Cache(cache.SchedulerSettings(nomination_seconds=1.0))
    decider = extender.Decider(known)
    known.see_node("n0", pods.published(1))
    low = pods.bind(pods.pod("low"), "n0", {"main": (pods.share(0, 60),)})
    low["metadata"]["deletionTimestamp"] = "2026-11-22T04:00:00Z"
    high = pod_request.read(pods.pod("high", priority=100))
    for pod in (pod_request.read(low, (pods.KEY,)), high):
        known.see_pod(pod.key, pod)
    evictor = preemption_evictions.Preemptor(
        connection,
        decider,
        ReadForLong(connection, known, high.uid),
        lambda: True,
        scheduling_events.SchedulingEvents(connection, lambda pod, names: ""),
    )
    for _ in range(2):
        evictor._make_room(high, ["n0"])
    assert decider.in_vain(high) == "team/low on n0 did not end within 1 s"
