"""How often a pod is written to, counted by the versions that the API server tells of."""

import threading

import pytest
import rig
import sidecars

from pyvgpu.controller import server

pytestmark = pytest.mark.e2e

MAIN = "sleep 1"


class Writes:
    """What is changed in the pods of a namespace, beside their status."""

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
        except server.ServerError:
            pass

    def count(self):
        """Return how often something changed, when the pod has ended."""
        assert self._done.wait(rig.SECONDS)
        return sum(
            before != after for before, after in zip(self.seen, self.seen[1:], strict=False)
        )


def _content(pod):
    metadata = pod["metadata"]
    images = [it["image"] for it in pod["spec"]["containers"]]
    return metadata.get("annotations"), metadata.get("labels"), images


@pytest.mark.parametrize(
    ("script", "wishes", "policy", "writes"),
    [
        pytest.param(rig.IGNORES_TERM, {}, "Never", {1}, id="swap"),
        pytest.param(rig.ENDS_WITH_143, {}, "OnFailure", {1}, id="swap, OnFailure"),
        pytest.param(rig.IGNORES_TERM, {"GRACE_SECONDS": "1"}, "Never", {1}, id="hybrid"),
        pytest.param(rig.ENDS_WITH_0, {"EXITS_ZERO": "true"}, "Never", {0, 1}, id="stop"),
        pytest.param(
            rig.IGNORES_TERM,
            {"EXITS_ZERO": "true", "GRACE_SECONDS": "1"},
            "Never",
            {2},
            id="stop, which does not help",
        ),
    ],
)
def test_a_pod_is_written_to_once_for_each_step(space, parts, script, wishes, policy, writes):
    counted = Writes(space)
    sidecars.create_job(
        space,
        rig.container("main", MAIN),
        sidecars.sidecar(script, **wishes),
        restartPolicy=policy,
    )
    assert rig.phase(sidecars.has_ended(space)) == "Succeeded"
    assert counted.count() in writes


def test_a_pod_whose_work_is_not_done_is_never_written_to(space, parts):
    counted = Writes(space)
    sidecars.create_job(
        space,
        rig.container("main", "sleep 3; exit 3"),
        sidecars.sidecar("sleep 1; exit 0"),
        job={"backoffLimit": 0},
    )
    sidecars.has_ended(space, "Failed")
    assert counted.count() == 0


def test_a_pod_without_our_label_is_found_and_ended(space, parts):
    pod = sidecars.admitted(
        space, rig.pod("p", rig.container("main", MAIN), sidecars.sidecar(rig.ENDS_WITH_143))
    )
    pod["metadata"].pop("labels")
    space.create("pods", pod)
    parts.kill("controller")  # which sweeps when it has begun to act
    parts.start_controller()
    ended = space.until("pods", "p", rig.has_ended)
    assert rig.phase(ended) == "Succeeded"
    assert ended["metadata"]["labels"] == {"pyvgpu.io/sidecars": "managed"}
