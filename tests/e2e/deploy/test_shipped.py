"""A Job with a sidecar ends with the shipped manifests and images, and only their RBAC rules."""

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
def test_job_with_a_sidecar_that_ignores_every_signal_ends(space, shipped, policy):
    create(space, MAIN, sidecars.sidecar(rig.IGNORES_TERM), restartPolicy=policy)
    pod = sidecars.has_ended(space)
    assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 0)
    assert pod["spec"]["containers"][1]["image"] == FAST_EXIT
    assert pod["metadata"]["labels"].items() >= transform.MANAGED.items()


def test_sidecar_that_exits_with_0_only_gets_a_signal(space, shipped):
    create(space, MAIN, sidecars.sidecar(rig.ENDS_WITH_0, EXITS_ZERO="true"))
    pod = sidecars.has_ended(space)
    assert (rig.exit_code(pod, "side"), rig.state(pod, "side")["restartCount"]) == (0, 0)
    assert rig.state(pod, "side")["image"] == rig.BUSYBOX


def test_process_sees_the_same_arguments(space, shipped):
    arguments = ["", "a b", "$(X)", "$$(X)", "$$$$", "é\n\t'\"", "$(UNSET)", "-c"]
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
    seen = ["", "a b", "$v", "$(X)", "$$", "é\n\t'\"", "$(UNSET)", "-c"]
    length = sum(len(argument.encode()) + 1 for argument in seen)
    assert int(rig.state(pod, "main")["state"]["terminated"]["message"].split()[0]) == length


def test_dry_run_shows_the_changed_pod(space, shipped):
    pod = rig.pod("dry", MAIN, sidecars.sidecar(rig.RUNS))
    path = space.path("pods")
    dry = space.server.call("POST", path, {"dryRun": "All"}, pod)
    assert dry["spec"]["containers"][1]["command"][0] == "$(START_COMMAND_0)"
    assert not space.server.items(path, {})[0]


def test_pod_with_unsupported_sidecars_gets_a_warning_at_creation(space, shipped):
    pod = rig.pod("p", MAIN, sidecars.sidecar(rig.RUNS), restartPolicy="Always")
    command = ["kubectl", "create", "--namespace", space.name, "--dry-run=server", "-f", "-"]
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", **pod})
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert "Warning: sidecars are not ended: restartPolicy is Always" in done.stderr


def test_pods_of_pyvgpus_own_namespace_skip_the_webhook(shipped):
    pod = rig.pod("own", MAIN, sidecars.sidecar(rig.RUNS))
    dry = shipped.server.call("POST", shipped.path("pods"), {"dryRun": "All"}, pod)
    assert "labels" not in dry["metadata"]


def scale(shipped, replicas):
    made.kubectl("scale", "deployment/webhook", f"--replicas={replicas}")
    made.roll_out(shipped)


@pytest.fixture(scope="module")
def away(shipped):
    """Scale the webhook to zero; the last test here scales it up again."""
    scale(shipped, 0)
    yield
    scale(shipped, 2)


@pytest.mark.alone
@pytest.mark.row(19)
def test_without_the_webhook_pods_are_created_unchanged(space, away):
    side = sidecars.sidecar(rig.IGNORES_TERM)
    side["command"] = ["/bin/sh", *side["command"][2:]]  # also exists in the fast-exit image
    template = rig.pod("p", MAIN, side)
    template["metadata"]["labels"] = dict(transform.MANAGED)
    space.create("jobs", rig.job("j", template))
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


def unanswered():
    """Return how often the API server has admitted a pod because the webhook did not answer.

    Only the entry for sidecars fails open.
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
def test_without_the_webhook_the_api_server_calls_it_only_for_marked_pods(space, away):
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
def test_job_waits_for_the_webhook_if_it_fails_closed(space, shipped, away):
    with made.failing_closed(shipped):
        waiting.wait_until(lambda: not is_admitted(space))  # until the API server has the change
        create(space, MAIN, sidecars.sidecar(rig.ENDS_WITH_143))
        space.until_event("j", "FailedCreate", "sidecars.pyvgpu.io")
        assert not space.pods_of("j")
        scale(shipped, 2)
        pod = sidecars.has_ended(space)
    assert (rig.exit_code(pod, "main"), rig.exit_code(pod, "side")) == (0, 0)


def test_namespace_can_select_native_sidecars(shipped):
    with rig.space(made.NATIVE) as space:
        create(space, MAIN, sidecars.sidecar(rig.ENDS_WITH_143))
        pod = sidecars.has_ended(space)
    (native,) = pod["spec"]["initContainers"]
    assert (native["name"], native["restartPolicy"]) == ("side", "Always")
    assert native["command"][0] == "/bin/busybox"
    assert names.SIDECAR_LABEL not in pod["metadata"]["labels"]
    assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 143)


@pytest.mark.alone
def test_no_component_was_refused_a_request(shipped):
    logs = made.logs()
    assert "acquired lease" in logs
    assert " 403 " not in logs
    assert "Traceback" not in logs
