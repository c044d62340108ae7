"""Gangs and preemption, against a small API server."""

import json
import threading

import pytest
import scheduling_api as make
import waiting
from scheduling_api import KEY

from pyvgpu import names
from pyvgpu.controller.scheduler import cache, gang_state
from pyvgpu.controller.scheduler.shell import (
    binding,
    cache_watch,
    disruption_budgets,
    leader_label,
    preemption_evictions,
    scheduling_events,
    session,
)
from pyvgpu.controller.scheduler.shell.scheduler_metrics import SchedulerMeter
from pyvgpu.kube import event_recorder, leases

NODE = "node-1"


class Led:
    """A term with a small API server, whose verbs are called without HTTP."""

    def __init__(self, api, connection, settings):
        self.api, self.stop = api, threading.Event()
        self.leads_for = 60.0  # seconds
        own = leader_label.OwnPod(connection, "pyvgpu", "")
        meter = SchedulerMeter()
        self.term = session.Term(
            connection,
            settings,
            lambda: [KEY],
            own,
            meter,
            lambda seconds: seconds < self.leads_for,
        )
        self.thread = threading.Thread(target=self.term.run, args=(self.stop,))
        self.thread.start()
        waiting.wait_until(lambda: self.term.ready or not self.thread.is_alive())
        assert self.term.ready

    def ask(self, verb, **body):
        return json.loads(self.term.verbs[verb](json.dumps(body).encode()).content)

    def fitting(self, name, *nodes):
        pod = self.api.read(make.path(name))
        return self.ask("filter", Pod=pod, NodeNames=list(nodes or [NODE]))["NodeNames"]

    def bind(self, name, node=NODE):
        asked = {"PodName": name, "PodNamespace": "n", "PodUID": f"uid-{name}", "Node": node}
        return self.ask("bind", **asked)["Error"]

    def create(self, name, *ask, **more):
        self.api.put(make.path(name), make.pod(name, *ask, **more))
        waiting.wait_until(lambda: f"n/{name}" in self.term.cache.pods)

    def run(self, name, *ask, node=NODE, **more):
        self.create(name, *ask, **more)
        assert self.fitting(name, node) == [node]
        assert self.bind(name, node) == ""
        waiting.wait_until(lambda: self.term.cache.pods[f"n/{name}"].node == node)

    def is_there(self, name):
        return make.path(name) in self.api._objects

    def events(self, reason, text=""):
        return [
            event["involvedObject"]["name"]
            for event in self.api.under("/api/v1/namespaces/n/events")
            if event["reason"] == reason and text in event["message"]
        ]


@pytest.fixture
def led(cluster, request):
    api, connection = cluster
    for name in (NODE, "node-2"):
        api.put(f"/api/v1/nodes/{name}", make.node(name))
    made = Led(api, connection, getattr(request, "param", cache.SchedulerSettings()))
    yield made
    made.stop.set()
    made.thread.join(30)
    assert not made.thread.is_alive()


def two_of_60(led):
    for name in ("low-0", "low-1"):
        led.run(name, 60, 8, priority=1)


def until_one_has_gone(led):
    waiting.wait_until(lambda: not (led.is_there("low-0") and led.is_there("low-1")))
    waiting.wait_until(lambda: led.fitting("high") == [NODE])


@pytest.mark.slow
def test_evicts_one_pod_where_totals_suffice_and_no_device_does(led):
    two_of_60(led)
    led.create("high", 50, 8, priority=100)
    assert led.fitting("high") == []
    until_one_has_gone(led)
    left = [name for name in ("low-0", "low-1") if led.is_there(name)]
    assert len(left) == 1
    led.create("thief", 60, 4, priority=1)
    assert led.fitting("thief") == []  # what was freed is claimed
    assert led.bind("high") == ""
    waiting.wait_until(lambda: len(led.events("VGPUPreempted")) == 1)
    assert led.term.evicted == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("priority", "more"),
    [(1, {}), (0, {}), (100, {"preemptionPolicy": "Never"})],
    ids=["as much", "less", "never"],
)
def test_evicts_nothing_for_equal_or_lower_priority_or_a_never_policy(led, priority, more):
    two_of_60(led)
    led.create("high", 50, 8, priority=priority, **more)
    assert led.fitting("high") == []
    led.create("other", 60, 8, priority=100)  # it comes after high
    assert led.fitting("other") == []
    waiting.wait_until(lambda: len(led.events("VGPUPreempted")) == 1)
    assert led.fitting("high") == []


