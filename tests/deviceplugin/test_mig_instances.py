"""MIG instances of grants: created, found again and destroyed, also by agents that were killed."""

import json
import math
import signal
import subprocess
import sys

import machine_room
import pytest
import waiting

from pyvgpu import errors
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import agent_settings
from pyvgpu.deviceplugin.containers import mig_instances
from pyvgpu.simulation import mig, simulator

pytestmark = pytest.mark.slow

GRANT, OTHER = "a" * 16, "b" * 16
GIB = 1 << 30

# Runs a script with `instances`, and kills itself at the step STEP: before or after a call that
# changes the driver's state or the record. Prints the number of steps.
PROGRAM = """
import os, signal, sys
from pathlib import Path
import pynvml
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.containers import gpu_instances, mig_instances
from pyvgpu.volumes import atomic_files

step, gpu, code = int(sys.argv[1]), *sys.argv[4:]
library, folder = map(Path, sys.argv[2:4])
count = 0

def die():
    global count
    if count == step:
        os.kill(os.getpid(), signal.SIGKILL)
    count += 1

def counted(module, name):
    real = getattr(module, name)
    def call(*given, **more):
        die()
        result = real(*given, **more)
        die()
        return result
    setattr(module, name, call)

instances = mig_instances.MigInstances(folder, frozenset({"all"}))
instances.read(library)
def share(place):
    return datatypes.NodeShare(gpu, 12, 1 << 30, place)
for module, name in (
    (atomic_files, "write"),
    (pynvml, "nvmlDeviceCreateGpuInstanceWithPlacement"),
    (pynvml, "nvmlGpuInstanceCreateComputeInstance"),
    (pynvml, "nvmlComputeInstanceDestroy"),
    (pynvml, "nvmlGpuInstanceDestroy"),
):
    counted(module, name)
exec(code)
print(count)
"""


class Machine:
    """A simulated machine, and the folder of an agent's records."""

    def __init__(self, specification, folder):
        self.machine = simulator.open_machine(specification, folder / "machines")
        self.driver = machine_room.driver_folder(self.machine)
        self.library = self.driver / "libnvidia-ml.so.1"
        self.folder = folder / "state"
        self.folder.mkdir()
        self.gpu = self.machine.devices[0].uuid

    def run(self, code, step=-1):
        """Run *code* until the step; return its exit code and output."""
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(step), self.library, self.folder, self.gpu, code],
            env=machine_room.environment(self.machine),
            capture_output=True,
            text=True,
            timeout=waiting.PROMPT,
            check=False,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode, done.stdout

    @property
    def there(self):
        """The profile and GPU instance of each MIG device."""
        return {(one.profile, one.uuid) for one in simulator.mig_state(self.machine).instances}

    @property
    def gpu_instances(self):
        """The number of GPU instances, with or without compute instances."""
        text = (self.machine.folder / mig.FILE).read_text()
        return sum(line.startswith("gi ") for line in text.splitlines())

    @property
    def records(self):
        file = self.folder / mig_instances.FILE
        return json.loads(file.read_text())["instances"] if file.exists() else []


@pytest.fixture(name="empty")
def fixture_empty(tmp_path):
    return Machine("h100:mig=none", tmp_path)


ENSURE = f"print(instances.ensure('{GRANT}', share('1g.10gb@6')).uuid)"
RELEASE = f"instances.release('{GRANT}')"
WANT = f"instances.collect(lambda: {{'{GRANT}'}})"
NOT_WANTED = "instances.collect(set)"


def steps(machine, code):
    """The steps of *code*, which is run to its end."""
    returned, out = machine.run(code)
    assert returned == 0
    return int(out.split()[-1])


def test_an_instance_is_created_found_again_and_destroyed(empty):
    _, out = empty.run(ENSURE)
    uuid = out.split()[0]
    assert empty.there == {("1g.10gb", uuid)}
    _, again = empty.run(ENSURE)
    assert again.split() == [uuid, "0"], "nothing was written or created"
    empty.run(RELEASE)
    assert empty.there == set()
    assert empty.gpu_instances == 0
    assert empty.records == []


@pytest.mark.parametrize("step", range(8))
def test_an_agent_killed_while_it_creates_continues_with_the_same_instance(empty, step):
    """Two writes and two creations: eight steps."""
    assert empty.run(ENSURE, step)[0] == -signal.SIGKILL
    _, out = empty.run(ENSURE)
    assert empty.there == {("1g.10gb", out.split()[0])}
    assert empty.gpu_instances == 1
    assert [record["state"] for record in empty.records] == ["ready"]


@pytest.mark.parametrize("step", range(8))
def test_an_agent_killed_while_it_creates_leaves_nothing_for_a_pod_that_is_gone(empty, step):
    assert empty.run(ENSURE, step)[0] == -signal.SIGKILL
    empty.run(NOT_WANTED)
    assert empty.gpu_instances == 0
    assert empty.records == []


