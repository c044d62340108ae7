"""Number of writes to a pod, counted by the versions that a watch reports."""

import contextlib
import threading

import pytest
import rig
import sidecars

from pyvgpu.kube import apiserver

pytestmark = pytest.mark.e2e

MAIN = "sleep 1"


class Writes:
    """Records changes to the pods of a namespace, except to their status."""

    def __init__(self, space):
        self.seen = []
        self._space = space
        self._version = space.server.items(space.path("pods"), {})[1]
        self._done = threading.Event()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self):
        try:
            for event, pod in self._space.server.watch(
                self._space.path("pods"), {}, self._version, 300
            ):
                if event in ("ADDED", "MODIFIED"):
                    self.seen.append(_content(pod))
                if event == "MODIFIED" and rig.has_ended(pod):
                    self._done.set()
        except apiserver.ServerError:
            pass

    def count(self):
        """Wait until the pod has terminated; return the number of changes."""
        assert self._done.wait(rig.SECONDS)
        return sum(
            before != after for before, after in zip(self.seen, self.seen[1:], strict=False)
        )


def _content(pod):
    metadata = pod["metadata"]
    images = [container["image"] for container in pod["spec"]["containers"]]
    return metadata.get("annotations"), metadata.get("labels"), images


ZERO, HURRIED = {"EXITS_ZERO": "true"}, {"GRACE_SECONDS": "1"}
STEPS = {  # the script, its options, the restart policy; the expected numbers of writes
    "swap": (rig.IGNORES_TERM, {}, "Never", {1}),
    "swap, OnFailure": (rig.ENDS_WITH_143, {}, "OnFailure", {1}),
    "hybrid": (rig.IGNORES_TERM, HURRIED, "Never", {1}),
    "stop": (rig.ENDS_WITH_0, ZERO, "Never", {0, 1}),
    "stop, which does not help": (rig.IGNORES_TERM, ZERO | HURRIED, "Never", {2}),
}


@pytest.fixture(scope="module")
def begun(parts):
    """Start Jobs for all STEPS at once; yield their namespaces and writes by name."""
    with contextlib.ExitStack() as opened:
        made = {}
        for name, (script, options, policy, _) in STEPS.items():
            space = opened.enter_context(rig.space())
            made[name] = space, Writes(space)
            main, side = rig.container("main", MAIN), sidecars.sidecar(script, **options)
            sidecars.create_job(space, main, side, restartPolicy=policy)
        yield made


@pytest.mark.parametrize("name", STEPS)
def test_pod_is_written_to_once_per_step(begun, name):
    space, counted = begun[name]
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"
    assert counted.count() in STEPS[name][-1]


def test_pod_with_failed_work_is_never_written_to(space, parts):
    counted = Writes(space)
    sidecars.create_job(
        space,
        rig.container("main", "sleep 3; exit 3"),
        sidecars.sidecar("sleep 1; exit 0"),
        job={"backoffLimit": 0},
    )
    sidecars.has_ended(space, "Failed")
    assert counted.count() == 0


@pytest.mark.alone
def test_pod_without_the_label_is_found_and_ended(space, parts):
    pod = sidecars.admitted(
        space, rig.pod("p", rig.container("main", MAIN), sidecars.sidecar(rig.ENDS_WITH_143))
    )
    pod["metadata"].pop("labels")
    space.create("pods", pod)
    assert parts.finish("controller") == 0
    parts.start_controller()  # it sweeps when it becomes leader
    ended = space.until("pods", "p", rig.has_ended)
    assert rig.phase(ended) == "Succeeded"
    assert ended["metadata"]["labels"] == {"pyvgpu.io/sidecars": "managed"}
