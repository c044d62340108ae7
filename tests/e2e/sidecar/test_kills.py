"""Kills of any component at any time lose no Job, and stop no container that should run.

These tests kill servers of the cluster, so they run alone.
"""

import contextlib
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import pytest
import rig
import sidecars
import waiting

from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(400)]

CLUSTER = Path(__file__).parents[1] / "cluster/cluster"
MAIN = "sleep 1"
SEED = int(os.environ.get("SEED", "1"))
KILLS = int(os.environ.get("KILLS", "8"))
SERVERS = ("kubelet", "containerd", "kube-apiserver")


def cluster(verb, name):
    subprocess.run([CLUSTER, verb, name], check=True, capture_output=True)


def wait_for_the_api(space):
    def answers():
        with contextlib.suppress(apiserver.ServerError):
            return space.pods() is not None

    waiting.wait_until(answers)


def is_done(pod):
    return rig.exit_code(pod, "main") == 0


@pytest.mark.row(11)
def test_swap_waits_for_an_absent_kubelet(space, parts):
    assert [parts.finish("controller"), parts.finish("node")] == [0, 0]
    sidecars.create_job(space, rig.container("main", MAIN), sidecars.sidecar(rig.ENDS_WITH_143))
    space.until_any("pods", f"{sidecars.JOB}=j", is_done)
    try:
        cluster("stop", "kubelet")
        parts.start_controller()
        pod = sidecars.has_record(space)
        assert sidecars.record(pod)["containers"]["side"]["path"] == "swap"
        assert rig.runs(pod, "side")
    finally:
        cluster("start", "kubelet")
        parts.start_node()
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"


@pytest.mark.row(13)
def test_container_runtime_killed_during_a_stop_changes_nothing(space, parts, tmp_path):
    said = tmp_path / "said"
    side = sidecars.sidecar(
        f"trap 'echo term >> /said; sleep 4; exit 0' TERM; {rig.RUNS}", EXITS_ZERO="true"
    )
    side["volumeMounts"] = [{"name": "said", "mountPath": "/said"}]
    file = {"name": "said", "hostPath": {"path": str(said), "type": "FileOrCreate"}}
    main = rig.container("main", MAIN)
    more = {"volumes": [file], "terminationGracePeriodSeconds": 30}
    sidecars.create_job(space, main, side, **more)
    waiting.wait_until(lambda: said.exists() and said.read_text())
    cluster("restart", "containerd")
    pod = sidecars.has_ended(space)
    assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 0)


@pytest.mark.row(17)
def test_killed_api_server_loses_no_pod(space, parts, runtime):
    for number in range(3):
        sidecars.create_job(
            space,
            rig.container("main", "sleep 4"),
            sidecars.sidecar(rig.ENDS_WITH_143),
            name=f"j{number}",
        )
    space.until_any("pods", f"{sidecars.JOB}=j2", lambda current: rig.runs(current, "main"))
    uids = [pod["metadata"]["uid"] for pod in space.pods()]

    def mains_have_ended():
        found = [
            container
            for uid in uids
            for container in runtime.newest(uid)
            if container.name == "main"
        ]
        return len(found) == len(uids) and all(container.exited for container in found)

    cluster("stop", "kube-apiserver")
    waiting.wait_until(mains_have_ended)
    cluster("start", "kube-apiserver")
    wait_for_the_api(space)
    for number in range(3):
        assert rig.phase(sidecars.has_ended(space, name=f"j{number}")) == "Succeeded"


@pytest.mark.row(12)
def test_second_controller_takes_over_when_the_first_is_killed(space, parts):
    parts.start("controller", name="second")
    first = parts.wait_for_a_holder()
    sidecars.create_job(
        space, rig.container("main", MAIN), sidecars.sidecar(rig.ENDS_WITH_143), name="one"
    )
    one = sidecars.has_ended(space, name="one")
    parts.kill("controller")
    sidecars.create_job(
        space, rig.container("main", MAIN), sidecars.sidecar(rig.ENDS_WITH_143), name="two"
    )
    two = sidecars.has_ended(space, name="two")
    assert parts.wait_for_a_holder(other_than=first)
    parts.start("controller")
    assert parts.finish("second") == 0
    for pod in (one, two):
        name = pod["metadata"]["name"]
        space.until_event(name, "SidecarsEnding")
        query = {"fieldSelector": f"involvedObject.name={name},reason=SidecarsEnding"}
        assert len(space.server.items(space.path("events"), query)[0]) == 1
        assert sidecars.record(pod)["step"] == 1