@pytest.mark.parametrize("step", range(8))
def test_an_agent_killed_while_it_destroys_continues(empty, step):
    """Two writes and two destructions: eight steps."""
    empty.run(ENSURE)
    assert empty.run(RELEASE, step)[0] == -signal.SIGKILL
    empty.run(NOT_WANTED)
    assert empty.gpu_instances == 0
    assert empty.records == []


def test_there_are_no_more_steps_than_were_tested(empty):
    assert steps(empty, ENSURE) == 8
    assert steps(empty, RELEASE) == 8


def test_an_instance_of_the_administrator_is_never_touched(empty):
    empty.run(ENSURE)
    code = "other = mig_instances.MigInstances(folder / 'x', frozenset({'all'}))"
    (empty.folder / "x").mkdir()
    admin = f"{code}; other._gpus, other._library = instances._gpus, library; " + (
        f"other.ensure('{OTHER}', share('2g.20gb@4'))"
    )
    empty.run(admin)
    before = empty.there
    assert len(before) == 2
    _, out = empty.run(f"print(instances.taken(gpu)); {NOT_WANTED}; print(instances.taken(gpu))")
    assert out.splitlines()[:2] == ["('2g.20gb@4',)"] * 2
    assert {name for name, _ in empty.there} == {"2g.20gb"}
    code = f"""
try:
    instances.ensure('{GRANT}', share('2g.20gb@4'))
except Exception as exc:
    print(type(exc).__name__, exc)
"""
    # Without own instances the GPU is left to the administrator.
    assert "is not in MIG mode, or is gone" in empty.run(code)[1]
    assert {name for name, _ in empty.there} == {"2g.20gb"}


def test_an_instance_that_replaced_ours_is_not_taken_for_it(empty):
    empty.run(ENSURE)
    uuid = empty.records[0]["uuid"]
    file = empty.machine.folder / mig.FILE
    other = f"{uuid[:-4]}ffff"
    (file.parent / ".new").write_text(file.read_text().replace(uuid, other))
    (file.parent / ".new").replace(file)
    code = f"""
try:
    {ENSURE}
except Exception as exc:
    print(type(exc).__name__, exc)
"""
    assert "UnavailableError" in empty.run(code)[1]
    empty.run(NOT_WANTED)
    assert empty.there == {("1g.10gb", other)}
    assert empty.records == []


def test_after_a_reboot_the_instance_is_created_again_at_its_place(empty):
    empty.run(ENSURE)
    before = empty.records[0]["uuid"]
    (empty.machine.folder / mig.FILE).write_text("gpu 0\n")
    reborn = "instances._boot = 'another boot'; "
    _, out = empty.run(reborn + ENSURE)
    uuid = out.split()[0]
    assert uuid != before
    assert empty.there == {("1g.10gb", uuid)}
    assert empty.records[0]["place"] == "1g.10gb@6"


def test_a_record_of_an_earlier_boot_destroys_nothing(empty):
    empty.run(ENSURE)
    empty.run(f"instances._boot = 'another boot'; {NOT_WANTED}")
    assert empty.records == []
    assert empty.gpu_instances == 1


def test_occupied_place_is_refused_by_state_not_by_error_code(empty):
    empty.run(ENSURE)
    code = f"""
try:
    instances.ensure('{OTHER}', share('1g.10gb@6'))
except Exception as exc:
    print(type(exc).__name__, exc)
"""
    _, out = empty.run(code)
    assert out.startswith("UnavailableError")
    assert "1g.10gb@6 is occupied" in out
    assert [record["grant"] for record in empty.records] == [GRANT]
    assert empty.gpu_instances == 1


def test_a_failed_compute_instance_leaves_no_half_instance(empty):
    code = f"""
def fails(*_):
    raise pynvml.NVMLError(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
pynvml.nvmlGpuInstanceCreateComputeInstance = fails
try:
    {ENSURE}
except Exception as exc:
    print(type(exc).__name__, exc)
"""
    assert "UnavailableError" in empty.run(code)[1]
    assert empty.gpu_instances == 0
    assert [record["state"] for record in empty.records] == ["creating"]
    empty.run(NOT_WANTED)
    assert empty.records == []


