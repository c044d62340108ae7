"""CUDA programs on the simulated driver: right bytes, right order, nothing lost when they die."""

import random
import signal
import subprocess
import sys
import time

import machine_room
import programs
import pytest

from pyvgpu.simulation import simulator

MIB = 1 << 20


@pytest.fixture(scope="module", name="machine")
def fixture_machine(tmp_path_factory):
    return simulator.open_machine("h100:2", tmp_path_factory.mktemp("timed"))


@pytest.fixture(scope="module", name="free_machine")
def fixture_free_machine(tmp_path_factory):
    return simulator.open_machine("h100:2", tmp_path_factory.mktemp("free"), mode="free")


@pytest.fixture(name="lonely")
def fixture_lonely(tmp_path):
    return simulator.open_machine("t4", tmp_path)


def free_bytes(machine):
    return int(programs.run(machine, "hammer", "free"))


def is_free_again(machine, amount):
    """Is *amount* free now or soon? Reaping right after another reap is delayed."""
    deadline = time.monotonic() + 120
    while free_bytes(machine) != amount:
        if time.monotonic() > deadline:
            return False
    return True


def end(process, how=signal.SIGKILL):
    process.send_signal(how)
    process.communicate()


UNTIMED = ["memory", "arrays", "pool", "ipc", "graphmemory", "multicast", "threads"]
PROGRAMS = [*UNTIMED, "streams", "graph", "green"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_finds_everything_right(machine, name):
    assert programs.run(machine, name) == "ok\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", UNTIMED)
def test_program_finds_everything_right_where_nothing_takes_time(free_machine, name):
    assert programs.run(free_machine, name) == "ok\n"


def test_h200_takes_only_written_memory(tmp_path):
    machine = simulator.open_machine("h200", tmp_path)
    held = programs.start(machine, "hammer", "hold", str(100 << 30))
    assert free_bytes(machine) < 50 << 30
    held.communicate("")
    files = sum(file.stat().st_blocks * 512 for file in machine.folder.iterdir())
    assert files < 64 * MIB


def test_memory_of_a_killed_process_is_free(lonely):
    before = free_bytes(lonely)
    held = programs.start(lonely, "hammer", "hold", str(1 << 30))
    assert free_bytes(lonely) <= before - (1 << 30)
    end(held)
    assert is_free_again(lonely, before)


def test_a_process_takes_what_a_killed_one_held(lonely):
    most = free_bytes(lonely) - 256 * MIB
    for _ in range(3):
        end(programs.start(lonely, "hammer", "hold", str(most)))
    held = programs.start(lonely, "hammer", "hold", str(most))
    held.communicate("")
    assert held.returncode == 0


@pytest.mark.slow
def test_processes_killed_at_random_lose_nothing(lonely):
    draw = random.Random(1)
    before = free_bytes(lonely)
    running = [programs.start(lonely, "hammer", "run", str(i)) for i in range(8)]
    for seed in range(100, 130):
        victim = running.pop(draw.randrange(len(running)))
        end(victim)
        assert victim.returncode == -signal.SIGKILL
        running.append(programs.start(lonely, "hammer", "run", str(seed)))
    for process in running:
        assert process.poll() is None, "a process ended by itself"
        end(process)
    assert is_free_again(lonely, before)
    left = sorted(file.name for file in lonely.folder.iterdir())
    assert left == ["machine.conf", "machine.lock", "owners", "state"]


def made_by_another_version(machine):
    """Make the machine's state look like that of another version of the simulator."""
    state = machine.folder / "state"
    with state.open("rb") as file:
        head = bytearray(file.read(4096))
    head[8:12] = (2).to_bytes(4, "little")
    state.write_bytes(head)


def test_state_left_by_another_version_is_recreated(lonely):
    before = free_bytes(lonely)
    made_by_another_version(lonely)
    assert free_bytes(lonely) == before


def test_state_in_use_by_another_version_is_not_touched(lonely):
    with programs.start(lonely, "hammer", "hold", "1000000") as process:
        made_by_another_version(lonely)
        with pytest.raises(AssertionError, match="another version of the simulator"):
            free_bytes(lonely)
        process.kill()


def test_stopped_process_blocks_no_other(lonely):
    stopped = programs.start(lonely, "hammer", "spin", "1000000", "1000")
    stopped.send_signal(signal.SIGSTOP)
    answer = programs.run(lonely, "hammer", "spin", "1000000", "5").split()
    assert answer[0] == "ready"
    assert float(answer[1]) >= 5
    end(stopped)


def test_event_times_include_the_turns_of_others(lonely):
    other = programs.start(lonely, "hammer", "spin", "1000000", "500")
    milliseconds = float(programs.run(lonely, "hammer", "spin", "1000000", "50").split()[1])
    assert milliseconds >= 90
    end(other)


def test_work_of_a_killed_process_is_forgotten(lonely):
    end(programs.start(lonely, "hammer", "spin", "1000000000", "900"))
    assert programs.run(lonely, "hammer", "spin", "1000", "1").startswith("ready")


def test_nth_call_fails_as_ordered(lonely):
    simulator.set_faults(lonely, "call cuMemAlloc_v2 3 2", "call cuCtxSynchronize * 719")
    answers = machine_room.run(lonely, sys.executable, "-c", FAULTS)
    assert answers.split() == ["0", "0", "2", "0", "719", "719"]


def test_lost_device_is_unavailable(lonely):
    simulator.set_faults(lonely, "lost 0")
    answers = machine_room.run(lonely, sys.executable, "-c", FAULTS)
    assert answers.split() == ["46"]


FAULTS = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
result = cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
if result:
    raise SystemExit(print(result))
assert cuda.cuCtxSetCurrent(context) == 0
for _ in range(4):
    print(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(512)))
print(cuda.cuCtxSynchronize())
print(cuda.cuCtxSynchronize())
"""

INIT = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        pytest.param(None, "machine.conf: cannot be read", id="no configuration"),
        pytest.param("nonsense\n", "its first line must be", id="another file"),
        pytest.param("pyvgpu-machine 1\nmode=fast\n", "must be timed or free", id="bad value"),
        pytest.param("pyvgpu-machine 1\n", "the key device is missing", id="no device"),
    ],
)
def test_broken_machine_is_named_in_one_line(lonely, tmp_path, conf, words):
    place = tmp_path / "broken"
    place.mkdir()
    if conf is not None:
        (place / "machine.conf").write_text(conf)
    environment = machine_room.environment(lonely) | {simulator.MACHINE_VARIABLE: str(place)}
    done = subprocess.run(
        [sys.executable, "-c", INIT], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "100\n"
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_a_machine_the_line_says_what_to_set(lonely):
    environment = machine_room.environment(lonely)
    del environment[simulator.MACHINE_VARIABLE]
    done = subprocess.run(
        [sys.executable, "-c", INIT], env=environment, capture_output=True, text=True
    )
    assert done.stdout == "100\n"
    assert simulator.MACHINE_VARIABLE in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_machine_beside_the_library_is_found(lonely, tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    libraries = machine_room.driver_folder(lonely)
    (folder / "libcuda.so.1").symlink_to((libraries / "libcuda.so.1").resolve())
    (folder / "simulated-machine").symlink_to(lonely.folder)
    environment = machine_room.environment(lonely) | {"LD_LIBRARY_PATH": str(folder)}
    del environment[simulator.MACHINE_VARIABLE]
    done = subprocess.run(
        [sys.executable, "-c", INIT], env=environment, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0\n", "")
