"""The real nvidia-smi of three releases under `pyvgpu run` shows only the quota and our processes.

Release 470 uses public functions only; 535 and 550 also use NVML's private table, in which 550
lays out utilizations as the simulated driver does.
"""

import json
import re
import sys
import xml.etree.ElementTree as ET

import debian
import pytest
import python_clients
import rights

pytestmark = pytest.mark.clients

MIB = 1 << 20
SUITES = {"470": "bullseye", "535": "bookworm", "550": "trixie"}


@pytest.fixture(name="program", params=SUITES)
def fixture_program(request):
    folder = debian.unpacked(SUITES[request.param], "nvidia-smi")
    return folder / "usr/lib/nvidia/current/nvidia-smi"


@pytest.fixture(
    name="smi",
    params=["one namespace", pytest.param("PID namespace", marks=rights.needs_pid_namespace)],
)
def fixture_smi(request, program, held_of_two):
    """Run it with 2 GiB of the second of two devices, beside a program that holds 512 MiB.

    With a PID namespace, that program has pid 1.
    """
    own = request.param == "PID namespace"

    def smi(*arguments: str) -> str:
        holder = (sys.executable, "-c", python_clients.WHILE_HELD, 512 * MIB)
        return json.loads(
            held_of_two(*(rights.PID_NAMESPACE if own else ()), *holder, program, *arguments)
        )

    smi.pid = "1" if own else r"[1-9]\d*"
    return smi


def test_query_shows_the_quota_and_the_programs_memory(smi):
    text = smi("--query-gpu=index,memory.total,memory.used,memory.free", "--format=csv,nounits")
    assert text.splitlines()[1:] == ["0, 2048, 1032, 1016"]


def test_plain_table_shows_one_device_of_the_quotas_size_and_its_process(smi):
    text = smi()
    assert re.findall(r"^\|\s+(\d+)\s+(pyvgpu simulate\S+)", text, re.MULTILINE)[0][0] == "0"
    assert re.findall(r"(\d+)MiB /\s+(\d+)MiB", text) == [("1032", "2048")]
    rows = re.findall(r"^\|\s+0\s+N/A\s+N/A\s+(\d+)\s+C\s+(\S+)\s+1032MiB", text, re.MULTILINE)
    assert len(rows) == 1
    assert re.fullmatch(smi.pid, rows[0][0])
    assert "python" in rows[0][1]
    assert text.count("MiB |") <= 2  # one row of a device, one of a process


def test_list_has_one_device(smi):
    (line,) = smi("-L").splitlines()
    assert line.startswith("GPU 0: pyvgpu simulated H100 (UUID: GPU-")


def test_compute_apps_query_shows_our_process(smi):
    text = smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    assert re.fullmatch(rf"{smi.pid}, 1032\n", text)


def test_full_report_has_one_device_of_the_quotas_size_and_its_process(smi):
    report = ET.fromstring(smi("-q", "-x"))
    assert report.findtext("attached_gpus") == "1"
    (gpu,) = report.findall("gpu")
    memory = {part.tag: part.text for part in gpu.find("fb_memory_usage")}
    assert memory.pop("reserved", "0 MiB") == "0 MiB"  # 470 has none
    assert memory == {"total": "2048 MiB", "used": "1032 MiB", "free": "1016 MiB"}
    assert gpu.findtext("bar1_memory_usage/total") == "2048 MiB"
    (process,) = gpu.findall("processes/process_info")
    assert re.fullmatch(smi.pid, process.findtext("pid"))
    assert process.findtext("used_memory") == "1032 MiB"


@pytest.mark.parametrize("program", ["550"], indirect=True)
def test_monitor_lists_our_process(smi):
    rows = [line.split() for line in smi("pmon", "-c", "1", "-s", "m").splitlines()]
    (row,) = [row for row in rows if row[0] == "0"]
    assert re.fullmatch(smi.pid, row[1])
    assert row[2:4] == ["C", "1032"]
