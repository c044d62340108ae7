"""Every container in a real cluster has its own quota, also after restarts and on full nodes."""

import signal
import subprocess

import agents
import pytest
import rig
import runner
from agents import UNIT, container, said

from pyvgpu import names

pytestmark = pytest.mark.e2e


def quota(pod, name):
    """Return the memory units that a terminated container saw; assert that it got no more."""
    found = said(pod, name)
    assert found["refused"] == "2", found
    assert int(found["taken"]) <= int(found["total"])
    return int(found["total"]) / UNIT


def run(space, *containers, **spec):
    """Run a pod until it has succeeded."""
    space.create("pods", rig.pod("p", *containers, **spec))
    ended = space.until("pods", "p", rig.has_ended)
    assert rig.phase(ended) == "Succeeded", ended["status"]
    return ended


def test_two_containers_of_a_job_have_their_own_quotas(space, agent):
    template = rig.pod("p", container("small", 30, 8), container("large", 70, 24))
    space.create("jobs", rig.job("j", template))
    space.until("jobs", "j", lambda job: rig.condition(job, "Complete"))
    (pod,) = space.pods_of("j")
    assert (quota(pod, "small"), quota(pod, "large")) == (8, 24)


INITS = {  # requests of the init container and of the app
    "same": ((30, 8), (30, 8)),
    "more": ((60, 24), (30, 8)),
    "less": ((30, 8), (60, 24)),
    "only": ((30, 8), None),
}


def test_init_container_has_its_own_quota(space, idle):
    for name, (init, app) in INITS.items():
        main = rig.container("a", "true") if app is None else container("a", *app)
        space.create("pods", rig.pod(name, main, initContainers=[container("i", *init)]))
    for name, (init, app) in INITS.items():
        ended = space.until("pods", name, rig.has_ended)
        assert rig.phase(ended) == "Succeeded", ended["status"]
        assert quota(ended, "i") == init[1]
        assert app is None or quota(ended, "a") == app[1]


def test_native_sidecar_has_its_own_quota(space, agent):
    script = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"
    side = container("s", 20, 6, script, restartPolicy="Always")
    ended = run(space, container("a", 50, 16), initContainers=[side])
    assert quota(ended, "a") == 16
    assert f"total {6 * UNIT}\n" in agents.logs(space, "p", "s")


def test_identical_concurrent_pods_have_their_own_quotas(space, idle):
    for number in range(6):
        space.create("pods", rig.pod(f"p{number}", container("a", 30, 8)))
    for number in range(6):
        ended = space.until("pods", f"p{number}", rig.has_ended)
        assert quota(ended, "a") == 8


def test_whole_device_uses_the_driver_itself(space, idle):
    ended = run(space, container("a", 100, 0))
    assert int(said(ended, "a")["total"]) == idle.machine.devices[0].memory_bytes


def test_container_can_open_only_its_devices(space, idle):
    script = (
        "for dev in nvidia0 nvidia1 nvidiactl nvidia-uvm; do"
        " if [ -c /dev/$dev ]; then echo has $dev; (: < /dev/$dev) && echo opens $dev; fi; done"
        " > /dev/termination-log 2>&1; true"
    )
    space.create("pods", rig.pod("none", rig.container("a", script)))
    ended = run(space, container("a", 30, 8, script))
    text = rig.state(ended, "a")["state"]["terminated"]["message"]
    for name in ("nvidia0", "nvidiactl", "nvidia-uvm"):
        assert f"has {name}\nopens {name}\n" in text
    assert "nvidia1" not in text
    other = space.until("pods", "none", rig.has_ended)
    assert "message" not in rig.state(other, "a")["state"]["terminated"]


# --- restarts ------------------------------------------------------------------------------

STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"


def stays(space, name, vcore, units):
    """Start a pod that logs what it sees at each start, and stays."""
    space.create(
        "pods", rig.pod(name, container("a", vcore, units, STAYS), restartPolicy="Always")
    )
    return space.until("pods", name, lambda pod: rig.runs(pod, "a"))


def sees(agent, space, name, units):
    """Wait until the running container of a pod has logged its memory; check it."""
    agent.wait(lambda: "returned 1" in agents.logs(space, name, "a"))
    assert f"total {units * UNIT}\n" in agents.logs(space, name, "a")


