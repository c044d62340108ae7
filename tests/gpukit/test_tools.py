"""The tools stage with the real nvidia-smi and nvitop: both show the quota."""

import os
import pathlib
import sys

import debian
import pytest
from kit import record

pytestmark = pytest.mark.clients


def test_the_real_nvidia_smi_and_nvitop_show_the_quota(kit, simulated):
    options, environment = simulated
    folder = debian.unpacked("trixie", "nvidia-smi") / "usr/lib/nvidia/current"
    path = f"{folder}:{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    done = kit.run("--only", "tools", *options, **environment, PATH=path)
    assert done.returncode == 0, done.stdout
    (stage,) = record.read(kit.out / "record.json")["stages"].values()
    shown = [entry["name"] for entry in stage["guarantees"] if entry["name"].endswith("the quota")]
    assert shown == [
        "nvidia-smi: shows the quota",
        "nvidia-smi -q -d MEMORY: shows the quota",
        "nvidia-smi --query-gpu=memory.total --format=csv,noheader: shows the quota",
        "nvitop --once --ascii: shows the quota",
    ]
