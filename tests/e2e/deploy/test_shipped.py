"""The manifests and images that are shipped: a Job with a sidecar ends, with no other rights."""

import json
import re
import subprocess

import pytest
import release
import rig
import shipped as made
import sidecars
import waiting

from pyvgpu import names
from pyvgpu.controller.webhook import transform
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

FAST_EXIT = f"localhost/pyvgpu-fast-exit:{release.version()}"
MAIN = rig.container("main", "sleep 1")


def create(space, *containers, **spec):
    space.create("jobs", rig.job("j", rig.pod("p", *containers, **spec)))


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_job_whose_sidecar_ignores_every_signal_ends(space, shipped, policy):
    create(space, MAIN, sidecars.sidecar(rig.IGNORES_TERM), restartPolicy=policy)
    pod = sidecars.has_ended(space)
    assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 0)
    assert pod["spec"]["containers"][1]["image"] == FAST_EXIT
    assert pod["metadata"]["labels"].items() >= transform.MANAGED.items()


def test_a_sidecar_that_ends_with_0_is_only_told(space, shipped):
    create(space, MAIN, sidecars.sidecar(rig.ENDS_WITH_0, EXITS_ZERO="true"))
    pod = sidecars.has_ended(space)
    assert (rig.exit_code(pod, "side"), rig.state(pod, "side")["restartCount"]) == (0, 0)
    assert rig.state(pod, "side")["image"] == rig.BUSYBOX


def test_the_process_sees_the_same_arguments(space, shipped):
    arguments = ["", "a b", "$(X)", "$$(X)", "$$$$", "é\n\t'\"", "$(NOBODY)", "-c"]
    mounted = {"volumeMounts": [{"name": "work", "mountPath": "/work"}]}
    said = 'for it; do printf "%s\\0" "$it"; done > /work/.$0; busybox mv /work/.$0 /work/$0'

    def writes(name, *variables):
        command = ["/bin/busybox", "sh", "-c", said, name]
        env = [{"name": "X", "value": "$v"}, *variables]
        return {**rig.container(name, ""), **mounted, "command": command, "env": env}

    marked = {"name": names.SIDECAR_VARIABLE, "value": "true"}
    compares = (
        "until [ -e /work/plain ] && [ -e /work/moved ]; do sleep 0.1; done; "
        "busybox cmp /work/plain /work/moved && busybox wc -c /work/plain > /dev/termination-log"
    )
    create(
        space,
        rig.container("main", compares, **mounted),
        {**writes("plain"), "args": arguments},
        {**writes("moved", marked), "args": arguments},
        volumes=[{"name": "work", "emptyDir": {}}],
    )
    pod = sidecars.has_ended(space)
    assert pod["spec"]["containers"][2]["command"][0] == "$(START_COMMAND_0)"
    seen = ["", "a b", "$v", "$(X)", "$$", "é\n\t'\"", "$(NOBODY)", "-c"]
    length = sum(len(it.encode()) + 1 for it in seen)
    assert int(rig.state(pod, "main")["state"]["terminated"]["message"].split()[0]) == length


def test_a_dry_run_shows_what_would_become_of_a_pod(space, shipped):
    pod = rig.pod("dry", MAIN, sidecars.sidecar(rig.RUNS))
    path = space.path("pods")
    dry = space.server.call("POST", path, {"dryRun": "All"}, pod)
    assert dry["spec"]["containers"][1]["command"][0] == "$(START_COMMAND_0)"
    assert not space.server.items(path, {})[0]


def test_a_pod_that_cannot_be_done_anything_for_says_so_when_it_is_created(space, shipped):
    pod = rig.pod("p", MAIN, sidecars.sidecar(rig.RUNS), restartPolicy="Always")
    command = ["kubectl", "create", "--namespace", space.name, "--dry-run=server", "-f", "-"]
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", **pod})
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert "Warning: sidecars are not ended: restartPolicy is Always" in done.stderr


