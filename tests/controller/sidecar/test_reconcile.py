"""Decisions of one reconciliation; test_every_order checks their sequences."""

import datetime

import pod_objects as make
import pytest
import small_kubelet as model

from pyvgpu.controller.sidecar import actions, reconcile, sidecar_pods, termination_methods
from pyvgpu.kube import objects

ZERO = {"SIDECAR_TERMINATION_EXITS_ZERO": "true"}
PLAIN = {"command": ["/opt/log"]}


def decide(pod, seconds=1, around=None, chance=0.5):
    moment = reconcile.DecisionMoment(
        model.BEGIN + datetime.timedelta(seconds=seconds), lambda: chance
    )
    return reconcile.reconcile(
        sidecar_pods.read(pod), around or model.around(), moment, model.SETTINGS
    )


def done(*sidecars, code=0, **pod):
    return make.pod(make.container("main", make.ended(code)), *sidecars, **pod)


def after(pod, seconds=1, around=None):
    """Return the pod after the first decision."""
    return model.apply(pod, decide(pod, seconds, around).patch.operations)


def kinds(decision):
    return [type(action).__name__ for action in decision.actions]


def wake(decision):
    return next(action.seconds for action in decision.actions if isinstance(action, actions.Wake))


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        (make.pod(make.container("main", make.ended(0))), "no container is marked"),
        (make.pod(make.container("main", make.running()), make.sidecar()), "main is running"),
        (done(make.sidecar(), metadata={"deletionTimestamp": make.AT}), "being deleted"),
        (done(make.sidecar(), conditions=["DisruptionTarget"]), "evicted or preempted"),
        (done(make.sidecar(), phase="Succeeded"), "has ended"),
        (done(make.sidecar(), policy="Always"), "restartPolicy is Always"),
        (done(make.sidecar(status=make.ended(0))), "every container has ended"),
        (done(make.sidecar(status=make.ended(143))), "every container has ended"),
    ],
)
def test_pods_that_need_no_action(pod, why):
    decision = decide(pod)
    assert decision.actions == ()
    assert why in decision.why


@pytest.mark.parametrize("seconds", [604_800, 10**7, 2**63 - 1])
@pytest.mark.parametrize("more", [{}, {"environment": ZERO}], ids=["swap", "stop"])
def test_any_grace_period_begins_once(seconds, more):
    sides = [make.sidecar(name, **more) for name in ("a", "b", "c")]
    pod = done(*sides, terminationGracePeriodSeconds=seconds)
    assert decide(after(pod), seconds=2).patch is None


