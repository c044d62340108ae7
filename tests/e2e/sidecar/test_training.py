"""A training Job with vGPUs and a log shipper: it hangs without the sidecar components only.

Two ranks, each with half of a simulated device, wait for each other, compute, and write a log that
the sidecar ships. Another Job waits for the whole device.
"""

import json

import pytest
import rig
import sidecars
import vgpu

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(300)]

GIB = 1 << 30
RANKS = (0, 1)
# Each rank signals its presence to the other, as a file:// rendezvous does, then trains.
TRAIN = f"""
echo > /meet/$JOB_COMPLETION_INDEX
until [ -e /meet/0 ] && [ -e /meet/1 ]; do /bin/busybox sleep 0.1; done
exec {vgpu.TENANT} steady 64MiB 3 > /log/train
"""
SHIP = """
trap '' TERM
while true; do
    cat /log/train > /meet/draft-$INDEX && /bin/busybox mv /meet/draft-$INDEX /meet/log-$INDEX
    sleep 0.1
done
"""
INDEX = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}


@pytest.fixture
def grants(tmp_path):
    vgpu.make_image(tmp_path)
    made = vgpu.Grants(tmp_path, len(RANKS), vcore=50, size=2 * GIB)
    with vgpu.on_the_node(vcore=100):
        yield made
    made.close()


def create_training(space, grants, meeting):
    rank = {**rig.container("rank", TRAIN, image=vgpu.IMAGE, stdin=True)}
    shipper = sidecars.sidecar(SHIP, name="shipper")
    shipper["env"].append({"name": "INDEX", "valueFrom": {"fieldRef": INDEX}})
    for container in (rank, shipper):
        container["volumeMounts"] = [
            {"name": "log", "mountPath": "/log"},
            {"name": "meet", "mountPath": "/meet"},
        ]
    volumes = [
        {"name": "log", "emptyDir": {}},
        {"name": "meet", "hostPath": {"path": str(meeting)}},
        *grants.give(rank),
    ]
    indexed = {"completionMode": "Indexed", "completions": len(RANKS), "parallelism": len(RANKS)}
    sidecars.create_job(space, rank, shipper, name="training", volumes=volumes, job=indexed)


def create_next(space):
    container = rig.container("main", "true", resources={"limits": {vgpu.VCORE: "100"}})
    space.create("jobs", rig.job("next", rig.pod("p", container)))


def are_done(space, name):
    return [
        space.until_any(
            "pods",
            f"{sidecars.JOB}=training,batch.kubernetes.io/job-completion-index={rank}",
            lambda pod: rig.exit_code(pod, name) == 0,
        )
        for rank in RANKS
    ]


def said_by(meeting, rank):
    return [json.loads(line) for line in (meeting / f"log-{rank}").read_text().splitlines()]


def test_training_job_hangs_without_pyvgpu_and_ends_and_frees_its_quota_with_it(
    space, parts, grants, tmp_path
):
    meeting = tmp_path / "meet"
    meeting.mkdir()
    assert [parts.finish("controller"), parts.finish("node")] == [0, 0]
    try:
        create_training(space, grants, meeting)
        are_done(space, "rank")
        create_next(space)
        with pytest.raises(rig.NotSeenError):
            space.until("jobs", "next", lambda job: job["status"].get("succeeded"), seconds=6)
        held = [rig.phase(pod) for pod in space.pods_of("training")]
        assert held == ["Running", "Running"]
    finally:
        parts.start_controller()
        parts.start_node()
    space.until("jobs", "training", lambda job: rig.condition(job, "Complete"))
    assert [rig.phase(pod) for pod in space.pods_of("training")] == ["Succeeded", "Succeeded"]
    space.until("jobs", "next", lambda job: rig.condition(job, "Complete"))
    for rank in RANKS:
        assert grants.usage(rank).slots == ()
        begun = said_by(meeting, rank)[0]
        assert begun["total"] == 2 * GIB  # a rank sees a device of the quota's size


def test_finished_training_job_frees_its_quota_for_the_next(space, parts, grants, tmp_path):
    meeting = tmp_path / "meet"
    meeting.mkdir()
    create_training(space, grants, meeting)
    running = [
        space.until_any(
            "pods",
            f"{sidecars.JOB}=training,batch.kubernetes.io/job-completion-index={rank}",
            lambda pod: rig.runs(pod, "rank"),
        )
        for rank in RANKS
    ]
    assert len(running) == len(RANKS)
    create_next(space)
    space.until("jobs", "training", lambda job: rig.condition(job, "Complete"))
    space.until("jobs", "next", lambda job: rig.condition(job, "Complete"))
    assert space.read("jobs", "training")["status"].get("failed", 0) == 0
