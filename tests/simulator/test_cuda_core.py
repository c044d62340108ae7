"""NVIDIA's cuda.core checkpoints processes on the bare simulator, as its documentation says.

Its wheel has no tests, and no source archive is published: these are the same scenarios. Restoring
to another device is not simulated, which cuda.core reports as not supported by the driver.
"""

import checkpoints
import machine_room
import pytest

from pyvgpu.simulation import simulator

pytestmark = pytest.mark.clients

TARGET = (
    checkpoints.TARGET
    + """
from cuda.core import Device
Device(0).set_current()
uuid = Device(0).uuid
"""
)
CALLER = """
from cuda.core import Device, checkpoint
def tried(act, *arguments, **named):
    try:
        act(*arguments, **named)
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return "done"
"""
UNSUPPORTED = "RuntimeError: CUDA checkpointing is not supported by the installed NVIDIA driver."


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100:2", tmp_path)


@pytest.fixture(name="target")
def fixture_target(machine):
    with checkpoints.lines(TARGET, machine_room.environment(machine)) as made:
        yield made


@pytest.fixture(name="caller")
def fixture_caller(machine, target):
    with checkpoints.lines(CALLER, machine_room.environment(machine)) as made:
        made.send(f"process = checkpoint.Process({target.pid})")
        yield made


def test_first_state_is_running_and_the_restore_thread_is_one_of_the_target(caller, target):
    assert caller.ask("process.state") == "running"
    thread = caller.ask("process.restore_thread_id")
    assert thread in target.ask("[int(x) for x in os.listdir('/proc/self/task')]")


@pytest.mark.parametrize("timeout_ms", [0, 5000])
def test_lock_and_unlock(caller, timeout_ms):
    assert caller.ask(f"tried(process.lock, timeout_ms={timeout_ms})") == "done"
    assert caller.ask("process.state") == "locked"
    assert caller.ask("[tried(process.unlock), process.state]") == ["done", "running"]


def test_lock_that_times_out_raises_and_leaves_the_process_running(caller, target):
    target.send("spin(3_000_000_000); answer(1)")
    assert target.answer() == 1
    assert "CUDA_ERROR_NOT_READY" in caller.ask("tried(process.lock, timeout_ms=100)")
    assert caller.ask("process.state") == "running"


def test_memory_is_the_same_after_a_full_cycle(caller, target):
    target.send("p = alloc(64 << 20); fill(p); answer(p > 0)")
    assert target.answer() is True
    for step, state in (
        ("lock", "locked"),
        ("checkpoint", "checkpointed"),
        ("restore", "locked"),
        ("unlock", "running"),
    ):
        assert caller.ask(f"[tried(process.{step}), process.state]") == ["done", state]
    assert target.ask("[is_intact(p), Device(0).uuid == uuid]") == [True, True]


@pytest.mark.parametrize("step", ["checkpoint", "restore", "unlock"])
def test_steps_of_a_running_process_raise_and_change_nothing(caller, step):
    assert "CUDA_ERROR_ILLEGAL_STATE" in caller.ask(f"tried(process.{step})")
    assert caller.ask("process.state") == "running"


def test_restore_to_another_device_is_not_supported_and_to_the_same_one_is(caller, target):
    caller.send(
        "uuids = [Device(i).uuid for i in range(2)]; swapped = dict(zip(uuids, uuids[::-1]))"
    )
    assert caller.ask("[tried(process.lock), tried(process.checkpoint)]") == ["done", "done"]
    said = caller.ask("tried(process.restore, gpu_mapping=swapped)")
    assert said.startswith(UNSUPPORTED)
    assert caller.ask("process.state") == "checkpointed"
    assert caller.ask("tried(process.restore, gpu_mapping={u: u for u in uuids})") == "done"
    assert caller.ask("tried(process.unlock)") == "done"
    assert target.ask("Device(0).uuid == uuid") is True


def test_pid_that_is_no_cuda_process_raises(caller):
    said = caller.ask("tried(lambda: checkpoint.Process(os.getppid()).state)")
    assert "CUDA_ERROR_NOT_INITIALIZED" in said
    assert "CUDA_ERROR_OPERATING_SYSTEM" in caller.ask(
        "tried(lambda: checkpoint.Process(1 << 30).state)"
    )


@pytest.mark.parametrize(
    ("version", "said"),
    [pytest.param(12040, UNSUPPORTED, id="550"), pytest.param(12080, "done", id="570")],
)
def test_drivers_have_checkpoints_since_release_570(tmp_path, version, said):
    machine = simulator.open_machine("h100", tmp_path)
    conf = machine.folder / "machine.conf"
    conf.write_text(conf.read_text().replace("cuda_version=13000", f"cuda_version={version}"))
    environment = machine_room.environment(machine)
    with (
        checkpoints.target(machine) as target,
        checkpoints.lines(CALLER, environment) as caller,
    ):
        target.send("context(); answer(1)")
        assert target.answer() == 1
        found = caller.ask(f"tried(lambda: checkpoint.Process({target.pid}).state)")
        assert found.startswith(said)
