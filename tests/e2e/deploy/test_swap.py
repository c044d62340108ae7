"""Swaps of sidecar images in running pods, through the webhook and the controller."""

import json
import subprocess

import pytest
import rig
import sidecars

from pyvgpu import names
from pyvgpu.controller.webhook import transform
from pyvgpu.kube import apiserver, objects

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

OTHER = "localhost/busybox:2"
MAIN = rig.container("main", "sleep 1000")


@pytest.fixture(scope="module", autouse=True)
def _other_image():
    tag(OTHER)


def tag(name):
    """Tag an image on the node with this name."""
    command = ["ctr", "images", "tag", "--force", rig.BUSYBOX, name]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def runs(image, restarts):
    """Return a check that the sidecar runs *image* (by spec: the status merges equal images)."""

    def is_so(pod):
        restarted = rig.state(pod, "side")["restartCount"] == restarts
        return (
            pod["spec"]["containers"][1]["image"] == image and restarted and rig.runs(pod, "side")
        )

    return is_so


def ask(space, request, pod="p"):
    annotation = None if request is None else json.dumps(request)
    body = {"metadata": {"annotations": {names.SWAP_ANNOTATION: annotation}}}
    space.server.call("PATCH", space.path("pods", pod), body=body, kind=apiserver.MERGE_PATCH)


@pytest.mark.parametrize("policy", ["Always", "Never"])
def test_image_is_swapped_and_restored_while_the_pod_runs(space, shipped, policy):
    space.create("pods", rig.pod("p", MAIN, sidecars.sidecar(rig.RUNS), restartPolicy=policy))
    begun = space.until("pods", "p", runs(rig.BUSYBOX, 0))
    ask(space, {"side": {"image": OTHER}})
    swapped = space.until("pods", "p", runs(OTHER, 1))
    kept = json.loads(swapped["metadata"]["annotations"][names.SWAPPED_ANNOTATION])
    assert kept["side"]["image"] == rig.BUSYBOX
    ask(space, None)
    back = space.until("pods", "p", runs(rig.BUSYBOX, 2))
    assert rig.state(back, "main") == rig.state(begun, "main")
    assert back["spec"]["containers"] == begun["spec"]["containers"]
    assert names.SWAPPED_ANNOTATION not in (back["metadata"].get("annotations") or {})


def test_program_is_swapped_with_the_image(space, shipped):
    side = {**sidecars.sidecar(""), "command": ["/bin/sleep", "1000"]}
    space.create("pods", rig.pod("p", MAIN, side))
    space.until("pods", "p", runs(rig.BUSYBOX, 0))
    ask(space, {"side": {"image": OTHER, "program": "/bin/false"}})
    space.until("pods", "p", lambda pod: rig.exit_code(pod, "side") == 1)


def test_swap_waits_until_the_node_has_the_image(space, shipped):
    late = "localhost/late:1"
    space.create("pods", rig.pod("p", MAIN, sidecars.sidecar(rig.RUNS)))
    begun = space.until("pods", "p", runs(rig.BUSYBOX, 0))
    ask(space, {"side": {"image": late}})
    space.until_event("p", "SwapRefused", f"{late} is not known to be on {sidecars.NODE}")
    assert rig.state(space.read("pods", "p"), "side") == rig.state(begun, "side")
    try:
        tag(late)
        space.until("pods", "p", runs(late, 1))
    finally:
        subprocess.run(["ctr", "images", "remove", late], check=True)


def test_swapped_sidecar_ends_with_its_job(space, shipped):
    main = rig.container("main", "until [ -e /work/go ]; do sleep 0.1; done")
    mounted = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    side = sidecars.sidecar(
        f"trap '' TERM; echo >> /work/n; [ $(busybox wc -l < /work/n) -lt 2 ] "
        f"|| touch /work/go; {rig.RUNS}"
    )
    template = rig.pod(
        "p", {**main, **mounted}, {**side, **mounted}, volumes=[{"name": "work", "emptyDir": {}}]
    )
    space.create("jobs", rig.job("j", template))
    begun = space.until_any("pods", f"{sidecars.JOB}=j", runs(rig.BUSYBOX, 0))
    ask(space, {"side": {"image": OTHER}}, begun["metadata"]["name"])
    pod = sidecars.has_ended(space)
    assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 0)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        ({"main": {"image": OTHER}}, "not a container that is marked"),
        ({"side": {"picture": OTHER}}, "must have an image"),
        ([], "must be a JSON object"),
    ],
)
def test_invalid_swap_request_gets_an_event(space, shipped, request_, why):
    space.create("pods", rig.pod("p", MAIN, sidecars.sidecar(rig.RUNS)))
    ask(space, request_ or "x")
    event = space.until_event("p", "SwapRefused", why)
    assert "a valid request is" in event["message"]
    assert space.read("pods", "p")["spec"]["containers"][1]["image"] == rig.BUSYBOX


@pytest.mark.row(27)
def test_pod_with_full_annotations_is_admitted(space, shipped):
    template = rig.pod("p", rig.container("main", "sleep 1"), sidecars.sidecar(rig.ENDS_WITH_0))
    note = "x" * (objects.MOST_ANNOTATION_BYTES - 100)
    template["metadata"]["annotations"] = {"note": note}
    side = template["spec"]["containers"][1]
    side["command"] = ["/bin/sh", *side["command"][2:]]  # there is no room to move the command
    space.create("jobs", rig.job("j", template))
    pod = sidecars.has_ended(space)
    assert pod["metadata"]["labels"].items() >= transform.MANAGED.items()
    assert pod["metadata"]["annotations"]["note"] == note
    assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 0)
