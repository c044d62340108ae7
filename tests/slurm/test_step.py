import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("--shards-per-gpu=x", "argument --shards-per-gpu: 'x': must be a number of shards"),
        ("--shards-per-gpu=0", "argument --shards-per-gpu: '0': must be a number of shards"),
        ("--shard=4", "unrecognized arguments: --shard=4"),
    ],
)
def test_wrong_argument_in_plugstack_conf_fails_the_step(argument, said):
    command = [sys.executable, "-Im", "pyvgpu.slurm.step", "--job=1", "--user=0", argument]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert ran.stdout.startswith(f"error plugstack.conf: {said}")
    assert ran.stdout.count("\n") == 1
