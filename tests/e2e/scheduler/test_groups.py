"""Pod groups of Kubernetes' own Workload API, which kube-scheduler places as a whole.

The API is alpha in 1.36: the API server and kube-scheduler run with its feature gates here. The
extender answers for each pod of a group alone.
"""

import contextlib

import extenders
import pod_groups
import pytest
import rig
import waiting

from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

FEATURES = "GenericWorkload=true,GangScheduling=true"


class WorkloadApi(pod_groups.PodGroups):
    """PodGroup of scheduling.k8s.io."""

    def create(self, space, name, count):
        policy = {"gang": {"minCount": count}}
        body = {"metadata": {"name": name}, "spec": {"schedulingPolicy": policy}}
        path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{space.name}/podgroups"
        space.server.call("POST", path, body=body)

    def join(self, pod, name):
        pod["spec"]["schedulingGroup"] = {"podGroupName": name}
        return pod


def restart(config, features):
    """Restart the API server and kube-scheduler with these feature gates."""
    extenders.restart("kube-apiserver", features)

    def is_ready():
        with contextlib.suppress(apiserver.ServerError):
            return extenders.admin_api().call("GET", "/api/v1/namespaces/default")

    waiting.wait_until(is_ready, rig.SECONDS)
    extenders.restart_scheduler(config, features)


@pytest.fixture(scope="module", autouse=True)
def _workloads(running):
    running.undisturbed = False
    restart(running.config, FEATURES)
    yield
    restart(running.config, "")


@pytest.mark.parametrize("scenario", pod_groups.SCENARIOS, ids=lambda made: made.__name__)
def test_group_of_the_workload_api(space, scenario):
    scenario(WorkloadApi(), space)
