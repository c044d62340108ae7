"""Image swaps in a running pod on request, and restoring the old image."""

import datetime
import json

import pod_objects as make
import pytest
import small_kubelet as model
from hypothesis import given
from hypothesis import strategies as st

from pyvgpu.controller.sidecar import reconcile, sidecar_pods, swaps
from pyvgpu.kube import objects

KEY = "pyvgpu.io/start_command.a.0"


def pod(swap=None, annotations=None, policy="Always", **more):
    reference = {"fieldRef": {"fieldPath": f"metadata.annotations['{KEY}']"}}
    moved = make.sidecar("log", command=["$(START_COMMAND_0)"])
    moved[0]["env"].insert(0, {"name": "START_COMMAND_0", "valueFrom": reference})
    asked = {} if swap is None else {"pyvgpu.io/swap": json.dumps(swap)}
    return make.pod(
        make.container("main", make.running()),
        moved,
        make.sidecar("mesh", command=["/mesh"]),
        policy=policy,
        metadata={"annotations": {KEY: "/bin/old", **asked, **(annotations or {})}},
        **more,
    )


HERE = dict.fromkeys(["new:2", "new:3", "mesh:1", "mesh:2", "log:1"], True)


def decide(document, **around):
    moment = reconcile.DecisionMoment(model.BEGIN + datetime.timedelta(seconds=1), lambda: 0.5)
    known = model.around(**{"images": HERE, **around})
    return reconcile.reconcile(sidecar_pods.read(document), known, moment, model.SETTINGS)


def after(document):
    return model.apply(document, decide(document).patch.operations)


def test_image_and_program_are_swapped_and_restored():
    begun = pod({"log": {"image": "new:2", "program": "/bin/new"}})
    swapped = after(begun)
    assert swapped["spec"]["containers"][1]["image"] == "new:2"
    assert swapped["metadata"]["annotations"][KEY] == "/bin/new"
    assert decide(swapped).patch is None
    del swapped["metadata"]["annotations"]["pyvgpu.io/swap"]
    back = after(swapped)
    assert back["spec"] == begun["spec"]
    assert back["metadata"]["annotations"] == {KEY: "/bin/old"}
    assert decide(back).patch is None


def test_after_two_swaps_the_first_image_is_restored():
    document = after(pod({"log": {"image": "new:2"}}))
    document["metadata"]["annotations"]["pyvgpu.io/swap"] = '{"log": {"image": "new:3"}}'
    document = after(document)
    assert document["spec"]["containers"][1]["image"] == "new:3"
    document["metadata"]["annotations"]["pyvgpu.io/swap"] = "{}"
    assert after(document)["spec"]["containers"][1]["image"] == "log:1"


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "Never"])
def test_swaps_work_with_any_restart_policy(policy):
    assert decide(pod({"mesh": {"image": "mesh:2"}}, policy=policy)).patch is not None


@pytest.mark.parametrize(
    ("swap", "why"),
    [
        ({"main": {"image": "new:2"}}, "'main' is not a container that is marked"),
        ({"unknown": {"image": "new:2"}}, "'unknown' is not a container that is marked"),
        (
            {"mesh": {"image": "new:2", "program": "/x"}},
            "the program of 'mesh' was not transformed",
        ),
        ({"log": {"image": ""}}, "the image of 'log' must be a name"),
        ({"log": {"image": 7}}, "the image of 'log' must be a name"),
        ({"log": {"image": " new:2"}}, "the image of 'log' must be a name"),
        ({"log": {"image": "\ud800"}}, "the image of 'log' must be a name"),
        ({"log": {"image": "a", "program": "\ud800"}}, "the program of 'log' must be a path"),
        ({"log": {"image": "a", "program": "/\0"}}, "the program of 'log' must be a path"),
        ({"log": {"image": "a", "program": 7}}, "the program of 'log' must be a path"),
        ({"log": {"image": "a", "pull": "yes"}}, "the pull of 'log' must be true or false"),
        ({"log": {"picture": "a"}}, "must have an image"),
        ({"log": "new:2"}, "must have an image"),
        (["log"], "must be a JSON object"),
    ],
)
def test_an_invalid_request_is_refused_with_a_reason(swap, why):
    decision = decide(pod(swap))
    assert decision.patch is None
    assert why in decision.why
    assert [action.warning for action in decision.actions] == [True]


ASKED = {"mesh": {"image": "mesh:2"}}


@pytest.mark.parametrize(
    ("here", "live", "why"),
    [
        pytest.param({"mesh:2": False}, True, "mesh:2 is not known to be on node-1", id="no"),
        pytest.param({}, False, "mesh:2 is not known to be on node-1", id="unknown"),
    ],
)
def test_no_container_is_ended_for_a_missing_image(here, live, why):
    decision = decide(pod(ASKED), images=here, live=live)
    assert decision.patch is None
    assert why in decision.why
    event, wake = decision.actions
    assert (event.reason, '"pull": true' in event.message) == ("SwapRefused", True)
    assert wake.seconds <= 10  # the image may be pulled meanwhile
    assert decide(pod(ASKED), images={"mesh:2": True}, live=live).patch is not None


def swapped_back(**asked):
    """Return a pod whose sidecar was swapped and whose user has removed the request."""
    begun = pod({"mesh": {**ASKED["mesh"], **asked}})
    document = model.apply(begun, decide(begun).patch.operations)
    del document["metadata"]["annotations"]["pyvgpu.io/swap"]
    return document


