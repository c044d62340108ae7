"""Conditions that figures depend on, and machines on which nothing can be measured."""

import json
import os
import subprocess
import sys

import pytest
from kit import main, record, simulated

from pyvgpu.simulation import machines

GOOD = "def run(report):\n    report.fact('good', 1)\n"
HOLDS = """
import sys
from kit import cuda
device = cuda.Device()
device.allocate(1 << 30)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Let simulated machines of this test be in a folder of its own."""
    monkeypatch.setenv("PYVGPU_SIMULATED_MACHINES", str(tmp_path / "machines"))
    return tmp_path / "machines"


def test_a_device_that_others_use_is_noted(kit, root):
    kit.put(good=(60, 1, GOOD))
    assert "note:" not in kit.run("--simulate", "h100").stdout
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **simulated.environment("h100"), "PYTHONPATH": str(kit.folder)},
    )  # fmt: skip
    try:
        assert holder.stdout.readline() == "ready\n"
        done = kit.run("--simulate", "h100", "--only", "good")
        kit.run("--simulate", "h100", "--only", "good")
    finally:
        holder.communicate("")
    (condition,) = record.read(kit.out / "record.json")["conditions"]
    assert condition.startswith("others use the device (processes: 1, memory: 1")
    assert "busy: 0 percent of the time): figures of an idle device differ" in condition
    assert f"note: {condition}" in done.stdout


def test_stages_that_need_more_memory_than_is_free_are_not_possible(kit, root, tmp_path):
    machines.write(tmp_path / "small.machine", "t4", {"memory_bytes": str(3 << 30)}, ())
    kit.put(good=(60, 1, GOOD), quota=(60, 1, GOOD, "quota"))
    done = kit.run("--simulate", str(tmp_path / "small.machine"))
    assert done.returncode == 0, done.stdout + done.stderr
    stages = kit.stages()
    assert (stages["good"]["state"], stages["quota"]["state"]) == ("done", record.IMPOSSIBLE)
    assert "MiB of the device are free, and this stage needs 6144 MiB" in stages["quota"]["reason"]


@pytest.mark.parametrize("again", ["--resume", "--only"])
def test_a_record_of_another_device_is_left_alone(kit, root, again):
    kit.put(good=(60, 1, GOOD))
    assert kit.run("--simulate", "h100").returncode == 0
    before = (kit.out / "record.json").read_text()
    done = kit.run("--simulate", "t4", again, *(["good"] if again == "--only" else []))
    assert done.returncode == 65
    assert done.stderr == (
        f"run: {kit.out}/record.json: a record of pyvgpu simulated H100, and this is pyvgpu "
        "simulated T4; use another --out\n"
    )
    assert (kit.out / "record.json").read_text() == before


def test_an_earlier_record_names_its_device_in_the_stage_of_facts(kit, root):
    kit.put(good=(60, 1, GOOD))
    kit.out.mkdir()
    facts = record.stage("done", "", 1, [("fact", {"name": "device", "value": "NVIDIA H200"})])
    kept = record.new("0.0.1", "2026-11-26", None) | {"stages": {"facts": facts}}
    record.write(kept, kit.out / "record.json")
    done = kit.run("--simulate", "h100", "--resume")
    assert done.returncode == 65
    assert "a record of NVIDIA H200, and this is pyvgpu simulated H100" in done.stderr


def test_stages_of_another_kit_are_noted(kit, root):
    kit.put(good=(60, 1, GOOD))
    kit.out.mkdir()
    record.write(record.new("0.0.1", "2026-11-26", "h100"), kit.out / "record.json")
    assert kit.run("--simulate", "h100", "--resume").returncode == 0
    kept = record.read(kit.out / "record.json")
    assert kept["conditions"] == ["some stages are of kit unpacked"]


def test_a_damaged_stage_of_a_record_is_named_before_anything_is_measured(kit, root):
    kit.put(good=(60, 1, GOOD))
    kit.out.mkdir()
    kept = record.new("0.0.1", "2026-11-26", "h100") | {"stages": {"memory": {"state": "done"}}}
    (kit.out / "record.json").write_text(json.dumps(kept))
    done = kit.run("--simulate", "h100", "--resume")
    assert done.returncode == 65
    assert done.stderr.endswith("stages are damaged; copy the file again; or use another --out\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("spec", ["h1000", "nowhere/like.machine"])
def test_a_simulated_machine_that_is_not_known_is_one_line(kit, root, spec):
    done = kit.run("--simulate", spec)
    assert done.returncode == 64
    assert done.stderr.startswith("run: --simulate: machine ")
    assert len(done.stderr.splitlines()) == 1


def test_a_device_that_admits_no_process_is_named(monkeypatch):
    found = json.dumps({"version": 13000, "compute mode": "prohibited"})
    monkeypatch.setattr(main, "survey", lambda: subprocess.CompletedProcess([], 0, found, ""))
    with pytest.raises(main.Stop, match="its compute mode is prohibited") as caught:
        main.find_device()
    assert caught.value.code == 69


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("sleep(1000);", "no driver: it does not answer within 1 s; see nvidia-smi"),
        ("raise(SIGSEGV);", "no driver: a process that loads it is ended by SIGSEGV"),
    ],
)
def test_a_driver_that_hangs_or_crashes_is_one_line(kit, tmp_path, body, problem):
    source = tmp_path / "bad.c"
    source.write_text(
        "#include <signal.h>\n#include <unistd.h>\n"
        f"int cuDriverGetVersion(int *v) {{ {body} *v = 13000; return 0; }}\n"
    )
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    kit.set("main", "SURVEY_SECONDS", 1)
    done = kit.run(LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 69
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


LACKS = """
from kit import cuda
def run(report):
    report.fact("begun", 1)
    cuda.driver().cuNoSuchFunction(1)
"""


def test_a_function_that_an_older_driver_lacks_is_missing_and_fails_nothing(kit, root):
    kit.put(lacks=(60, 1, LACKS))
    assert kit.run("--simulate", "h100").returncode == 0
    entry = kit.stages()["lacks"]
    assert entry["facts"] == [{"name": "begun", "value": 1}]
    assert entry["missing"] == [
        {"name": "function cuNoSuchFunction", "reason": "the driver does not have it"}
    ]


def test_no_permission_on_a_device_has_an_exit_code_of_its_own(kit, open_folder):
    """In a folder /dev of its own, as a user that may not open the node."""
    if os.geteuid():
        pytest.skip("needs root: mounts in a namespace of its own")
    code = """
import os
from kit import main
os.setuid(65534)
main.survey = lambda: main.subprocess.CompletedProcess([], 1, "", "kit.cuda.CudaError: 100")
try:
    main.find_device()
except main.Stop as exc:
    print(exc.code, exc)
"""
    script = """
        mount --bind "$FOLDER" /dev
        touch /dev/nvidia0
        chmod 600 /dev/nvidia0
        exec "$PYTHON" -c "$CODE"
    """
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script],
        env={**os.environ, "FOLDER": str(open_folder), "PYTHON": sys.executable,
             "CODE": code, "PYTHONPATH": str(kit.folder)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout == (
        "77 no permission on /dev/nvidia0: run as a user that may read and write it\n"
    )


def test_a_folder_that_may_not_be_read_is_named():
    class Closed:
        def exists(self):
            raise PermissionError(13, "Permission denied")

        def __str__(self):
            return "/out/record.json"

    with pytest.raises(main.Stop, match="/out/record.json: cannot be read: Perm") as found:
        main.has(Closed())
    assert found.value.code == 65
