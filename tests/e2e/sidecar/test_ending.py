"""Jobs whose sidecars we end: the controller and the node part as processes, in a real cluster."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import rig
import runner
import small_kubelet

from pyvgpu import names
from pyvgpu.controller.sidecar import nodes, settings
from pyvgpu.controller.webhook import transform

pytestmark = pytest.mark.e2e

RIGHTS = Path(__file__).parents[3] / "docs/examples/sidecar-rbac.yaml"  # and no others
NODE = "node-1"
MAIN = "sleep 1"
ADMISSION = transform.Admission(settings.Settings(fast_exit=settings.FastExit(rig.FAST_EXIT)))
LONG = 10 * rig.SECONDS


class Parts:
    """The processes, which can be killed and started again."""

    def __init__(self, folder):
        self._folder = folder
        self._running = {}
        self._ours = rig.everybodys("pyvgpu")

    def start(self, part, *options):
        command = [runner.PYVGPU, f"sidecar-{part}", *options]
        mine = self._folder / f"{part}.kubeconfig"
        rig.write_kubeconfig(mine, "pyvgpu", f"sidecar-{part}")
        common = ["--kubeconfig", mine, "--fast-exit-image", rig.FAST_EXIT, "--verbose"]
        with (self._folder / f"{part}.log").open("ab") as log:
            self._running[part] = subprocess.Popen([*command, *common], stdout=log, stderr=log)

    def start_controller(self):
        self.start("controller")
        self._ours.until(
            "leases", "pyvgpu-sidecar-controller", lambda it: it["spec"]["holderIdentity"]
        )

    def start_node(self):
        socket = os.environ["CONTAINERD_ADDRESS"]
        folder = str(self._folder / "begun")
        self.start("node", "--node", NODE, "--runtime", socket, "--folder", folder)
        self._ours.until(
            "leases",
            f"pyvgpu-sidecar-{NODE}",
            lambda it: it["metadata"]["annotations"][nodes.FAST_EXIT_ANNOTATION] == rig.FAST_EXIT,
        )

    def kill(self, part):
        self._running[part].kill()
        self._running.pop(part).wait()

    def wait_for_mark(self, container):
        """Wait until the node part has begun to stop a container."""
        mark = self._folder / "begun" / container.rpartition("/")[2]
        end = time.monotonic() + rig.SECONDS
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.01)
        assert mark.exists()

    def end(self):
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        return [process.wait(30) for process in self._running.values()]


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    subprocess.run(["kubectl", "apply", "-f", RIGHTS], check=True, capture_output=True)
    made = Parts(tmp_path_factory.mktemp("parts"))
    try:
        made.start_controller()
        made.start_node()
        yield made
    finally:
        codes = made.end()
    assert codes == [0, 0]


def sidecar(script, **wishes):
    """A marked container, which starts by a name that the fast-exit image has not."""
    variables = {names.SIDECAR_VARIABLE: "true"} | {
        f"{names.SIDECAR_VARIABLE}_{name}": value for name, value in wishes.items()
    }
    made = rig.container("side", script)
    made["command"] = ["/bin/busybox", *made["command"][1:]]
    made["command"].insert(1, "sh")
    made["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return made


def created(space, *containers, job=None, **spec):
    """Create a Job of a pod that went through what the webhook does."""
    template = rig.pod("p", *containers, **spec)
    done = transform.transform(template, space.name, ADMISSION)
    assert not done.warnings
    template = small_kubelet.apply(template, done.operations)
    space.create("jobs", rig.job("j", template, **(job or {})))


def ended(space, condition="Complete"):
    """Return the Job's one pod when the Job has ended."""
    space.until("jobs", "j", lambda it: rig.condition(it, condition))
    (pod,) = space.pods_of("j")
    return pod


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_a_sidecar_that_ignores_every_signal_does_not_keep_its_job(space, parts, policy):
    created(space, rig.container("main", MAIN), sidecar(rig.IGNORES_TERM), restartPolicy=policy)
    pod = ended(space)
    side = rig.state(pod, "side")
    assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 0)
    assert side["lastState"]["terminated"]["exitCode"] == 137


