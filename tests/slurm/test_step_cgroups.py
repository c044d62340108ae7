from pathlib import PurePosixPath

import pytest

from pyvgpu.slurm import step_cgroups


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param(
            "/system.slice/slurmstepd.scope/job_7/step_0/slurm",
            "/system.slice/slurmstepd.scope",
            id="v2",
        ),
        pytest.param("/slurm/uid_1000/job_7/step_batch", "/slurm", id="v1"),
        pytest.param("/system.slice/slurmd.service", None, id="not of a step"),
        pytest.param("/slice/job_queue/unit", None, id="another name"),
        pytest.param("/", None, id="the root"),
    ],
)
def test_cgroup_above_those_of_jobs(path, expected):
    found = step_cgroups.above_jobs(PurePosixPath(path))
    assert found == (None if expected is None else PurePosixPath(expected))


def test_process_moves_to_slurms_leaf_or_above_the_users_cgroup(tmp_path):
    """A plain folder in the place of a cgroup keeps what is written to its file."""
    for folder in ("slurmstepd.scope/system", "memory/slurm", "freezer"):
        (tmp_path / folder).mkdir(parents=True)
    placed = tmp_path / "cgroup"
    placed.write_text(
        "3:memory:/slurm/uid_0/job_1/step_0\n2:freezer:/\n0::/slurmstepd.scope/job_1/step_0/slurm\n"
    )
    step_cgroups.leave(placed, tmp_path)
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("cgroup.procs"))
    assert list(map(str, written)) == [
        "memory/slurm/cgroup.procs",
        "slurmstepd.scope/system/cgroup.procs",
    ]
