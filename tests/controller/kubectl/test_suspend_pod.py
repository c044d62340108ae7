"""`kubectl vgpu suspend` and `resume`: they set an annotation, and show the agent's answer."""

import json
import threading

import pytest
import scheduling_api as make
import waiting

from pyvgpu import names
from pyvgpu.allocator import suspensions
from pyvgpu.allocator.suspensions import Answer, PodState

GIB = 1 << 30


@pytest.fixture
def world(plugin):
    """Run the plugin against an API server with a running, a pending and an ended pod."""
    api = plugin.api
    api.put(make.path("train-0"), make.pod("train-0", 30, 8, nodeName="node-1"))
    api.put(make.path("waits"), make.pod("waits", 30, 8))
    over = make.pod("over", 30, 8, nodeName="node-1")
    api.put(make.path("over"), {**over, "status": {"phase": "Succeeded"}})
    plain = make.pod("plain", 30, 8, nodeName="node-1")
    for container in plain["spec"]["containers"]:
        container["resources"] = {}
    api.put(make.path("plain"), plain)
    return plugin


def notes(api):
    return api.read(make.path("train-0"))["metadata"].get("annotations") or {}


def put(api, answer):
    thing = api.read(make.path("train-0"))
    annotations = thing["metadata"].setdefault("annotations", {})
    annotations.pop(names.SUSPENSION_ANNOTATION, None)
    if answer is not None:
        annotations[names.SUSPENSION_ANNOTATION] = answer.dump()
    api.put(make.path("train-0"), thing)


def answering(api, requested, answer):
    """Answer like an agent once the request has this value."""

    def work():
        waiting.wait_until(lambda: notes(api).get(names.SUSPEND_ANNOTATION) == requested)
        put(api, answer)

    thread = threading.Thread(target=work)
    thread.start()
    return thread


SUSPENDED = Answer(PodState.SUSPENDED, suspensions.KEEP, GIB)


def test_suspend_and_resume_set_the_annotation(world):
    code, out, err = world("suspend", "train-0", "--keep")
    assert (code, err) == (0, "")
    assert out.startswith("pod n/train-0: its node's agent suspends it now")
    assert notes(world.api)[names.SUSPEND_ANNOTATION] == "keep"
    code, out, err = world("resume", "train-0")
    assert (code, err) == (0, "")
    assert out.startswith("pod n/train-0: its node's agent resumes it now")
    assert names.SUSPEND_ANNOTATION not in notes(world.api)


def test_without_keep_the_reservation_is_released(world):
    code, _, err = world("suspend", "train-0")
    assert (code, err) == (0, "")
    assert notes(world.api)[names.SUSPEND_ANNOTATION] == suspensions.RELEASE


def test_waits_for_the_agents_answer(world):
    agent = answering(world.api, suspensions.KEEP, SUSPENDED)
    code, out, err = world("suspend", "train-0", "--keep", "--wait")
    agent.join()
    assert (code, out, err) == (0, "pod n/train-0: suspended: 1GiB moved to host memory\n", "")
    agent = answering(world.api, None, None)
    code, out, err = world("resume", "train-0", "--wait")
    agent.join()
    assert (code, out, err) == (0, "pod n/train-0: resumed\n", "")


def test_refusals_of_the_agent_are_errors(world):
    agent = answering(
        world.api, suspensions.KEEP, Answer(requested=suspensions.KEEP, message="it is stopped")
    )
    code, out, err = world("suspend", "train-0", "--keep", "--wait")
    agent.join()
    assert (code, out, err) == (69, "", "pyvgpu: pod n/train-0: it is stopped\n")
    put(world.api, SUSPENDED)
    agent = answering(world.api, None, Answer(PodState.SUSPENDED, "", GIB, "1MiB is free"))
    code, out, err = world("resume", "train-0", "--wait")
    agent.join()
    assert (code, out, err) == (69, "", "pyvgpu: pod n/train-0: 1MiB is free\n")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("suspend", "waits", "--keep"), 64, "has no node yet; `kubectl vgpu explain waits`"),
        (("suspend", "over", "--keep"), 64, "pod n/over: has ended, and holds no device"),
        (("resume", "plain"), 64, "requests no share of a device (pyvgpu.io/vcore)"),
        (("resume", "absent"), 69, "POD absent: there is none in namespace n"),
        (("resume", "train-0", "--timeout", "0"), 64, "must be whole seconds from 1 to 3600"),
        (
            ("suspend", "train-0", "--keep", "--wait", "--timeout", "1"),
            69,
            "agent of node node-1 has not done it within 1 s, and may do it later; it suspends "
            "pods with the chart's value agent.suspend=true",
        ),
    ],
)
def test_errors_say_what_to_do(world, words, code, said):
    found, out, err = world(*words)
    assert (found, out) == (code, "")
    assert said in err


@pytest.mark.parametrize("words", [("suspend", "train-0", "--keep"), ("resume", "train-0")])
def test_annotation_never_is_neither_replaced_nor_removed(world, words):
    thing = world.api.read(make.path("train-0"))
    thing["metadata"]["annotations"] = {names.SUSPEND_ANNOTATION: suspensions.NEVER}
    world.api.put(make.path("train-0"), thing)
    code, out, err = world(*words)
    assert (code, out) == (64, "")
    assert "`kubectl annotate pod train-0 -n n pyvgpu.io/suspend-` removes it" in err
    assert notes(world.api)[names.SUSPEND_ANNOTATION] == suspensions.NEVER


def test_missing_permission_is_named(world):
    world.api.refusals["PATCH"] = (403, "pods is forbidden")
    code, out, err = world("suspend", "train-0", "--keep")
    assert (code, out) == (69, "")
    assert "you may not annotate it: this needs permission to `patch pods` in namespace n" in err


def test_explain_shows_the_state(world):
    put(world.api, SUSPENDED)
    _, out, _ = world("explain", "train-0")
    assert (
        "suspended: 1GiB of its device memory are in host memory; `kubectl vgpu resume train-0 "
        "-n n` resumes it\n"
    ) in out
    document = json.loads(world("explain", "train-0", "--json")[1])
    assert document["suspension"] == {"state": "suspended", "hostBytes": GIB, "message": ""}
    put(world.api, Answer(requested=suspensions.KEEP, message="it is stopped"))
    assert "not suspended: it is stopped\n" in world("explain", "train-0")[1]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"state": "asleep"}', '{"hostBytes": "much"}'])
def test_unreadable_answer_counts_as_none(text):
    assert suspensions.answer({names.SUSPENSION_ANNOTATION: text}) == Answer()
