"""The real nvidia-smi of release 550 makes and shows MIG instances of the simulated driver."""

import json
import re
import subprocess
import sys

import debian
import pytest
from machine_room import environment, holder

from pyvgpu.simulation import simulator

pytestmark = pytest.mark.clients

MIB = 1 << 20
IN_USE, INSUFFICIENT_RESOURCES, NOT_FOUND = 19, 23, 6


@pytest.fixture(scope="session", name="program")
def fixture_program():
    return debian.unpacked("trixie", "nvidia-smi") / "usr/lib/nvidia/current/nvidia-smi"


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("a100-80g,t4", tmp_path)


@pytest.fixture(name="smi")
def fixture_smi(program, machine):
    def smi(*arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            [program, *arguments],
            env=environment(machine),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return smi


def test_instances_are_made_listed_and_removed(smi, machine):
    assert "No MIG-enabled devices found" in smi("mig", "-lgi")
    assert "Enabled MIG Mode for GPU" in smi("-i", "0", "-mig", "1")
    made = smi("mig", "-i", "0", "-cgi", "9,19,14,19", "-C")
    assert made.count("Successfully created GPU instance") == 4
    assert made.count("Successfully created compute instance") == 4
    rows = re.findall(r"MIG (\S+) +(\d+) +(\d+) +(\d):(\d)", smi("mig", "-lgi"))
    assert sorted(rows) == sorted(
        [
            ("1g.10gb", "19", "7", "0", "1"),
            ("1g.10gb", "19", "8", "1", "1"),
            ("2g.20gb", "14", "3", "2", "2"),
            ("3g.40gb", "9", "1", "4", "4"),
        ]
    )
    listed = simulator.mig_state(machine).instances
    assert smi("-L").splitlines()[1:5] == [
        f"  MIG {found.profile:<11} Device  {index}: (UUID: {found.uuid})"
        for index, found in enumerate(listed)
    ]
    smi("mig", "-dgi", "-i", "0", "-gi", "1", code=IN_USE)
    assert smi("mig", "-dci").count("Successfully destroyed") == 4
    assert smi("mig", "-dgi").count("Successfully destroyed") == 4
    smi("mig", "-lgi", code=NOT_FOUND)
    smi("-i", "0", "-mig", "0")
    assert simulator.in_mig_mode(machine) == frozenset()


NVITOP = """
import json, nvitop
print(json.dumps([
    [device.name(), [[one.name(), one.uuid(), one.memory_total()] for one in device.mig_devices()]]
    for device in nvitop.Device.all()
]))
"""


def test_nvitop_shows_the_instances(tmp_path):
    machine = simulator.open_machine("h100:mig=3g.40gb+1g.10gb,t4", tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", NVITOP],
        env=environment(machine),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    (divided, instances), (whole, none) = json.loads(done.stdout)
    assert [divided, whole] == [device.name for device in machine.devices]
    assert none == []
    assert instances == [
        [f"{divided} MIG {one.profile}", one.uuid, one.memory_bytes]
        for one in simulator.mig_state(machine).instances
    ]


def test_order_of_creation_decides_what_fits(smi):
    smi("-i", "0", "-mig", "1")
    said = smi("mig", "-cgi", "19,19,14,9", code=INSUFFICIENT_RESOURCES)
    assert said.count("Successfully created GPU instance") == 3
    assert "profile 9: Insufficient Resources" in said


def test_profiles_and_places_are_shown(smi):
    text = smi("mig", "-lgip")
    rows = re.findall(r"MIG (\S+) +(\d+) +(\d/\d) +(\d+\.\d+) +No +(\d+)", text)
    assert rows == [
        ("1g.10gb", "19", "7/7", "9.50", "14"),
        ("1g.10gb+me", "20", "1/1", "9.50", "14"),
        ("1g.20gb", "15", "4/4", "19.50", "14"),
        ("2g.20gb", "14", "3/3", "19.50", "28"),
        ("3g.40gb", "9", "2/2", "39.25", "42"),
        ("4g.40gb", "5", "1/1", "39.25", "56"),
        ("7g.80gb", "0", "1/1", "79.00", "98"),
    ]
    assert "Profile ID  9 Placements: {0,4}:4" in smi("mig", "-lgipp")


def test_plain_table_shows_devices_and_their_processes(smi, machine, monkeypatch):
    smi("-i", "0", "-mig", "1")
    smi("mig", "-cgi", "9,14", "-C")
    second = simulator.mig_state(machine).instances[1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", second.uuid)
    with holder(machine, 0, 512 * MIB) as held:
        text = smi()
        mib = machine.devices[0].context_bytes // MIB + 512
        assert re.search(rf"\| +0 +3 +0 +1 +\| +{mib}MiB / 19968MiB", text)
        assert re.search(rf"\| +0 +3 +0 +{held.pid} +C .* {mib}MiB \|", text)
        smi("mig", "-dci", code=IN_USE)
