"""The real nvidia-smi of release 550 on the bare simulated driver.

It is Debian's (component non-free); only our libraries are loaded.
"""

import re
import subprocess
import xml.etree.ElementTree as ET

import debian
import pytest
from machine_room import environment, holder

from pyvgpu.simulation import simulator

pytestmark = pytest.mark.clients

MIB = 1 << 20
GIB = 1 << 30


@pytest.fixture(scope="session", name="program")
def fixture_program():
    return debian.unpacked("trixie", "nvidia-smi") / "usr/lib/nvidia/current/nvidia-smi"


@pytest.fixture(name="machine", scope="module")
def fixture_machine(tmp_path_factory):
    return simulator.open_machine("h100,t4", tmp_path_factory.mktemp("machines"))


@pytest.fixture(name="held", scope="module")
def fixture_held(machine):
    """Run one process per device that holds 1 GiB there."""
    with holder(machine, 0, GIB) as one, holder(machine, 1, GIB) as two:
        yield one, two


@pytest.fixture(name="smi")
def fixture_smi(program, machine, held):
    def smi(*arguments: str) -> str:
        done = subprocess.run(
            [program, *arguments],
            env=environment(machine),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return smi


def memory(machine: simulator.Machine, device: int) -> int:
    """Return the MiB that a process with a context and 1 GiB uses on the device."""
    return machine.devices[device].context_bytes // MIB + 1024


def test_plain_table_shows_devices_memory_and_processes(smi, machine, held):
    text = smi()
    assert re.search(r"Driver Version: 999\.1\s+CUDA Version: 13\.0", text)
    for index, total in enumerate((81559, 15360)):
        used = memory(machine, index)
        assert machine.devices[index].name in text
        assert re.search(rf"\|\s+{used}MiB /\s+{total}MiB \|", text)
        assert re.search(
            rf"\|\s+{index}   N/A  N/A\s+{held[index].pid}\s+C\s+\S*python\S*\s+{used}MiB \|", text
        )


def test_list_names_each_device_with_its_uuid(smi, machine):
    assert smi("-L").splitlines() == [
        f"GPU {index}: {device.name} (UUID: {device.uuid})"
        for index, device in enumerate(machine.devices)
    ]


def test_query_gpu_gives_memory_and_address(smi, machine):
    text = smi(
        "--query-gpu=index,uuid,pci.bus_id,memory.total,memory.reserved,memory.used,memory.free",
        "--format=csv,noheader,nounits",
    )
    rows = []
    for index, device in enumerate(machine.devices):
        total, used = device.memory_bytes // MIB, memory(machine, index)
        reserved = device.reserved_bytes // MIB
        address = f"0000{device.pci.upper()}"
        row = [index, device.uuid, address, total + reserved, reserved, used, total - used]
        rows.append(", ".join(map(str, row)))
    assert text.splitlines() == rows


def test_query_compute_apps_gives_processes(smi, machine, held):
    text = smi("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
    assert text.splitlines() == [
        f"{device.uuid}, {held[index].pid}, {memory(machine, index)}"
        for index, device in enumerate(machine.devices)
    ]


def test_full_report_as_text_has_both_devices(smi, machine):
    text = smi("-q")
    assert re.search(r"Attached GPUs\s+: 2\n", text)
    for device in machine.devices:
        assert f"GPU UUID                              : {device.uuid}\n" in text


def test_full_report_as_xml_holds_processes(smi, machine, held):
    gpus = ET.fromstring(smi("-q", "-x")).findall("gpu")
    assert [gpu.findtext("uuid") for gpu in gpus] == [device.uuid for device in machine.devices]
    for index, gpu in enumerate(gpus):
        processes = gpu.findall("processes/process_info")
        assert [process.findtext("pid") for process in processes] == [str(held[index].pid)]
        assert processes[0].findtext("used_memory") == f"{memory(machine, index)} MiB"


def test_pmon_lists_processes(smi, machine, held):
    rows = [line.split() for line in smi("pmon", "-c", "1", "-s", "m").splitlines()]
    found = {row[0]: row for row in rows if row[0] != "#"}
    for index in range(2):
        assert found[str(index)][1:4] == [str(held[index].pid), "C", str(memory(machine, index))]


def test_pmon_shows_the_load_of_a_process(smi, machine):
    with holder(machine, 1, kernel_ns=60_000_000_000) as busy:
        rows = [line.split() for line in smi("pmon", "-c", "1", "-s", "u").splitlines()]
    loads = {row[1]: row[3] for row in rows if row[0] != "#"}
    assert 0 < int(loads[str(busy.pid)]) <= 100


def test_dmon_shows_a_row_for_each_device(smi):
    rows = [line.split() for line in smi("dmon", "-c", "1").splitlines()]
    assert [row[0] for row in rows if row[0] != "#"] == ["0", "1"]
    assert all("-" not in row for row in rows if row[0] != "#")


def test_topology_matrix_shows_the_common_switch(smi):
    rows = [line.split() for line in smi("topo", "-m").splitlines()]
    matrix = {row[0]: row[1:3] for row in rows if row and row[0] in ("GPU0", "GPU1")}
    assert matrix == {"GPU0": ["X", "PIX"], "GPU1": ["PIX", "X"]}