def test_no_container_is_ended_to_restore_a_missing_image():
    document = swapped_back()
    assert swaps.asked_for(sidecar_pods.read(document)) == {"mesh:1"}  # so the node part checks it
    decision = decide(document, images={"mesh:2": True, "mesh:1": False})
    assert decision.patch is None
    assert "mesh:1 is not known to be on node-1" in decision.why
    assert after(document)["spec"]["containers"][2]["image"] == "mesh:1"


def test_permission_to_pull_covers_the_old_image():
    document = swapped_back(pull=True)
    decision = decide(document, images={"mesh:1": False})
    back = model.apply(document, decision.patch.operations)
    assert back["spec"]["containers"][2]["image"] == "mesh:1"


def test_waiting_for_the_node_part_makes_no_event():
    (wake,) = decide(pod(ASKED), images={}).actions
    assert wake.seconds <= 1


def test_pull_policy_always_prevents_a_swap_even_if_the_image_is_present():
    document = pod(ASKED)
    document["spec"]["containers"][2]["imagePullPolicy"] = "Always"
    decision = decide(document)
    assert decision.patch is None
    assert "the imagePullPolicy of 'mesh' is Always" in decision.why


@pytest.mark.parametrize(
    "around",
    [
        pytest.param({"images": {}, "virtual": True, "live": False}, id="a virtual node pulls"),
        pytest.param({"images": {"mesh:2": False}, "allowed": True}, id="the user allows it"),
        pytest.param({"images": {"mesh:2": False}, "runs": False}, id="nothing runs"),
    ],
)
def test_an_image_is_pulled_if_it_is_harmless_or_allowed(around):
    asked = {"mesh": {**ASKED["mesh"], "pull": around.pop("allowed", False)}}
    document = pod(asked)
    if not around.pop("runs", True):
        document["status"]["containerStatuses"][2] |= make.waiting("ImagePullBackOff")
    operations = decide(document, **around).patch.operations
    after = model.apply(document, operations)
    assert after["spec"]["containers"][2]["image"] == "mesh:2"
    kept = json.loads(after["metadata"]["annotations"]["pyvgpu.io/swapped"])["mesh"]
    assert kept == {"image": "mesh:1"} | ({"pull": True} if asked["mesh"]["pull"] else {})


@pytest.mark.parametrize(
    "more",
    [
        {"phase": "Succeeded"},
        {"metadata": {"deletionTimestamp": make.AT, "annotations": {"pyvgpu.io/swap": "{"}}},
    ],
)
def test_an_ended_pod_is_left_alone(more):
    begun = pod({"log": {"image": "new:2"}})
    document = {**begun, "metadata": {**begun["metadata"], **more.pop("metadata", {})}}
    document["status"] = {**begun["status"], **more}
    assert decide(document).actions == ()


def test_ending_sidecars_has_precedence_over_a_swap():
    document = pod({"log": {"image": "new:2"}}, policy="Never")
    document["status"]["containerStatuses"][0] = {"name": "main", **make.ended(0)}
    assert after(document)["spec"]["containers"][1]["image"] == model.FAST_EXIT


def filled(document, left):
    """Fill the annotations of a pod except for *left* bytes."""
    annotations = document["metadata"].setdefault("annotations", {})
    there = objects.annotation_bytes(annotations)
    annotations["note"] = "x" * (objects.MOST_ANNOTATION_BYTES - there - len("note") - left)
    return document


def test_a_swap_without_room_in_the_annotations_is_refused():
    begun = {"mesh": {"image": "mesh:2"}}
    written = objects.annotation_bytes({"pyvgpu.io/swapped": '{"mesh": {"image": "mesh:1"}}'})
    assert decide(filled(pod(begun), written)).patch is not None
    decision = decide(filled(pod(begun), written - 1))
    assert decision.patch is None
    assert "no room" in decision.why


@pytest.mark.parametrize("kept", ["{}", "[]", '{"log": 7}', '{"mesh": {"image": "evil"}}', "\0"])
def test_a_forged_swapped_annotation_is_no_request(kept):
    """At most it restores an image: a user that may write annotations may write images, too."""
    decision = decide(pod(annotations={"pyvgpu.io/swapped": kept}), images={"evil": True})
    images = [
        operation
        for operation in (decision.patch.operations if decision.patch else ())
        if "image" in operation["path"]
    ]
    assert [image["value"] for image in images] == (["evil"] if "evil" in kept else [])


def test_containers_with_a_common_name_prefix_are_not_confused():
    names = ["x" * 62 + end for end in "ab"]
    document = make.pod(
        make.container("main", make.running()),
        *(make.sidecar(name, command=[f"/{name}"]) for name in names),
        policy="Always",
        metadata={"annotations": {"pyvgpu.io/swap": json.dumps({names[1]: {"image": "new:2"}})}},
    )
    images = [container["image"] for container in after(document)["spec"]["containers"]]
    assert images == ["main:1", f"{names[0]}:1", "new:2"]


@given(st.text(), st.text())
def test_no_annotation_makes_a_swap_fail(swap, swapped):
    decide(pod(annotations={"pyvgpu.io/swap": swap, "pyvgpu.io/swapped": swapped}))