def test_a_job_that_could_not_bear_a_restart_bears_the_one_of_its_sidecar(space, parts):
    created(
        space,
        rig.container("main", MAIN),
        sidecar(rig.ENDS_WITH_143),
        restartPolicy="OnFailure",
        job={"backoffLimit": 0},
    )
    assert rig.phase(ended(space)) == "Succeeded"
    assert space.read("jobs", "j")["spec"]["backoffLimit"] == 2


def test_a_sidecar_that_ends_with_0_is_only_told(space, parts):
    created(space, rig.container("main", MAIN), sidecar(rig.ENDS_WITH_0, EXITS_ZERO="true"))
    pod = ended(space)
    assert (rig.exit_code(pod, "side"), rig.state(pod, "side")["restartCount"]) == (0, 0)
    assert rig.state(pod, "side")["image"] == rig.BUSYBOX


def test_a_sidecar_that_said_wrongly_that_it_ends_with_0_is_swapped(space, parts):
    side = sidecar(rig.IGNORES_TERM, EXITS_ZERO="true", GRACE_SECONDS="1")
    created(space, rig.container("main", MAIN), side)
    pod = ended(space)
    assert rig.exit_code(pod, "side") == 0
    assert rig.state(pod, "side")["lastState"]["terminated"]["exitCode"] == 137


def test_a_grace_period_of_its_own_cuts_the_pods_short(space, parts):
    side = sidecar(rig.IGNORES_TERM, GRACE_SECONDS="1")
    created(space, rig.container("main", MAIN), side, terminationGracePeriodSeconds=LONG)
    assert rig.phase(ended(space)) == "Succeeded"


def test_work_that_failed_stays_failed(space, parts):
    main = rig.container("main", "sleep 1; exit 3")
    created(space, main, sidecar(rig.ENDS_WITH_143), job={"backoffLimit": 0})
    pod = ended(space, "Failed")
    assert (rig.exit_code(pod, "main"), rig.exit_code(pod, "side")) == (3, 0)


def test_a_sidecar_whose_image_cannot_be_had_does_not_keep_its_job(space, parts):
    side = {**sidecar(""), "image": "localhost/none:1", "imagePullPolicy": "IfNotPresent"}
    created(space, rig.container("main", MAIN), side)
    assert rig.phase(ended(space)) == "Succeeded"


HOOKED = "trap 'echo term >> /work/said; cat /work/said > /dev/termination-log; exit 0' TERM"


def hooked(hook):
    side = sidecar(f"{HOOKED}; {rig.RUNS}", EXITS_ZERO="true")
    side["lifecycle"] = {"preStop": {"exec": {"command": ["/bin/sh", "-c", hook]}}}
    side["volumeMounts"] = [{"name": "work", "mountPath": "/work"}]
    return {"containers": side, "volumes": [{"name": "work", "emptyDir": {}}]}


def test_its_hook_runs_before_its_signal(space, parts):
    made = hooked("echo hook >> /work/said")
    created(space, rig.container("main", MAIN), made["containers"], volumes=made["volumes"])
    said = rig.state(ended(space), "side")["state"]["terminated"]["message"]
    assert said.split() == ["hook", "term"]


def test_a_node_part_that_is_killed_in_a_hook_runs_it_once(space, parts):
    made = hooked("echo hook >> /work/said; sleep 3")
    created(
        space,
        rig.container("main", MAIN),
        made["containers"],
        volumes=made["volumes"],
        terminationGracePeriodSeconds=30,
    )
    pod = space.until_any(
        "pods",
        "batch.kubernetes.io/job-name=j",
        lambda it: names.STOP_ANNOTATION in it["metadata"]["annotations"],
    )
    record = json.loads(pod["metadata"]["annotations"][names.STOP_ANNOTATION])
    parts.wait_for_mark(record["containers"]["side"]["id"])
    parts.kill("node")
    parts.start_node()
    said = rig.state(ended(space), "side")["state"]["terminated"]["message"]
    assert said.split() == ["hook", "term"]


def test_a_controller_that_was_killed_finds_what_was_done_meanwhile(space, parts):
    parts.kill("controller")
    created(space, rig.container("main", MAIN), sidecar(rig.IGNORES_TERM))
    space.until_any(
        "pods", "batch.kubernetes.io/job-name=j", lambda it: rig.exit_code(it, "main") == 0
    )
    parts.start_controller()
    assert rig.phase(ended(space)) == "Succeeded"