def test_a_write_applies_only_to_the_version_that_was_read():
    patch = decide(done(make.sidecar())).patch
    assert patch.operations[:2] == (
        {"op": "test", "path": "/metadata/uid", "value": "uid-1"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
    )


def test_a_write_does_not_apply_to_another_pod_of_the_name():
    pod = done(make.sidecar())
    patch = decide(pod).patch
    with pytest.raises(model.WrongError, match="metadata/uid"):
        model.apply({**pod, "metadata": {**pod["metadata"], "uid": "uid-2"}}, patch.operations)


def test_a_swap_changes_image_and_program_in_one_write():
    key = "pyvgpu.io/start_command.a.0"
    reference = {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
    moved = make.sidecar("log", command=["$(START_COMMAND_0)"])
    moved[0]["env"].insert(0, {"name": "START_COMMAND_0", "valueFrom": reference})
    pod = after(done(moved, metadata={"annotations": {key: "/opt/log"}}))
    assert pod["spec"]["containers"][1]["image"] == "pyvgpu/fast-exit"
    assert pod["metadata"]["annotations"][key] == "/pyvgpu-exit"
    assert pod["spec"]["containers"][0]["image"] == "main:1"


@pytest.mark.row(30)
def test_a_swap_keeps_a_sidecars_devices():
    """Kubelet calls the device plugin again for the same devices of the same pod."""
    devices = {"limits": {"pyvgpu.io/vcore": "10", "pyvgpu.io/vmemory": "4"}}
    pod = done(make.sidecar("log", command=["/bin/sh"], resources=devices))
    swapped = after(pod)["spec"]["containers"][1]
    assert swapped["image"] == "pyvgpu/fast-exit"
    assert {**swapped, "image": "log:1"} == pod["spec"]["containers"][1]


def test_a_stop_only_writes_a_record():
    before = done(make.sidecar(environment=ZERO))
    pod = after(before)
    assert pod["spec"] == before["spec"]
    record = reconcile.records.read(sidecar_pods.read(pod), "2026-11-21T10:00:00+00:00")
    assert record.entries["log"].id == "containerd://log"
    assert (record.step, record.seconds) == (1, 35)


def names_of_events(decision):
    return [action.name for action in decision.actions if isinstance(action, actions.SidecarEvent)]


def test_events_follow_the_write_and_have_unique_names():
    first, second = decide(done(make.sidecar())), decide(done(make.sidecar()), seconds=2)
    assert kinds(first) == ["Patch", "Count", "SidecarEvent"]
    assert names_of_events(first) == names_of_events(second)


def test_the_event_of_a_record_is_emitted_again():
    pod = done(make.sidecar(environment=ZERO), make.sidecar("mesh"))
    assert names_of_events(decide(pod)) == names_of_events(decide(after(pod), seconds=2))
    pod = after(done(make.sidecar(environment=ZERO)), seconds=1)
    again = decide(pod, seconds=36)
    assert names_of_events(again) == names_of_events(decide(after(pod, seconds=36), seconds=37))


def events(decision):
    return next(
        (action.reason, action.message)
        for action in decision.actions
        if isinstance(action, actions.SidecarEvent)
    )


def test_messages_of_events():
    pod = done(make.sidecar(environment=ZERO), make.sidecar("mesh"))
    assert events(decide(pod)) == (
        "SidecarsEnding",
        "the main containers are done: sidecar log is stopped the way kubelet stops containers; "
        "sidecar mesh gets an image that ends at once with 0",
    )
    pod = after(done(make.sidecar(environment=ZERO)), seconds=1)
    assert events(decide(pod, seconds=36)) == (
        "SidecarsStillRunning",
        "it did not end in time: sidecar log gets an image that ends at once with 0, and is "
        "killed when its own grace period is over",
    )


def test_a_path_gets_its_time():
    pod = after(done(make.sidecar(environment=ZERO)), seconds=1)
    decision = decide(pod, seconds=11, chance=0)
    assert (decision.patch, wake(decision)) == (None, 25)
    assert wake(decide(pod, seconds=11, chance=1)) == 26


def test_a_stop_that_times_out_becomes_a_swap():
    pod = after(done(make.sidecar(environment=ZERO)), seconds=1)
    decision = decide(pod, seconds=36)
    assert "log by hybrid" in decision.why
    pod = model.apply(pod, decision.patch.operations)
    entry = reconcile.records.read(sidecar_pods.read(pod), "2026-11-21T10:00:00+00:00").entries[
        "log"
    ]
    assert (entry.grace_seconds, entry.kill, entry.tried) == (0, True, {reconcile.Method.STOP})


def test_a_restarted_sidecar_is_swapped_at_once():
    pod = after(done(make.sidecar(environment=ZERO), policy="OnFailure"))
    pod["status"]["containerStatuses"][1] |= make.running("containerd://log-again")
    assert "log by hybrid" in decide(pod, seconds=2).why


def test_after_two_writes_an_event_says_what_blocks_the_pod():
    pod = after(after(done(make.sidecar(environment=ZERO))), seconds=36)
    decision = decide(pod, seconds=500)
    assert kinds(decision) == ["SidecarEvent", "SidecarEvent", "Count", "Wake"]
    assert "it did not end in time" in decision.why
    assert wake(decision) >= model.SETTINGS.recheck_seconds


@pytest.mark.parametrize(
    ("pod", "around", "why"),
    [
        (done(make.sidecar(**PLAIN)), None, "SIDECAR_TERMINATION_EXITS_ZERO=true"),
        (done(make.sidecar()), model.around(has_fast_exit=False), "image is not on the node"),
        (done(make.sidecar(imagePullPolicy="Always")), None, "imagePullPolicy is Always"),
        (done(make.sidecar(restartPolicy="Always")), None, "its restartPolicy decides"),
    ],
)
def test_the_event_about_a_sidecar_left_running_says_what_would_help(pod, around, why):
    decision = decide(pod, around=around)
    assert decision.patch is None
    assert why in decision.why


def test_an_image_that_arrives_late_is_used():
    pod = done(make.sidecar())
    assert decide(pod, around=model.around(has_fast_exit=False)).patch is None
    assert decide(pod, seconds=600).patch is not None


def test_a_provider_gets_a_limited_time():
    eci = {"ECI_CONTAINER_TYPE": "sidecar", "ECI_CONTAINER_IGNORE_EXIT_CODE": "true"}
    pod = done(make.sidecar(environment=eci))
    around = model.around(live=False, virtual=True)
    decision = decide(pod, seconds=10, around=around, chance=0)
    assert (decision.patch, wake(decision)) == (None, 50)
    assert "log by swap" in decide(pod, seconds=60, around=around).why


def test_a_record_of_another_pod_is_ignored():
    pod = after(done(make.sidecar()))
    pod["metadata"]["uid"] = "uid-2"
    pod["spec"]["containers"][1]["image"] = "log:1"
    assert "log by swap" in decide(pod).why


def test_a_removed_record_does_not_begin_again():
    pod = after(done(make.sidecar()))
    pod["metadata"]["annotations"] = {}
    assert decide(pod).patch is None


def test_a_jobs_backoff_limit_is_raised_before_a_swap():
    pod = done(make.sidecar(), make.sidecar("mesh"), policy="OnFailure")
    job = termination_methods.OwningJob(0, 1, 3, "train", "uid-job", "9")
    decision = decide(pod, around=model.around(job=job))
    assert kinds(decision) == ["Patch", "Count", "SidecarEvent", "Wake"]
    assert (decision.patch.resource, decision.patch.name) == ("jobs", "train")
    assert decision.patch.operations == (
        {"op": "test", "path": "/metadata/uid", "value": "uid-job"},
        {"op": "test", "path": "/metadata/resourceVersion", "value": "9"},
        {"op": "add", "path": "/spec/backoffLimit", "value": 8},
    )
    room = termination_methods.OwningJob(8, 1, 3, "train", "uid-job", "10")
    assert decide(pod, around=model.around(job=room)).patch.resource == "pods"


def full(pod):
    annotations = pod["metadata"].setdefault("annotations", {})
    annotations["note"] = "x" * (objects.MOST_ANNOTATION_BYTES - 100)
    return pod


def test_with_full_annotations_a_swap_has_no_record():
    begun = full(done(make.sidecar(environment=ZERO)))  # otherwise it would only be signaled
    pod = after(begun)
    assert pod["spec"]["containers"][1]["image"] == model.FAST_EXIT
    assert pod["metadata"]["annotations"] == begun["metadata"]["annotations"]
    assert decide(pod).patch is None
    assert decide(pod, 10_000).patch is None


def moved(*words):
    """Return a sidecar whose argv the webhook moved into annotations, and those annotations."""
    keys = [f"pyvgpu.io/start_command.a.{number}" for number in range(len(words))]
    references = [
        {
            "name": f"START_COMMAND_{number}",
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}},
        }
        for number, key in enumerate(keys)
    ]
    command = [f"$({reference['name']})" for reference in references]
    side = make.sidecar(command=command)
    side[0]["env"] += references
    return side, dict(zip(keys, words, strict=True))


