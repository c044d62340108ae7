"""In any order of events no device is reserved twice, and no capacity leaks.

A model of an API server with a few nodes and pods, whose watch events arrive late, beside a
scheduler cache that decides from them. Binds are answered, refused, or not answered at all; pods
end and are re-created under their names; nodes change; the scheduler restarts from the API
server's state, and that is restored from a backup.
"""

import collections
import dataclasses

import onebyone
import pytest
import schedulerpods as pods
from allocator_nodes import pcie
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyvgpu import errors
from pyvgpu.controller.scheduler import cache, extender, index, node_info, pod_request, victims

pytestmark = pytest.mark.slow

NODES = ["n0", "n1"]
GANG = {"pyvgpu.io/gang": "g", "pyvgpu.io/gang-size": "2"}
ASKS = [
    [pods.container(vcore=60)],
    [pods.container(vcore=30, size=20)],
    [pods.container(vcore=100, size=None)],
    [pods.container(vcore=200, size=None)],
    [pods.container("a", 40), pods.container("b", 70)],
]
NAMES = st.sampled_from([f"p{number}" for number in range(8)])
FIRST = st.integers(0, 7)  # index into the suitable pods, modulo their number


def waits(thing):
    return "nodeName" not in thing["spec"]


class Cluster(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.nodes = {}  # the API server's state
        self.pods = {}
        self.news = collections.deque()  # events that the scheduler has not received
        self.asked = {}  # binds without an answer: uid -> (name, node, shares)
        self.uids = self.now = 0
        for name in NODES:
            self.nodes[name] = pods.published(devices=self.machine(name, 2))
        for number in range(8):
            self.make(f"p{number}", ASKS[number % 2], 100 * (number % 3 == 2), {})
        self.restart()
        self.save()

    @rule()
    def restart(self):
        """Restart the scheduler; requests of the previous one are done now or never."""
        for uid in list(self.asked):
            self.land(uid)
        self.news.clear()
        self.cache = cache.Cache()
        self.decider = extender.Decider(self.cache)
        self.index = index.Index(self.cache.nodes)
        self.cache.listen(self.index.changed)
        for name, published in self.nodes.items():
            self.cache.see_node(name, published)
        for name in sorted(self.pods, reverse=bool(self.uids % 2)):
            self.see(name, self.pods[name])

    @rule(
        name=NAMES,
        ask=st.sampled_from(ASKS),
        priority=st.sampled_from([0, 0, 100]),
        gang=st.sampled_from([{}, {}, GANG]),
    )
    def make(self, name, ask, priority, gang):
        self.uids += 1
        thing = pods.pod(name, *ask, notes=gang, uid=f"uid-{self.uids}", priority=priority)
        self.write(name, thing)

    @rule(first=FIRST)
    def delete(self, first):
        name = self.one_of(bool, first)
        if name is not None:
            self.write(name, None)

    @rule(first=FIRST, phase=st.sampled_from(sorted(pod_request.OVER)))
    def end(self, first, phase):
        name = self.one_of(lambda thing: "nodeName" in thing["spec"], first)
        if name is not None:
            self.write(name, {**self.pods[name], "status": {"phase": phase}})

    @rule(
        name=st.sampled_from(NODES),
        count=st.integers(0, 2),
        cordoned=st.booleans(),
    )
    def change(self, name, count, cordoned):
        devices = [
            dataclasses.replace(device, cordoned=cordoned and not device.index)
            for device in self.machine(name, count)
        ]
        self.nodes[name] = pods.published(devices=tuple(devices)) if count else None
        self.news.append((self.cache.see_node, (name, self.nodes[name])))

    @rule(count=st.integers(1, 20))
    def hear(self, count):
        """Deliver pending events, in order."""
        for _ in range(min(count, len(self.news))):
            heard, what = self.news.popleft()
            heard(*what)

    @rule(seconds=st.sampled_from([1, 10, 100, 1000]))
    def wait(self, seconds):
        self.now += seconds
        self.decider.freed(self.now)
        self.decider.broken(self.now)

    @rule()
    def save(self):
        self.saved = dict(self.nodes), dict(self.pods)

    @rule()
    def restore(self):
        """Restore the API server; requests in flight are lost, and everything is listed again."""
        self.nodes, self.pods = (dict(saved) for saved in self.saved)
        self.asked.clear()
        self.news.clear()
        for name in NODES:
            self.cache.see_node(name, self.nodes[name])
        known = {pod.partition("/")[2] for pod in self.cache.pods}
        for name in sorted(known | self.pods.keys()):
            self.see(name, self.pods.get(name))

    def one_of(self, will_do, first):
        """The name of a suitable pod, None if there is none."""
        names = sorted(pod for pod in self.pods if will_do(self.pods[pod]))
        return names[first % len(names)] if names else None

    @rule(
        first=FIRST,
        want=st.sampled_from(NODES),
        answer=st.sampled_from(["done", "refused", "none"]),
        asked_before=st.booleans(),
    )
    def bind(self, first, want, answer, asked_before):
        """Bind like kube-scheduler, which may have newer state and binds where it likes."""
        name = self.one_of(waits, first)
        if name is None:
            return
        pod = self.ours(name)
        if asked_before:
            fitting = self.decider.filter(pod, NODES, self.now).fitting
            if not fitting:
                return
            self.decider.prioritize(pod, fitting, self.now)
            want = want if want in fitting else fitting[0]
        try:
            if self.decider.arrive(pod, want, self.now) is not None:
                return
            shares = self.cache.reserve(pod, want, self.now)
        except errors.UnavailableError:
            return
        self.asked[pod.uid] = name, want, shares
        if answer == "done":
            if not self.land(pod.uid):
                self.cache.release(pod.uid)
        elif answer == "refused":
            del self.asked[pod.uid]
            self.cache.release(pod.uid)

    @precondition(lambda self: self.asked)
    @rule(landed=st.booleans(), which=st.integers(0, 5))
    def answer_late(self, landed, which):
        uid = sorted(self.asked)[which % len(self.asked)]
        if landed:
            self.land(uid)

    @rule()
    def resolve(self):
        """Resolve binds in doubt: one that has not arrived by now never will, and is released."""
        for reservation in self.cache.doubtful(self.now):
            uid = reservation.pod.uid
            name = reservation.pod.key.partition("/")[2]
            self.asked.pop(uid, None)
            thing = self.pods.get(name)
            there = thing is not None and thing["metadata"]["uid"] == uid
            if not there or "nodeName" not in thing["spec"]:
                self.cache.release(uid)

    @rule(first=FIRST, stays=st.booleans())
    def preempt(self, first, stays):
        """Preempt; a victim may terminate at once, late or never."""
        name = self.one_of(waits, first)
        if name is None:
            return
        pod = self.ours(name)
        plan = self.decider.preempt(pod, NODES, victims.NO_BUDGETS, self.now)
        for victim in plan.victims if plan else ():
            assert victim.priority < pod.priority
            name = victim.key.partition("/")[2]
            if name in self.pods and self.pods[name]["metadata"]["uid"] == victim.uid:
                self.write(name, self.leaving(name) if stays else None)

    @invariant()
    def no_device_is_reserved_twice(self):
        """By the API server's state and the binds that may still be done."""
        sums = collections.Counter()
        for name, thing in self.pods.items():
            pod = pod_request.read(thing, (pods.KEY,))
            if pod.over:
                continue
            uid = thing["metadata"]["uid"]
            if pod.node:
                assert pod.held is not None
                for holding in pod.held:
                    sums[holding.share.uuid] += holding.share.vcore
            elif uid in self.asked and self.asked[uid][0] == name:
                reservation = self.cache.find(uid)
                assert reservation is not None, "it may still be bound"
                for holding in reservation.held:
                    sums[holding.share.uuid] += holding.share.vcore
        assert all(vcore <= 100 for vcore in sums.values()), sums

    @invariant()
    def the_index_agrees_with_a_direct_search(self):
        for ask in ASKS[:4]:
            shape = pod_request.read(pods.pod("x", *ask)).shape
            known = self.index.results_of(shape)
            for name, info in self.cache.nodes.items():
                assert known.why(name) is onebyone.evaluate(
                    info, pod_request.pod_of(shape, info.unit or 1)
                )

    @invariant()
    def free_capacity_is_what_is_left(self):
        for info in self.cache.nodes.values():
            taken = collections.Counter()
            for holding in info.held():
                taken[holding.share.uuid] += holding.share.vcore
            assert [room.vcore for room in info.free] == [
                100 - taken[device.uuid] for device in info.devices
            ]

    def teardown(self):
        """With all events and answers delivered, the cache equals the API server's state."""
        if not hasattr(self, "pods"):
            return
        self.hear(10_000)
        for uid in list(self.asked):
            self.land(uid)
        self.hear(10_000)
        self.now += 10_000
        self.cache.expire(self.now)
        self.resolve()
        fresh = cache.Cache()
        for name, published in self.nodes.items():
            fresh.see_node(name, published)
        for thing in self.pods.values():
            pod = pod_request.read(thing, (pods.KEY,))
            fresh.see_pod(pod.key, pod)
        assert self.cache.differences(fresh) == []
        for info in self.cache.nodes.values():
            states = {tenant.state for tenant in info.tenants.values()}
            assert states <= {node_info.Certainty.BOUND}
        assert {name: info.free for name, info in fresh.nodes.items()} == {
            name: info.free for name, info in self.cache.nodes.items()
        }

    # The API server.

    def machine(self, name, count):
        """Devices that no other node has."""
        return tuple(
            dataclasses.replace(device, uuid=f"{name}-{device.uuid}", links={})
            for device in pcie(count)
        )

    def write(self, name, thing):
        if thing is None:
            del self.pods[name]
        else:
            self.pods[name] = thing
        self.news.append((self.see, (name, thing)))

    def see(self, name, thing):
        self.cache.see_pod(
            f"team/{name}", None if thing is None else pod_request.read(thing, (pods.KEY,))
        )

    def leaving(self, name):
        """The pod once its deletion has begun."""
        thing = self.pods[name]
        deleted = {"deletionTimestamp": "2026-11-22T03:00:00Z"}
        return {**thing, "metadata": {**thing["metadata"], **deleted}}

    def ours(self, name):
        """The pod as kube-scheduler sends it."""
        return pod_request.read(self.pods[name], (pods.KEY,))

    def land(self, uid):
        """Do a bind request if its pod still exists and has no node; return whether it did."""
        name, node, shares = self.asked.pop(uid)
        thing = self.pods.get(name)
        if thing is None or thing["metadata"]["uid"] != uid or "nodeName" in thing["spec"]:
            return False
        copied = {
            **thing,
            "metadata": dict(thing["metadata"]),
            "spec": dict(thing["spec"]),
            "status": {"phase": "Running"},
        }
        self.write(name, pods.bind(copied, node, shares))
        return True


TestAnyOrder = Cluster.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=50)