def test_pod_with_a_killed_sandbox_gets_its_quota_again(space, agent, runtime):
    pod = stays(space, "p", 30, 8)
    sees(agent, space, "p", 8)
    (seen,) = runtime.newest(pod["metadata"]["uid"])
    agents.kill_sandbox(seen.pod)
    space.until(
        "pods",
        "p",
        lambda current: rig.runs(current, "a") and rig.state(current, "a")["restartCount"],
    )
    sees(agent, space, "p", 8)


def test_recreated_pod_of_the_same_name_has_its_new_quota(space, agent):
    template = rig.pod("p", container("a", 30, 8, STAYS), restartPolicy="Always")
    template["metadata"] = {"labels": {"app": "web"}}
    made = {
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "web"}},
            "serviceName": "web",
            "template": template,
        },
    }
    space.create("statefulsets", made)
    first = space.until("pods", "web-0", lambda pod: rig.runs(pod, "a"))
    sees(agent, space, "web-0", 8)
    new = space.read("statefulsets", "web")
    limits = new["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits.update({key: "16" if key.endswith("vmemory") else "60" for key in limits})
    space.server.call("PUT", space.path("statefulsets", "web"), body=new)
    space.until(
        "pods",
        "web-0",
        lambda pod: pod["metadata"]["uid"] != first["metadata"]["uid"] and rig.runs(pod, "a"),
    )
    sees(agent, space, "web-0", 16)
    space.server.call("DELETE", space.path("statefulsets", "web"))


@pytest.mark.alone
def test_container_restarted_before_the_agent_registers_has_its_quota(space, agent, runtime):
    pod = stays(space, "p", 30, 8)
    sees(agent, space, "p", 8)
    agent.stop(signal.SIGKILL)
    agents.restart_kubelet()
    (seen,) = runtime.newest(pod["metadata"]["uid"])
    runtime.stop(seen.id, 1, kill=True)
    again = space.until(
        "pods",
        "p",
        lambda current: rig.runs(current, "a") and rig.state(current, "a")["restartCount"],
    )
    sees(agent, space, "p", 8)
    agent.start()
    now = space.read("pods", "p")
    assert rig.state(now, "a")["containerID"] == rig.state(again, "a")["containerID"]


@pytest.mark.alone
def test_restarted_kubelet_gets_the_registration_and_new_pods_run(space, agent):
    stays(space, "p", 30, 8)
    before = agent.registrations()
    agents.restart_kubelet()
    agent.wait(lambda: agent.registrations() == before + 2)
    agent.wait_for_offers()
    ended = run_as(space, "q", container("a", 30, 8))
    assert quota(ended, "a") == 8


def run_as(space, name, *containers):
    space.create("pods", rig.pod(name, *containers))
    return space.until("pods", name, rig.has_ended)


# --- invalid requests -------------------------------------------------------------------------


def test_150_vcore_fail_with_the_rule(space, agent):
    ended = run_as(space, "p", container("a", 150, 8))
    assert ended["status"]["reason"] == "UnexpectedAdmissionError"
    assert "vcore 150: above 100 it must be a multiple of 100" in ended["status"]["message"]


@pytest.mark.parametrize(
    ("vcore", "units", "words"),
    [
        pytest.param(30, 0, "vcore 30 without vmemory", id="no memory"),
        pytest.param(0, 8, "vmemory without vcore", id="no vcore"),
        pytest.param(30, 80, "of one device are asked", id="more than a device"),
    ],
)
def test_impossible_request_gets_an_event(space, agent, vcore, units, words):
    space.create("pods", rig.pod("p", container("a", vcore, units)))
    space.until_event("p", "VGPURefused", words)
    space.until_event("p", "Failed", words)


def test_vmemory_of_zero_is_treated_as_missing(space, agent):
    """Both kubelet and the agent refuse it, in either order."""
    none = container("a", 30, 0)
    none["resources"]["limits"][names.VMEMORY_RESOURCE] = "0"
    space.create("pods", rig.pod("p", none))
    space.until_event("p", "VGPURefused", "vcore 30 without vmemory")


def test_owned_pod_that_can_never_start_is_evicted(space, agent):
    template = rig.pod("p", container("a", 30, 0))
    space.create("jobs", rig.job("j", template, backoffLimit=0))
    space.until_event_of("VGPURefused", "without vmemory")
    space.until("jobs", "j", lambda job: rig.condition(job, "Failed"))


# --- a node that is full ----------------------------------------------------------------------

NO_ROOM = "there is no room on this node for now: "


@pytest.fixture
def full(space, idle):
    """A node with 60 vcore of each device in use, and 80 free in total."""
    for name in ("p0", "p1"):
        stays(space, name, 60, 8)
    return idle


def is_refused_again(agent, times):
    """Wait until the agent has refused kubelet's start of a container *times* more."""
    before = agent.log.read_text().count(NO_ROOM)
    agent.wait(lambda: agent.log.read_text().count(NO_ROOM) >= before + times)


def explained(space, pod):
    command = [runner.PYVGPU, "explain", pod, "-n", space.name]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_room(space):
    path = space.path("pods", "p0")
    space.server.call("DELETE", path, body={"gracePeriodSeconds": 0})


def test_deployments_only_pod_waits_until_there_is_room(space, full):
    template = rig.pod("p", container("a", 70, 8, STAYS), restartPolicy="Always")
    template["metadata"] = {"labels": {"app": "d"}}
    selector = {"matchLabels": {"app": "d"}}
    spec = {"replicas": 1, "selector": selector, "template": template}
    space.create("deployments", {"metadata": {"name": "d"}, "spec": spec})
    made = space.until_any("pods", "app=d", lambda current: current["spec"].get("nodeName"))
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    event = space.until_event(name, "VGPUWaits", NO_ROOM)
    for device, holder in (("gpu0", "p0"), ("gpu1", "p1")):
        words = f"{device} needs 70 vcore, has 40 free ({space.name}/{holder} 60 vcore 2GiB)"
        assert words in event["message"]
    is_refused_again(full, 3)  # about 40 s: kubelet pauses 10 to 15 s
    found = [pod for pod in space.pods() if pod["metadata"]["name"] not in ("p0", "p1")]
    assert [pod["metadata"]["uid"] for pod in found] == [uid]
    query = {"fieldSelector": f"involvedObject.name={name},reason=VGPUWaits"}
    events, _ = space.server.items(space.path("events"), query)
    assert len(events) == 1  # one event, however often kubelet retries
    text = explained(space, name)
    assert f"container a: refused by {agents.NODE}: {NO_ROOM}" in text
    assert f"waits for: room on a device of {agents.NODE}" in text
    assert f"{agents.NODE}  gpu1    a          needs 70 vcore, has 40 free" in text
    make_room(space)
    space.until("pods", name, lambda current: rig.runs(current, "a"))
    sees(full, space, name, 8)
    assert space.read("pods", name)["metadata"]["uid"] == uid
    space.server.call("DELETE", space.path("deployments", "d"))


def bind(space, name, vcore):
    """Create a pod for another scheduler, and bind it as that would: by totals, or carelessly."""
    pod = rig.pod(name, container("a", vcore, 8, STAYS), schedulerName="another")
    space.create("pods", pod)
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": agents.NODE}}
    space.server.call("POST", f"{space.path('pods', name)}/binding", body=binding)


def test_pod_that_another_scheduler_has_bound_starts(space, idle):
    bind(space, "p", 70)
    space.until("pods", "p", lambda current: rig.runs(current, "a"))
    sees(idle, space, "p", 8)


def test_pod_that_another_scheduler_has_bound_to_a_full_node_waits(space, full):
    """kubelet itself fails one that exceeds the node's total, as with any device plugin."""
    bind(space, "p", 70)
    space.until_event("p", "VGPUWaits", NO_ROOM)
    bind(space, "careless", 50)
    failed = space.until("pods", "careless", rig.has_ended)
    assert failed["status"]["reason"].startswith(("OutOf", "UnexpectedAdmissionError"))
    is_refused_again(full, 2)
    assert rig.phase(space.read("pods", "p")) == "Pending"
    make_room(space)
    space.until("pods", "p", lambda current: rig.runs(current, "a"))
    sees(full, space, "p", 8)


def test_job_waits_for_room_without_failing(space, full):
    template = rig.pod("p", container("a", 70, 8))
    space.create("jobs", rig.job("j", template, backoffLimit=1))
    made = space.until_any("pods", "batch.kubernetes.io/job-name=j", lambda _: True)
    space.until_event(made["metadata"]["name"], "VGPUWaits", NO_ROOM)
    is_refused_again(full, 3)
    (waits,) = space.pods_of("j")
    assert waits["metadata"]["uid"] == made["metadata"]["uid"]
    assert not rig.condition(space.read("jobs", "j"), "Failed")
    make_room(space)
    space.until("jobs", "j", lambda job: rig.condition(job, "Complete"))
    (pod,) = space.pods_of("j")
    assert quota(pod, "a") == 8
