"""A kube-scheduler configured for gpu-admission works with our extender instead.

It sends whole nodes to the verb ``predicates``; the extender also writes its choice into
gpu-manager's annotations.
"""

import extenders
import gpu_pods
import pytest

from pyvgpu.allocator import predicates

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def as_gpu_admission(extender, tmp_path):
    config = tmp_path / "gpu-admission.json"
    extenders.write_scheduler(config, nodeCacheCapable=False, filterVerb="predicates")
    extenders.restart_scheduler(config)
    yield
    extenders.restart_scheduler(extender.config)


def of_gaia(name, vcore):
    """Return a pod with gpu-manager's resources."""
    made = extenders.pod(name)
    (container,) = made["spec"]["containers"]
    container["resources"] = gpu_pods.container("main", vcore, 8, gpu_pods.GAIA)["resources"]
    return made


def test_whole_nodes_work_and_gpu_managers_annotations_are_set(space, as_gpu_admission):
    with extenders.fake_nodes("whole-0", "whole-1"):
        for sizes in ((100, 60, 60, 60), (40, 40, 40)):
            before = len(space.pods())
            pods = [of_gaia(f"p-{before + n}", size) for n, size in enumerate(sizes)]
            extenders.create_all(space, pods)
            extenders.until_bound(space, before + len(sizes))
        used = extenders.assert_not_overcommitted(space)
        assert [vcore for vcore, _ in used.values()] == [100] * 4
        at = {
            device.uuid: str(device.index)
            for node in ("whole-0", "whole-1")
            for device in extenders.devices(node, 2, 16)
        }
        for pod in space.pods():
            noted, node = pod["metadata"]["annotations"], pod["spec"]["nodeName"]
            (share,) = extenders.choice(pod).containers["main"]
            assert noted[f"{predicates.INDEX}0"] == at[share.uuid]
            assert noted[predicates.NODE] == node
            assert noted[predicates.ASSIGNED] == "false"
            assert int(noted[predicates.TIME]) > 0