def test_evicts_no_pod_for_one_that_differs_from_the_request(led, monkeypatch, caplog):
    monkeypatch.setattr(preemption_evictions, "KNOWN_SECONDS", 0.1)
    two_of_60(led)
    led.create("humble", 50, 8, priority=0)
    for name in ("humble", "forged"):  # which does not exist
        pod = make.pod(name, 50, 8, priority=1_000_000)
        assert led.ask("filter", Pod=pod, NodeNames=[NODE])["NodeNames"] == []
    waiting.wait_until(lambda: "cannot make room for pod n/forged" in caplog.text)
    assert led.is_there("low-0")
    assert led.is_there("low-1")


@pytest.mark.slow
def test_a_protected_pod_stays_and_another_is_evicted(led):
    two_of_60(led)
    led.api.protected = {"low-0"}
    led.create("high", 50, 8, priority=100)
    assert led.fitting("high") == []
    until_one_has_gone(led)
    assert led.is_there("low-0")


@pytest.fixture
def frequent(monkeypatch):
    """A pod's reason is written as soon as it changes."""
    monkeypatch.setattr(scheduling_events, "LIMITS", event_recorder.EventLimits(0.0, 600.0))


@pytest.mark.slow
@pytest.mark.usefixtures("frequent")
@pytest.mark.parametrize("led", [cache.SchedulerSettings(nomination_seconds=0.5)], indirect=True)
def test_another_pod_is_evicted_for_one_that_never_terminates(led, monkeypatch):
    monkeypatch.setattr(preemption_evictions, "AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(disruption_budgets, "PROTECTED_SECONDS", 0.3)
    two_of_60(led)
    led.api.staying = 1
    led.api.protected = {"low-1"}  # until the event says for which pod high waits in vain
    led.create("high", 50, 8, priority=100)
    in_vain = f"n/low-0 on {NODE} did not end within 0.5 s"
    waiting.wait_until(
        lambda: led.fitting("high") == [] and led.events("VGPUWaits", in_vain) == ["high"]
    )
    assert led.api.read(make.path("low-0"))["metadata"]["deletionTimestamp"]
    led.api.protected = set()
    waiting.wait_until(lambda: led.fitting("high") == [NODE])
    assert led.is_there("low-0")
    # A victim gets a second event if the watch delivers its deletion after the claim expires.
    waiting.wait_until(lambda: led.events("VGPUPreempted") == ["low-0", "low-1"])
    assert led.bind("high") == ""


@pytest.mark.slow
def test_if_no_pod_may_be_evicted_none_is_and_nothing_is_claimed(led):
    two_of_60(led)
    led.api.protected = {"low-0", "low-1"}
    led.create("high", 50, 8, priority=100)
    assert led.fitting("high") == []
    evictions = [f"{make.path(name)}/eviction" for name in ("low-0", "low-1")]
    for path in evictions:
        led.api.wait_for("POST", path)
    led.run("fits", 40, 8)
    assert led.is_there("low-0")
    assert led.is_there("low-1")


@pytest.mark.slow
def test_a_pod_with_an_exhausted_budget_gets_no_eviction_request(led):
    two_of_60(led)
    thing = led.api.read(make.path("low-0"))
    thing["metadata"]["labels"] = {"app": "precious"}
    led.api.put(make.path("low-0"), thing)
    budget = {
        "metadata": {"namespace": "n", "name": "b"},
        "spec": {"selector": {"matchLabels": {"app": "precious"}}},
        "status": {"disruptionsAllowed": 0},
    }
    led.api.put(f"{cache_watch.BUDGETS}/b", budget)
    waiting.wait_until(lambda: led.term._watch.budgets())
    led.create("high", 50, 8, priority=100)
    assert led.fitting("high") == []
    until_one_has_gone(led)
    assert led.is_there("low-0")
    assert ("POST", f"{make.path('low-0')}/eviction") not in led.api.asked


def test_preempt_answers_which_victims_would_help(led):
    for name in ("a", "b", "c", "d"):
        led.run(name, 50, 8, priority=1)
    led.create("high", 60, 8, priority=100)
    pod = led.api.read(make.path("high"))
    device_of = {name: led.api.choice(name).containers["main"][0].uuid for name in "abcd"}
    one = [name for name in "abcd" if device_of[name] == f"GPU-{NODE}-0"]
    victims = {NODE: {"Pods": [{"UID": f"uid-{one[0]}"}]}}
    found = led.ask("preempt", Pod=pod, NodeNameToMetaVictims=victims)["NodeNameToMetaVictims"]
    uids = {victim["UID"] for victim in found[NODE]["Pods"]}
    assert uids == {f"uid-{name}" for name in one}  # 60 need both of one device
    never = {"node-9": {"Pods": [{"UID": "uid-x"}]}}
    assert led.ask("preempt", Pod=pod, NodeNameToMetaVictims=never) == {
        "NodeNameToMetaVictims": {}
    }


def of_gang(name, size, seconds=60):
    return {
        names.GANG_ANNOTATION: name,
        names.GANG_SIZE_ANNOTATION: str(size),
        names.GANG_TIMEOUT_ANNOTATION: str(seconds),
    }


@pytest.mark.slow
def test_the_pods_of_a_gang_are_bound_when_all_binds_have_arrived(led):
    for name in ("g-0", "g-1"):
        led.create(name, 100, 8, noted=of_gang("g", 2))
    where = {name: led.fitting(name, NODE, "node-2")[0] for name in ("g-0", "g-1")}
    said = {}
    first = threading.Thread(target=lambda: said.update(a=led.bind("g-0", where["g-0"])))
    first.start()
    first.join(0.3)
    assert first.is_alive()
    assert not led.api.bound
    assert led.bind("g-1", where["g-1"]) == ""
    first.join(30)
    assert said == {"a": ""}
    assert len(led.api.bound) == 2


def test_a_bind_fails_when_the_rest_of_the_gang_does_not_arrive(led, monkeypatch):
    monkeypatch.setattr(gang_state, "WAIT_SECONDS", 0.1)
    for name in ("g-0", "g-1"):
        led.create(name, 100, 8, noted=of_gang("g", 2))
    (node,) = led.fitting("g-0", NODE, "node-2")
    assert "other pods of its gang" in led.bind("g-0", node)
    assert not led.api.bound


@pytest.mark.slow
def test_binds_of_a_large_gang_beyond_the_limit_must_retry_and_count_as_arrived(led):
    places = led.term.verbs["bind"].__self__._gathering = threading.BoundedSemaphore(1)
    names_of = [f"g-{n}" for n in range(3)]
    for name in names_of:
        led.create(name, 50, 8, noted=of_gang("g", 3))
    where = {name: led.fitting(name, NODE, "node-2")[0] for name in names_of}
    said = {}
    first = threading.Thread(target=lambda: said.update(a=led.bind("g-0", where["g-0"])))
    first.start()
    waiting.wait_until(lambda: places._value == 0)  # it has taken the only slot
    assert "other pods of its gang" in led.bind("g-1", where["g-1"])
    assert led.bind("g-2", where["g-2"]) == ""  # the last one: all have arrived
    first.join(30)
    assert said == {"a": ""}
    assert led.bind("g-1", where["g-1"]) == ""
    assert len(led.api.bound) == 3


@pytest.mark.slow
def test_an_incomplete_gang_fits_nowhere_and_reserves_nothing(led):
    led.create("g-0", 100, 8, noted=of_gang("g", 2))
    assert led.fitting("g-0", NODE, "node-2") == []
    led.run("other", 100, 8)  # nothing is reserved for the gang


@pytest.mark.slow
def test_sends_no_bind_that_could_arrive_after_the_lease_is_lost(led):
    led.create("a", 50, 8)
    assert led.fitting("a") == [NODE]
    led.leads_for = 2 * binding.CONNECT_SECONDS
    assert "another replica is the leader now" in led.bind("a")
    assert led.api.bound == []
    led.leads_for += 1
    assert led.bind("a") == ""


def test_a_write_ends_before_another_replica_may_lead():
    assert leases.FENCE_SECONDS + binding.WRITE_SECONDS <= leases.LEASE_SECONDS


@pytest.mark.slow
def test_after_a_restore_nothing_is_bound_before_the_restored_pods_are_known(led):
    led.run("old", 60, 8, node="node-2")
    led.run("older", 60, 8, node="node-2")
    before = led.api.saved()
    for name in ("old", "older"):
        led.api.delete(make.path(name))
        waiting.wait_until(lambda name=name: f"n/{name}" not in led.term.cache.pods)
    led.create("new", 60, 8)
    assert led.fitting("new", "node-2") == ["node-2"]
    led.api.refusing["GET"] = [503] * 10_000  # so that nothing is listed again
    led.api.restore(before)
    led.api.put(make.path("new"), make.pod("new", 60, 8))
    waiting.wait_until(lambda: not led.term._watch.is_current())
    assert "watches of the API server are broken" in led.bind("new", "node-2")
    led.api.refusing.clear()
    waiting.wait_until(lambda: {"n/old", "n/older"} <= led.term.cache.pods.keys())
    assert led.fitting("new", "node-2") == []
    waiting.wait_until(lambda: led.fitting("new") == [NODE])
    waiting.wait_until(lambda: led.bind("new") == "")