def brimful(words):
    side, annotations = moved(*words)
    left = objects.MOST_ANNOTATION_BYTES - objects.annotation_bytes({**annotations, "note": ""})
    return done(side, metadata={"annotations": {**annotations, "note": "x" * left}})


def test_with_no_room_at_all_a_longer_program_replaces_arguments():
    begun = brimful(["/bin/sh", "-c", "exec log"])
    now = after(begun)["metadata"]["annotations"]
    assert objects.annotation_bytes(now) <= objects.MOST_ANNOTATION_BYTES
    assert now["pyvgpu.io/start_command.a.0"] == "/pyvgpu-exit"
    assert now["note"] == begun["metadata"]["annotations"]["note"]
    assert decide(after(begun)).patch is None


def test_a_sidecar_without_room_for_the_program_is_left_running():
    decision = decide(brimful(["/opt/log"]))
    assert decision.patch is None
    assert "no room" in decision.why
    assert decide(brimful(["/opt/log/longer"])).patch is not None


def test_with_full_annotations_an_unswappable_sidecar_is_left_running():
    decision = decide(full(done(make.sidecar(environment=ZERO, **PLAIN))))
    assert decision.patch is None
    assert "no room for a record" in decision.why


# Of no time, of a clock that was never set, and of one that is years ahead. The API server accepts
# 9999-12-31T23:59:59-01:00 from a client, and sends the last one.
ODD_TIMES = [
    None,
    "0001-01-01T00:00:00Z",
    "1970-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "10000-01-01T00:59:59Z",
]


@pytest.mark.parametrize("at", ODD_TIMES)
@pytest.mark.parametrize(
    ("more", "reason"),
    [
        pytest.param({}, "SidecarLeft", id="swap"),
        pytest.param({"environment": ZERO}, "SidecarsStillRunning", id="stop"),
    ],
)
def test_main_container_that_ended_at_an_odd_time_is_acted_upon_once(at, more, reason):
    pod = after(make.pod(make.container("main", make.ended(0, at=at)), make.sidecar(**more)))
    assert decide(pod, seconds=2).patch is None
    assert events(decide(pod, 1000))[0] == reason


@pytest.mark.parametrize("at", ODD_TIMES)
def test_provider_gets_at_most_its_time_after_an_odd_time(at):
    eci = {"ECI_CONTAINER_TYPE": "sidecar", "ECI_CONTAINER_IGNORE_EXIT_CODE": "true"}
    pod = make.pod(make.container("main", make.ended(0, at=at)), make.sidecar(environment=eci))
    around = model.around(live=False, virtual=True)
    assert "log by swap" in decide(pod, seconds=60, around=around).why


@pytest.mark.parametrize("at", ODD_TIMES)
def test_swap_without_a_record_is_reported_when_its_time_is_over_at_an_odd_time(at):
    pod = after(full(make.pod(make.container("main", make.ended(0, at=at)), make.sidecar())))
    pod["status"]["containerStatuses"][1] |= make.waiting("ImagePullBackOff", after=143)
    decision = decide(pod, 10_000)
    assert events(decision)[0] == "SidecarLeft"