def test_pods_of_our_own_namespace_are_not_asked_about(shipped):
    pod = rig.pod("own", MAIN, sidecars.sidecar(rig.RUNS))
    dry = shipped.server.call("POST", shipped.path("pods"), {"dryRun": "All"}, pod)
    assert "labels" not in dry["metadata"]


def scale(shipped, replicas):
    made.kubectl("scale", "deployment/webhook", f"--replicas={replicas}")
    made.roll_out(shipped)


@pytest.fixture(scope="module")
def away(shipped):
    """Take the webhook away; the last test here brings it back."""
    scale(shipped, 0)
    yield
    scale(shipped, 2)


@pytest.mark.alone
@pytest.mark.row(19)
def test_while_the_webhook_is_away_pods_are_created_as_they_are(space, away):
    side = sidecars.sidecar(rig.IGNORES_TERM)
    side["command"] = ["/bin/sh", *side["command"][2:]]  # the fast-exit image has it too
    template = rig.pod("p", MAIN, side)
    template["metadata"]["labels"] = dict(transform.MANAGED)
    space.create("jobs", rig.job("j", template))
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


def unanswered():
    """Return how often the API server has admitted a pod because our webhook did not answer.

    Of the entry for sidecars, which is the one that may be away.
    """
    figures = made.kubectl("get", "--raw", "/metrics")
    pattern = r"^apiserver_admission_webhook_fail_open_count\{([^}]*)\} (\S+)$"
    return sum(
        float(value)
        for labels, value in re.findall(pattern, figures, re.MULTILINE)
        if 'name="sidecars.pyvgpu.io"' in labels
    )


@pytest.mark.alone
@pytest.mark.row(19)
def test_while_the_webhook_is_away_the_api_server_asks_about_marked_pods_alone(space, away):
    marked = rig.pod("marked", MAIN, sidecars.sidecar(rig.RUNS))
    plain = [rig.pod(f"p{number}", MAIN) for number in range(5)]
    before = unanswered()
    for pod in plain:
        space.create("pods", pod)
    assert unanswered() == before
    space.server.call("POST", space.path("pods"), {"dryRun": "All"}, marked)  # the control
    assert unanswered() > before


def is_admitted(space):
    pod = rig.pod("p", MAIN, sidecars.sidecar(rig.RUNS))
    try:
        space.server.call("POST", space.path("pods"), {"dryRun": "All"}, pod)
    except apiserver.ServerError as exc:
        return "sidecars.pyvgpu.io" not in str(exc)
    return True


@pytest.mark.alone
@pytest.mark.row(19)
def test_where_pods_are_to_wait_for_the_webhook_their_job_does(space, shipped, away):
    with made.failing_closed(shipped):
        waiting.wait_until(lambda: not is_admitted(space))  # the API server has heard of it
        create(space, MAIN, sidecars.sidecar(rig.ENDS_WITH_143))
        space.until_event("j", "FailedCreate", "sidecars.pyvgpu.io")
        assert not space.pods_of("j")
        scale(shipped, 2)
        pod = sidecars.has_ended(space)
    assert (rig.exit_code(pod, "main"), rig.exit_code(pod, "side")) == (0, 0)


def test_where_a_namespace_wants_native_sidecars_it_gets_them(shipped):
    with rig.space(made.NATIVE) as space:
        create(space, MAIN, sidecars.sidecar(rig.ENDS_WITH_143))
        pod = sidecars.has_ended(space)
    (native,) = pod["spec"]["initContainers"]
    assert (native["name"], native["restartPolicy"]) == ("side", "Always")
    assert native["command"][0] == "/bin/busybox"
    assert names.SIDECAR_LABEL not in pod["metadata"]["labels"]
    assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 143)


@pytest.mark.alone
def test_no_part_was_refused_anything(shipped):
    logs = made.logs()
    assert "holds lease" in logs
    assert " 403 " not in logs
    assert "Traceback" not in logs
