"""A stage that hangs, crashes or fills the disk affects no other, and the record says so."""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
import waiting
from kit import main, record, report

from pyvgpu import shim
from pyvgpu.simulation import simulator

GOOD = """
def run(report):
    report.figure("found", 7, "bytes")
    report.guarantee("kept", True, "")
"""
SPENT = """
import os
def run(report):
    report.fact("seconds before the runner", os.environ["PYVGPU_KIT_SPENT"])
"""
HANGS = """
import time
def run(report):
    report.fact("begun", 1)
    time.sleep(1000)
"""
CRASHES = """
import os, signal
def run(report):
    report.fact("begun", 1)
    os.kill(os.getpid(), signal.SIGSEGV)
"""
RAISES = "def run(report):\n    raise RuntimeError('no such luck')\n"
LEAVES = """
import subprocess
def run(report):
    report.fact("left", subprocess.Popen(["sleep", "1000"]).pid)
"""
BREAKS = "def run(report):\n    report.guarantee('the quota is held', False, '5 of 4')\n"


def stages_of(kit):
    return record.read(kit.out / "record.json")["stages"]


def test_packages_of_the_working_directory_are_not_imported(kit, simulated, tmp_path):
    """For example when it is run from a checkout of the project, or from a user's own code."""
    options, environment = simulated
    kit.put(good=(60, 1, SPENT))
    for name in ("pyvgpu", "kit", "json"):
        (tmp_path / "other" / name).mkdir(parents=True)
        (tmp_path / "other" / name / "__init__.py").write_text("raise RuntimeError('wrong')")
    done = subprocess.run(
        [str(kit.folder / "run"), "--out", str(kit.out), *options],
        cwd=tmp_path / "other",
        env={**os.environ, **environment, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (spent,) = stages_of(kit)["good"]["facts"]
    assert spent["value"].isdigit()


@pytest.mark.slow
def test_each_kind_of_stage_failure_is_recorded_and_the_next_stage_runs(kit, simulated):
    options, environment = simulated
    kit.put(
        hangs=(5, 0.1, HANGS), crashes=(60, 1, CRASHES), raises=(60, 1, RAISES), good=(60, 1, GOOD)
    )
    done = kit.run(*options, **environment)
    stages = stages_of(kit)
    assert {name: entry["state"] for name, entry in stages.items()} == {
        "hangs": "timeout", "crashes": "crashed", "raises": "failed", "good": "done",
    }  # fmt: skip
    assert stages["hangs"]["facts"] == [{"name": "begun", "value": 1}]
    assert stages["crashes"]["reason"] == "ended by SIGSEGV; it said nothing"
    assert stages["raises"]["reason"] == "exit code 1; RuntimeError: no such luck"
    assert stages["good"]["figures"] == [
        {"name": "found", "value": 7, "unit": "bytes", "spread": None}
    ]
    assert "no such luck" in (kit.out / "log.txt").read_text()
    assert done.returncode == 1
    assert sorted(path.name for path in kit.out.iterdir()) == ["log.txt", "record.json"]


def test_a_link_to_a_simulated_driver_that_is_gone_is_replaced(kit, simulated, tmp_path):
    options, environment = simulated
    folder = tmp_path / "machines" / "h100.driver"
    folder.mkdir(parents=True)
    (folder / "libcuda.so.1").symlink_to(tmp_path / "removed" / "libcuda.so.999.1")
    kit.put(good=(60, 1, GOOD))
    assert kit.run(*options, **environment).returncode == 0


def test_leftover_processes_of_a_stage_are_ended(kit, simulated):
    options, environment = simulated
    kit.put(leaves=(60, 1, LEAVES))
    assert kit.run(*options, **environment).returncode == 0
    (left,) = stages_of(kit)["leaves"]["facts"]
    waiting.wait_until(lambda: not is_running(left["value"]))


def is_running(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_minutes_that_are_over_leave_stages_for_a_second_call(kit, simulated):
    options, environment = simulated
    kit.put(first=(60, 0, GOOD), second=(60, 10_000, GOOD))
    done = kit.run("--minutes", "100", *options, **environment)
    assert done.returncode == 75
    assert "not reached: second; go on with --resume" in done.stdout
    assert done.stdout.splitlines()[-2].endswith(f"; output of the stages: {kit.out}/log.txt")
    assert stages_of(kit)["second"]["state"] == "not reached"
    kit.put(first=(60, 0, RAISES), second=(60, 1, GOOD))
    assert kit.run("--resume", *options, **environment).returncode == 0
    assert {name: entry["state"] for name, entry in stages_of(kit).items()} == {
        "first": "done", "second": "done",
    }  # fmt: skip


def test_a_run_without_output_names_none(kit, simulated):
    options, environment = simulated
    kit.put(long=(60, 10_000, GOOD))
    done = kit.run("--minutes", "1", *options, **environment)
    assert done.stdout.splitlines()[-2] == f"record: {kit.out}/record.json"


def test_a_link_to_the_program_finds_the_kit(kit, tmp_path):
    (tmp_path / "measure").symlink_to(kit.folder / "run")
    (kit.folder / "kit" / "stages" / "__init__.py").write_text("raise SystemExit(7)")
    done = subprocess.run(
        [tmp_path / "measure", "--list"], env={**os.environ, "PYTHON": sys.executable}, check=False
    )
    assert done.returncode == 7


def test_a_guarantee_that_does_not_hold_is_named_and_fails_the_run(kit, simulated):
    options, environment = simulated
    kit.put(breaks=(60, 1, BREAKS))
    done = kit.run(*options, **environment)
    assert done.returncode == 1
    assert "did not hold: breaks: the quota is held: 5 of 4" in done.stdout


def test_a_run_ends_with_a_summary_the_place_of_the_record_and_the_next_step(kit, simulated):
    options, environment = simulated
    kit.put(good=(60, 1, GOOD), breaks=(60, 1, BREAKS))
    done = kit.run(*options, **environment)
    assert done.stdout.splitlines()[-3:] == [
        "2 of 2 stages done; guarantees: 1 held, 1 did not hold, 0 inconclusive",
        f"record: {kit.out}/record.json; output of the stages: {kit.out}/log.txt",
        f"next: where pyvgpu is installed, `pyvgpu calibrate {kit.out} --simulated`"
        " says what the record shows",
    ]


def test_the_named_next_step_accepts_the_record(kit, simulated):
    options, environment = simulated
    kit.out = kit.out.with_name("an out")
    kit.put(good=(60, 1, GOOD))
    (command,) = re.findall("`(.+)`", kit.run(*options, **environment).stdout)
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_list_ends_quietly_when_its_reader_is_gone(kit):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        done = subprocess.run(
            [sys.executable, "-m", "kit.main", "--list"], stdout=pipe, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(kit.folder)}, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_an_out_that_is_a_file_is_refused_with_an_example(kit):
    kit.out.write_text("mine")
    done = kit.run()
    assert done.returncode == 73
    assert done.stderr == (
        f"run: --out {kit.out}: is a file: name a folder, for example --out results\n"
    )
    assert kit.out.read_text() == "mine"


@pytest.mark.parametrize(
    ("pythons", "having", "used"),
    [
        pytest.param(("python3.13", "python3"), "python3", "python3", id="the usual one"),
        pytest.param(("python3.13", "python3"), "python3.13", "python3.13", id="another"),
        pytest.param(("python3.13", "python3"), None, "python3", id="none"),
    ],
)
def test_the_python_that_has_pytorch_runs_the_kit(kit, tmp_path, pythons, having, used):
    folder, packages, log = tmp_path / "bin", tmp_path / "packages", tmp_path / "log"
    (packages / "torch").mkdir(parents=True)
    folder.mkdir()
    for name in pythons:
        with_torch = f'PYTHONPATH="$PYTHONPATH:{packages}" ' if name == having else ""
        python = folder / name
        python.write_text(
            f'#!/bin/sh\necho {name} >>{log}\n{with_torch}exec {sys.executable} "$@"\n'
        )
        python.chmod(0o755)
    for name in ("bash", "dirname", "readlink"):
        (folder / name).symlink_to(shutil.which(name))
    subprocess.run(
        [kit.folder / "run", "--list"], env={"PATH": str(folder)}, capture_output=True, check=True
    )
    assert log.read_text().splitlines()[-1] == used


@pytest.mark.parametrize("named", ["/nothing/python3", "true", "false"])
def test_a_named_program_that_is_no_python_is_refused(kit, named):
    done = subprocess.run(
        [kit.folder / "run", "--list"], env={**os.environ, "PYTHON": named},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (69, "")
    assert done.stderr == (
        f"run: PYTHON={named}: must be Python 3.11 to 3.13, "
        "for example PYTHON=/path/to/python3.12 ./run\n"
    )


def test_a_guarantee_that_cannot_be_evaluated_is_named_and_fails_nothing(kit, simulated):
    options, environment = simulated
    kit.put(scatters=(60, 1, BREAKS.replace("False", "None")))
    done = kit.run(*options, **environment)
    assert done.returncode == 0
    assert "inconclusive: scatters: the quota is held: 5 of 4" in done.stdout
    (guarantee,) = stages_of(kit)["scatters"]["guarantees"]
    assert guarantee["held"] is None


def test_a_record_is_not_written_over(kit, simulated):
    options, environment = simulated
    kit.put(good=(60, 1, GOOD))
    assert kit.run(*options, **environment).returncode == 0
    again = kit.run(*options, **environment)
    assert again.returncode == 64
    assert "there is a record already; use --resume, --only or another --out" in again.stderr
    assert kit.run("--only", "good", *options, **environment).returncode == 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"format": "pyvgpu-gpu-record", "version": 1, "sta', "truncated, or not JSON"),
        ('{"format": "pyvgpu-gpu-record", "version": 9}', "a record of version 9: must be 1"),
        (
            '{"name": "else"}',
            "has the format None; must be a record.json with the format 'pyvgpu-",
        ),
        ("[]", "is no object; must be a record.json with the format 'pyvgpu-gpu-record'"),
        ("", "is empty; must be a record.json of the GPU kit: copy the file again"),
        ('{"format": "pyvgpu-gpu-record", "version": 1, "stages": 3}', "its stages are damaged"),
        ("\xff", "is not text in UTF-8"),
    ],
)
def test_a_record_that_cannot_be_read_is_left_alone(kit, text, problem):
    kit.out.mkdir()
    (kit.out / "record.json").write_text(text, "latin-1")
    done = kit.run("--resume")
    assert done.returncode == 65
    assert problem in done.stderr
    assert done.stderr.endswith("; or use another --out\n")
    assert len(done.stderr.splitlines()) == 1
    assert (kit.out / "record.json").read_text("latin-1") == text


def test_a_run_keeps_its_folder_from_others_until_it_ends(kit, simulated):
    options, environment = simulated
    kit.put(hangs=(60, 1, HANGS))
    first = kit.start(*options, **environment)
    waiting.wait_until(lambda: (kit.out / "lines.jsonl").exists())
    refused = kit.run("--resume", *options, **environment)
    first.send_signal(signal.SIGTERM)
    first.communicate()
    assert refused.returncode == 64
    assert refused.stderr == (
        f"run: --out {kit.out}: another run writes there; wait for its end, or use another --out\n"
    )
    kit.put(hangs=(60, 1, GOOD))
    assert kit.run("--resume", *options, **environment).returncode == 0


@pytest.mark.parametrize(
    ("name", "code", "problem"),
    [
        ("record.json", 65, "is a directory; must be a record.json of the GPU kit; or use"),
        ("log.txt", 73, "cannot be written: Is a directory; use"),
        ("lines.jsonl", 73, "cannot be written: Is a directory; use"),
    ],
)
def test_a_folder_in_place_of_a_file_is_named(kit, simulated, name, code, problem):
    options, environment = simulated
    kit.put(good=(60, 1, GOOD))
    (kit.out / name).mkdir(parents=True)
    done = kit.run("--resume", *options, **environment)
    assert done.returncode == code
    assert done.stderr == f"run: {kit.out / name}: {problem} another --out\n"


def test_without_a_driver_one_line_says_so(kit, tmp_path):
    done = kit.run(LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 69
    assert done.stderr.startswith("run: no driver: libcuda.so.1")
    assert len(done.stderr.splitlines()) == 1


def in_mount_namespace(script, **environment):
    """Run a shell script in a separate mount namespace."""
    if os.geteuid():
        pytest.skip("needs root: mounts in a namespace of its own")
    return subprocess.run(
        ["unshare", "--mount", "sh", "-ec", script], env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_driver_is_found_where_containers_have_it_and_the_loader_does_not_poll(kit, tmp_path):
    kit.put(good=(60, 1, GOOD))
    machine = simulator.open_machine("h100", root=tmp_path / "machines")
    script = """
        mount -t tmpfs none /usr/local
        mkdir -p /usr/local/nvidia/lib64
        cp -a "$DRIVER"/lib*.so* /usr/local/nvidia/lib64
        ldconfig -n /usr/local/nvidia/lib64
        exec "$PYTHON" -m kit.main --out "$OUT"
    """
    done = in_mount_namespace(
        script, **machine.environment, DRIVER=str(shim.simulator_libraries()),
        PYTHON=sys.executable, OUT=str(kit.out), PYTHONPATH=str(kit.folder), LD_LIBRARY_PATH="",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert stages_of(kit)["good"]["state"] == "done"


def test_wheels_are_unpacked_where_libraries_can_be_loaded(kit, tmp_path):
    (tmp_path / "kit" / "wheels" / "any").mkdir(parents=True)
    (tmp_path / "kit" / "VERSION").write_text("1.0\n")
    unpack = kit.folder / "kit" / "unpack.py"
    script = """
        mkdir "$TMPDIR"
        mount -t tmpfs -o noexec none "$TMPDIR"
        "$PYTHON" "$UNPACK" "$FOLDER"
        mount --bind "$TMPDIR" "$FOLDER/wheels"
        "$PYTHON" "$UNPACK" "$FOLDER/wheels"
    """
    done = in_mount_namespace(
        script, TMPDIR=str(tmp_path / "tmp"), HOME=str(tmp_path / "none"), PYTHON=sys.executable,
        UNPACK=str(unpack), FOLDER=str(tmp_path / "kit"),
    )  # fmt: skip
    (unpacked,) = done.stdout.splitlines()
    assert pathlib.Path(unpacked).parent == tmp_path / "kit"
    assert done.returncode == 73
    assert "is mounted noexec, so that no library can be loaded from it" in done.stderr


def test_driver_without_a_device_differs_from_no_driver(kit, simulated):
    options, environment = simulated
    kit.put(good=(60, 1, GOOD))
    done = kit.run(*options, **environment, CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 69
    assert done.stderr.startswith("run: no device: cuInit returned 100")
    assert len(done.stderr.splitlines()) == 1
    assert not (kit.out / "record.json").exists()


@pytest.fixture
def machine(tmp_path):
    """Return a function that creates a simulated machine with faults; the environment for it."""

    def make(spec, *faults):
        root = tmp_path / "machines"
        simulator.set_faults(simulator.open_machine(spec, root=root), *faults)
        return {"PYVGPU_SIMULATED_MACHINES": str(root)}

    return make


def test_a_stage_that_needs_quotas_is_not_possible_in_mig_mode(kit, machine):
    kit.put(good=(60, 1, GOOD), quota=(60, 1, GOOD, "quota"))
    done = kit.run("--simulate", "h100", **machine("h100", "mig 0"))
    stages = stages_of(kit)
    assert {name: entry["state"] for name, entry in stages.items()} == {
        "good": "done", "quota": "not possible",
    }  # fmt: skip
    assert "the device is in MIG mode, and this stage measures whole devices" in done.stdout
    assert done.returncode == 0


def test_a_compute_mode_of_one_process_makes_stages_with_several_impossible():
    found = {"mig": False, "compute mode": "exclusive process", "free": None}
    assert list(main.obstacles(found)) == ["several"]
    assert main.obstacles({**found, "compute mode": "default"}) == {}


NAMES_DEVICE = """
import ctypes
from kit import cuda, shimmed
def run(report):
    name = ctypes.create_string_buffer(96)
    nvml = cuda.nvml()
    nvml.nvmlDeviceGetName(cuda.nvml_handle(nvml), name, 96)
    report.fact("nvml", name.value.decode())
    program = shimmed.python(
        "import ctypes, json; from kit import cuda; d = cuda.Device();"
        "n = ctypes.create_string_buffer(96); d.cuda.cuDeviceGetName(n, 96, 0);"
        "print(json.dumps(n.value.decode()))"
    )
    for title, options in (("bare", None), ("with a quota", ["--vmemory", "2GiB"])):
        report.fact(title, shimmed.answer(options, program))
"""


@pytest.mark.parametrize(
    ("visible", "name"),
    [
        pytest.param({}, "pyvgpu simulated T4", id="the first"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1,0"}, "pyvgpu simulated H100", id="of its user"),
    ],
)
def test_one_of_several_devices_is_measured_by_all(kit, machine, visible, name):
    kit.put(names=(60, 1, NAMES_DEVICE))
    done = kit.run("--simulate", "t4,h100", **machine("t4,h100"), **visible)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = {fact["name"]: fact["value"] for fact in stages_of(kit)["names"]["facts"]}
    assert facts == dict.fromkeys(("nvml", "bare", "with a quota"), name)


def test_a_driver_that_is_too_old_is_named_with_the_release_that_is_needed(kit, tmp_path):
    source = tmp_path / "old.c"
    source.write_text("int cuDriverGetVersion(int *v) { *v = 10020; return 0; }\n")
    library = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    done = kit.run(LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 69
    assert "it says CUDA 10.2; must be 11.0 (release 450) or later" in done.stderr


def test_nodes_that_a_user_may_not_open_are_found(kit, open_folder):
    if os.geteuid():
        pytest.skip("needs root: acts as another user")
    for name, mode in (("nvidia0", 0o600), ("nvidia1", 0o666), ("nvidiactl", 0o600)):
        (open_folder / name).touch()
        (open_folder / name).chmod(mode)
    code = f"""
import os, pathlib
from kit import main
os.setuid(65534)
print([os.path.basename(p) for p in main.closed_nodes(pathlib.Path({str(open_folder)!r}))])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(kit.folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['nvidia0', 'nvidiactl']\n"


def test_a_full_disk_ends_the_run_with_the_record_of_before(kit, simulated):
    options, environment = simulated
    kit.put(good=(60, 1, GOOD), more=(60, 1, GOOD))
    assert kit.run("--only", "good", *options, **environment).returncode == 0
    before = (kit.out / "record.json").read_text()
    (kit.out / "log.txt").unlink()
    (kit.out / "log.txt").symlink_to("/dev/full")
    done = kit.run("--only", "more", *options, **environment)
    assert done.returncode == 73
    assert "cannot be written" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (kit.out / "record.json").read_text() == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--minutes", "0"], "--minutes 0: must be a number above 0, for example 9"),
        (["--minutes", "nan"], "--minutes nan: must be a number above 0, for example 9"),
        (["--minutes", "nine"], "--minutes nine: must be a number above 0, for example 9"),
        (["--only", "nothing"], "--only nothing: must be one of facts, symbols, "),
        (["--out", ""], "--out is missing: name a folder for the record"),
    ],
)
def test_wrong_usage_is_answered_with_the_rule(kit, arguments, problem):
    done = kit.run(*arguments)
    assert done.returncode == 64
    assert problem in done.stderr


def test_lines_that_were_cut_short_are_left_out(tmp_path):
    lines = tmp_path / "lines.jsonl"
    written = report.Report(lines)
    written.fact("whole", 1)
    written.missing("torch", "no such Python package")
    with lines.open("a") as file:
        file.write(json.dumps({"kind": "fact", "name": "odd"}) + "\n[]\n" + '{"kind": "fa')
    assert report.read_lines(lines) == [
        ("fact", {"name": "whole", "value": 1}),
        ("missing", {"name": "torch", "reason": "no such Python package"}),
    ]


def test_a_kit_without_wheels_names_what_it_lacks(kit):
    python = pathlib.Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("no python3 without pyvgpu here: apt-get install python3")
    done = subprocess.run(
        [kit.folder / "run", "--list"],
        env={"PATH": os.environ["PATH"], "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 69
    assert "/usr/bin/python3 has no pyvgpu: use the kit of `make gpu-kit`" in done.stderr
    assert len(done.stderr.splitlines()) == 1