def test_an_instance_in_use_is_kept_until_its_process_ends(empty):
    _, out = empty.run(ENSURE)
    uuid = out.split()[0]
    program = (
        "import ctypes, sys; cu = ctypes.CDLL(sys.argv[1]); device = ctypes.c_int();"
        "context = ctypes.c_void_p(); assert cu.cuInit(0) == 0;"
        "assert cu.cuDeviceGet(ctypes.byref(device), 0) == 0;"
        "assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0;"
        "print('on', flush=True); sys.stdin.read()"
    )
    cuda = empty.driver / "libcuda.so.1"
    with subprocess.Popen(
        [sys.executable, "-c", program, cuda],
        env={**machine_room.environment(empty.machine), "CUDA_VISIBLE_DEVICES": uuid},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as tenant:
        assert tenant.stdout.readline() == b"on\n"
        _, out = empty.run(f"{WANT}; print(*instances.used_bytes.items())")
        (shown,) = out.splitlines()[:1]
        assert shown.startswith(f"('{empty.gpu}/1g.10gb@6', ")
        assert int(shown.rstrip(")").rpartition(" ")[2]) > 0, "the context's memory"
        _, out = empty.run(f"{RELEASE}; print(instances.taken(gpu))")
        assert out.splitlines()[0] == "('1g.10gb@6',)", "its place counts as taken"
        assert empty.there == {("1g.10gb", uuid)}
        assert [record["state"] for record in empty.records] == ["ending"]
        tenant.stdin.close()
        assert tenant.wait(waiting.PROMPT) == 0
    empty.run(NOT_WANTED)
    assert empty.gpu_instances == 0
    assert empty.records == []


def test_profiles_are_those_that_the_driver_reports(tmp_path):
    machine = Machine("h200:mig=none", tmp_path)
    _, out = machine.run(
        "(found,) = instances.read(library);"
        "print([(p.name, p.id, p.size, p.starts, p.most) for p in found.profiles])"
    )
    assert "('3g.71gb', 9, 4, (0, 4), 2)" in out
    assert "('7g.141gb', 0, 8, (0,), 1)" in out


SIZES = """
(found,) = instances.read(library)
from pyvgpu import nvml
with nvml.session(library):
    handle = pynvml.nvmlDeviceGetHandleByUUID(gpu)
    total = pynvml.nvmlDeviceGetMemoryInfo(handle).total
print(json.dumps([total, [(p.name, p.slices, p.memory_bytes) for p in found.profiles]]))
"""


def name_of(slices, size, total):
    """Name a profile as NVIDIA's go-nvlib does, by its memory and that of the whole GPU."""
    gigabytes = math.ceil(8 * size / total) / 8 * math.ceil(total / GIB)
    return f"{slices}g.{math.floor(gigabytes + 0.5)}gb"


@pytest.mark.parametrize("model", mig.PROFILES)
def test_agent_sees_the_whole_gpu_so_that_others_name_the_same_profiles(tmp_path, model):
    _, out = Machine(f"{model}:mig=none", tmp_path).run(f"import json\n{SIZES}")
    total, profiles = json.loads(out.splitlines()[0])
    for name, slices, size in profiles:
        assert name.partition("+")[0] == name_of(slices, size, total)


def test_another_size_of_the_gpu_would_rename_its_profiles():
    size = 9984 << 20  # of 1g.10gb of an H100
    assert [name_of(1, size, total * GIB) for total in (80, 70)] == ["1g.10gb", "1g.18gb"]


def test_id_of_an_instance_says_nothing_about_its_place(empty):
    two = ((GRANT, "1g.10gb@6"), (OTHER, "1g.10gb@0"))
    _, out = empty.run(
        "; ".join(f"print(instances.ensure('{one}', share('{at}')).uuid)" for one, at in two)
    )
    assert [(one["place"], one["gi"]) for one in empty.records] == [
        ("1g.10gb@6", 7),
        ("1g.10gb@0", 8),
    ]
    empty.run(RELEASE)
    assert empty.there == {("1g.10gb", out.split()[1])}
    empty.run(f"instances.ensure('{GRANT}', share('1g.10gb@5'))")  # gets the id of the former
    assert [(one["place"], one["gi"]) for one in empty.records] == [
        ("1g.10gb@0", 8),
        ("1g.10gb@5", 7),
    ]


@pytest.mark.parametrize("specification", ["h100", "t4", "h100:mig=1g.10gb"])
def test_other_gpus_are_left_alone(tmp_path, specification):
    """MIG off, no MIG, and instances that the administrator made."""
    machine = Machine(specification, tmp_path)
    before = machine.there
    assert machine.run("print(instances.read(library))")[1].startswith("()")
    assert machine.there == before


def test_damaged_records_stop_the_agent(tmp_path):
    (tmp_path / mig_instances.FILE).write_text("{")
    with pytest.raises(errors.DataError, match=r"mig-instances.json: is damaged"):
        mig_instances.MigInstances(tmp_path, frozenset())


@pytest.mark.parametrize("text", ["", "0", "all,GPU-1", "GPU-1,", "MIG-1"])
def test_selection_that_names_no_gpu_is_refused(text):
    with pytest.raises(errors.UsageError, match="must be none, all, or UUIDs"):
        agent_settings.read_dynamic_mig(text, "--dynamic-mig")


def test_selections():
    assert agent_settings.read_dynamic_mig("none", "--dynamic-mig") == frozenset()
    assert agent_settings.read_dynamic_mig("all", "--dynamic-mig") == {"all"}
    assert agent_settings.read_dynamic_mig("GPU-1, GPU-2", "--dynamic-mig") == {"GPU-1", "GPU-2"}


def test_records_are_read_as_they_were_written(tmp_path):
    share = datatypes.NodeShare("GPU-x", 12, GIB, "1g.10gb@6")
    record = mig_instances.Record(GRANT, "GPU-x", share, "boot")
    found = mig_instances.MigInstances(tmp_path, frozenset(), lambda: "boot")
    found._put(record)
    assert mig_instances.MigInstances(tmp_path, frozenset()).records == {GRANT: record}