SORTS = (  # robust against every kill; docs/sidecar.md names the one moment that others are not
    ({"EXITS_ZERO": "true"}, rig.ENDS_WITH_0, "Never"),
    ({}, rig.IGNORES_TERM, "OnFailure"),
)


class Seen:
    """Records every state of a namespace's pods that the API server reports."""

    def __init__(self, space):
        self._space = space
        self._over = threading.Event()
        self.pods = {}  # by uid: their states, the oldest first
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self):
        path = self._space.path("pods")
        while not self._over.is_set():
            with contextlib.suppress(apiserver.ServerError):
                found, version = self._space.server.items(path, {})
                for pod in found:
                    self._note(pod)
                for _, pod in self._space.server.watch(path, {}, version, 1):
                    self._note(pod)

    def _note(self, pod):
        if "status" in pod:
            self.pods.setdefault(pod["metadata"]["uid"], []).append(pod)

    def close(self):
        self._over.set()
        self._thread.join()
        return self.pods.values()


def lost_by_the_runtime(pod):
    """Return whether a container's exit code was lost with the killed runtime.

    kubelet treats that as a failure, and restarts main containers by their policy.
    """
    states = [status["state"] for status in pod["status"].get("containerStatuses", ())]
    return any(state.get("terminated", {}).get("reason") == "Unknown" for state in states)


@pytest.mark.row(13)
def test_kills_at_random_moments_lose_no_job_and_repeat_no_work(space, parts, tmp_path):
    """Jobs end while sidecar-controller, sidecar-node and servers are killed with SIGKILL.

    All pods run before the first kill: an interrupted start fails even without sidecars.
    """
    chance = random.Random(SEED)
    jobs = [f"j{number}" for number in range(2 * KILLS)]
    work = {"name": "work", "hostPath": {"path": str(tmp_path)}}
    seen = Seen(space)
    for number, name in enumerate(jobs):
        options, script, policy = SORTS[number % len(SORTS)]
        seconds = chance.uniform(1, 2 * KILLS)
        until = f"until [ -e /work/go ]; do sleep 0.1; done; sleep {seconds:.1f}"
        mounts = [{"name": "work", "mountPath": "/work"}]
        sidecars.create_job(
            space,
            rig.container("main", until, volumeMounts=mounts),
            sidecars.sidecar(script, **options),
            name=name,
            restartPolicy=policy,
            volumes=[work],
        )
    for name in jobs:
        space.until_any("pods", f"{sidecars.JOB}={name}", lambda pod: rig.runs(pod, "side"))
    (tmp_path / "go").touch()
    for _ in range(KILLS):
        time.sleep(chance.uniform(0, 2))
        name = chance.choice((*SERVERS, "controller", "node"))
        if name in SERVERS:
            cluster("restart", name)
        else:
            wait_for_the_api(space)
            parts.kill(name)
            (parts.launch_node if name == "node" else parts.launch_controller)()
    wait_for_the_api(space)
    for name in jobs:
        space.until("jobs", name, lambda job: rig.condition(job, "Complete"))
    whole = 0
    for states in seen.close():
        well = [state for state in states if rig.exit_code(state, "main") == 0]
        if any(map(lost_by_the_runtime, states)):
            continue
        assert {rig.exit_code(state, "main") for state in states} <= {None, 0}
        assert len({rig.state(state, "main")["containerID"] for state in well}) == 1
        assert all(rig.exit_code(state, "main") == 0 for state in states[states.index(well[0]) :])
        assert rig.phase(states[-1]) == "Succeeded"
        whole += 1
    assert whole >= KILLS
