"""Sidecars in pods of other controllers: Kubeflow's training operator, and Argo Workflows."""

import pytest
import rig
import sidecars
import training_operator

pytestmark = pytest.mark.e2e

MAIN = "sleep 1"


@pytest.fixture(scope="module")
def operator(tmp_path_factory):
    with training_operator.running(tmp_path_factory.mktemp("operator")):
        yield


def replicas(space, script, count=1):
    """Return a PyTorchJob replica spec; the operator requires this container name."""
    pod = rig.pod("p", rig.container("pytorch", script), sidecars.sidecar(rig.IGNORES_TERM))
    template = sidecars.admitted(space, pod)
    metadata = {k: template["metadata"][k] for k in ("labels", "annotations")}
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"metadata": metadata, "spec": template["spec"]},
    }


def test_pytorch_job_ends_when_its_work_is_done(space, parts, operator):
    body = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "train"},
        "spec": {
            "runPolicy": {"cleanPodPolicy": "None"},
            "pytorchReplicaSpecs": {
                "Master": replicas(space, MAIN),
                "Worker": replicas(space, MAIN, count=2),
            },
        },
    }
    space.create("pytorchjobs", body)
    for replica in ("master-0", "worker-0", "worker-1"):
        pod = space.until("pods", f"train-{replica}", rig.has_ended, seconds=150)
        assert (rig.phase(pod), rig.exit_code(pod, "side")) == ("Succeeded", 0)
    done = space.until("pytorchjobs", "train", lambda job: rig.condition(job, "Succeeded"))
    assert done["status"]["replicaStatuses"]["Worker"]["succeeded"] == 2


def test_argo_workflow_pods_are_left_to_argo(space, parts):
    """Its executor ends a sidecar through a file; the pod fails, as without pyvgpu."""
    folder = {"volumeMounts": [{"name": "ctr", "mountPath": "/ctr"}]}
    main = rig.container("main", "sleep 1; echo > /ctr/done", **folder)
    wait = rig.container(
        "wait", "until [ -e /ctr/done ]; do sleep 0.1; done; sleep 3; echo > /ctr/end", **folder
    )
    side = sidecars.sidecar("until [ -e /ctr/end ]; do sleep 0.1; done; exit 143")
    side.update(folder)
    volumes = [{"name": "ctr", "emptyDir": {}}]
    pod = sidecars.admitted(space, rig.pod("p", main, wait, side, volumes=volumes))
    label = {"workflows.argoproj.io/workflow": "w", "workflows.argoproj.io/completed": "false"}
    pod["metadata"].setdefault("labels", {}).update(label)
    made = space.create("pods", pod)
    ended = space.until("pods", "p", rig.has_ended)
    codes = [rig.exit_code(ended, name) for name in ("main", "wait", "side")]
    assert codes == [0, 0, 143]
    assert ended["spec"]["containers"] == made["spec"]["containers"]
    assert ended["metadata"].get("annotations") == made["metadata"].get("annotations")
