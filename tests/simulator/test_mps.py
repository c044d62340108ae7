"""MPS of simulated devices: the control daemon, its clients, their limits, and their ends."""

import contextlib
import os
import signal
import tempfile
from pathlib import Path

import checkpoints
import mps_room
import pytest
from waiting import wait_until

from pyvgpu.simulation import simulator

MIB, GIB = 1 << 20, 1 << 30
OUT_OF_MEMORY, ILLEGAL_ADDRESS, NOT_SUPPORTED = 2, 700, 801
CONNECTION_FAILED, RPC_FAILURE, SERVER_NOT_READY, MAX_CLIENTS, TERMINATED = 805, 806, 807, 808, 810
INIT = "cuda.cuInit(0)"
COMPUTE, MPS = (
    "listed('nvmlDeviceGetComputeRunningProcesses')",
    "listed('nvmlDeviceGetMPSComputeRunningProcesses')",
)


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100", tmp_path / "machines")


@pytest.fixture(name="daemon")
def fixture_daemon(machine, tmp_path):
    with mps_room.daemon(machine, tmp_path / "mps") as made:
        yield made


def test_without_a_daemon_there_is_no_mps(machine, tmp_path):
    with mps_room.Daemon(tmp_path / "none", machine).client() as client:
        client.send("context(); answer([enabled(), sms()])")
        assert client.answer() == [0, 132]


@pytest.mark.parametrize(
    ("percent", "sms"),
    [("100", 132), ("50", 66), ("14", 18), ("7", 8), ("1", 8), ("0", 132), ("many", 132)],
)
def test_a_client_has_its_percentage_of_the_sms(daemon, percent, sms):
    with daemon.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percent) as client:
        client.send("context(); answer([enabled(), sms()])")
        assert client.answer() == [1, sms]


def test_a_client_can_only_lower_the_default_percentage_of_the_next_server(daemon):
    assert daemon.ask("get_default_active_thread_percentage") == ["100.0"]
    assert daemon.ask("set_default_active_thread_percentage 25") == ["25.0"]
    for percent, sms in (("50", 32), ("10", 12)):
        with daemon.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percent) as client:
            client.send("context(); answer(sms())")
            assert client.answer() == sms


def test_the_memory_limit_is_one_of_each_process(daemon, machine):
    uuid = machine.devices[0].uuid
    limits = {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0=4G,{uuid}=2048M"}
    with daemon.client(**limits) as one, daemon.client(**limits) as two:
        for client in (one, two):
            client.send("context(); answer([allocate(1 << 30), allocate(1 << 30)])")
            assert client.answer() == [0, OUT_OF_MEMORY]


def test_nvml_lists_the_server_and_its_clients_once(daemon, machine):
    context = machine.devices[0].context_bytes
    with daemon.client() as client:
        client.send("context(); answer(allocate(1 << 30))")
        assert client.answer() == 0
        server = daemon.server
        assert client.ask(COMPUTE) == {str(server): 30 * MIB}
        assert client.ask(MPS) == {str(client.pid): GIB + context}
        assert client.ask("used()") - GIB - context - 30 * MIB in (
            0,
            machine.devices[0].reserved_bytes,
        )
        assert daemon.ask(f"get_client_list {server}") == [str(client.pid)]
    wait_until(lambda: daemon.ask(f"get_client_list {server}") == [])


def test_clients_lose_a_server_that_ends_and_the_next_has_a_new_one(daemon):
    with daemon.client() as client:
        client.send("context(); answer(allocate(1))")
        assert client.answer() == 0
        first = daemon.server
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: client.ask("allocate(1)") == RPC_FAILURE)
        with daemon.client() as other:
            assert other.ask(INIT) == 0
            assert daemon.server != first
            assert client.ask("allocate(1)") == RPC_FAILURE
    assert f"Server {first} exited with signal 9" in (daemon.folder / "server.log").read_text()


def test_clients_lose_a_daemon_that_ends_and_the_next_do_not_start(daemon):
    with daemon.client() as client:
        client.send("context(); answer(allocate(1))")
        assert client.answer() == 0
        server = daemon.server
        os.kill(daemon.pid, signal.SIGKILL)
        wait_until(lambda: client.ask("allocate(1)") == RPC_FAILURE)
        wait_until(lambda: not Path(f"/proc/{server}/exe").exists())
        with daemon.client() as other:
            assert other.ask(INIT) == CONNECTION_FAILED
    ran = daemon.run("get_server_list")
    assert ran.returncode == 1
    assert "Cannot find MPS control daemon process" in ran.stderr
    daemon.start()
    with daemon.client() as other:
        assert other.ask(INIT) == 0


def test_a_fatal_error_of_one_client_ends_all_and_others_wait(daemon):
    with contextlib.ExitStack() as clients:
        one = clients.enter_context(daemon.client())
        two = clients.enter_context(daemon.client())
        for client in (one, two):
            client.send("context(); answer(allocate(1))")
            assert client.answer() == 0
        server = daemon.server
        assert daemon.ask(f"get_server_status {server}") == ["ACTIVE"]
        assert one.ask("crash()") == ILLEGAL_ADDRESS
        assert two.ask("allocate(1)") == ILLEGAL_ADDRESS
        assert daemon.ask(f"get_server_status {server}") == ["FAULT"]
        with daemon.client() as other:
            assert other.ask(INIT) == SERVER_NOT_READY
    wait_until(lambda: daemon.ask(f"get_client_list {server}") == [])
    with daemon.client() as other:
        assert other.ask(INIT) == 0
        assert daemon.ask(f"get_server_status {server}") == ["ACTIVE"]


def test_a_terminated_client_leaves_the_others(daemon):
    with daemon.client() as one, daemon.client() as two:
        for client in (one, two):
            client.send("context(); answer(allocate(1))")
            assert client.answer() == 0
        assert daemon.ask(f"terminate_client {daemon.server} {one.pid}") == ["CUDA_SUCCESS"]
        assert one.ask("allocate(1)") == TERMINATED
        assert two.ask("allocate(1)") == 0


def test_a_server_has_a_limited_number_of_clients(tmp_path):
    law = simulator.Law(mps_clients=1)
    machine = simulator.open_machine("h100", tmp_path / "machines", law=law)
    with (
        mps_room.daemon(machine, tmp_path / "mps") as daemon,
        daemon.client() as one,
        daemon.client() as two,
    ):
        assert one.ask(INIT) == 0
        assert two.ask(INIT) == MAX_CLIENTS


def test_a_folder_has_one_daemon(daemon):
    ran = mps_room.Daemon(daemon.folder, daemon.machine)
    with pytest.raises(Exception, match="non-zero exit status 1"):
        ran.start()
    assert daemon.ask("get_server_list") == []


def test_a_client_cannot_be_checkpointed(daemon, machine):
    with daemon.client() as client, checkpoints.caller(machine) as caller:
        client.send("context(); answer(allocate(1))")
        assert client.answer() == 0
        assert caller.ask(f"[lock({client.pid}), checkpoint({client.pid})]") == [0, NOT_SUPPORTED]


@pytest.mark.skipif(os.geteuid() != 0, reason="must be root, to become another user")
@pytest.mark.parametrize(
    ("options", "waits"), [((), True), (("-multiuser-server",), False)], ids=["one", "all"]
)
def test_another_user_is_served_at_once_only_by_a_server_for_all(options, waits):
    with tempfile.TemporaryDirectory(prefix="pyvgpu-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        machines = folder / "machines"
        machines.mkdir()
        machines.chmod(0o1777)
        machine = simulator.open_machine("h100", machines, mode="free")
        with mps_room.daemon(machine, folder / "mps", *options) as daemon:
            for path in (daemon.folder, *daemon.folder.iterdir()):
                path.chmod(0o777)
            with daemon.client() as one, daemon.client() as two:
                one.send("context(); answer(enabled())")
                assert one.answer() == 1
                before = daemon.server
                two.send(f"os.setgid(65534); os.setuid(65534); answer({INIT})")
                if waits:  # until the first user's programs have ended, and with them the server
                    one.process.kill()
                assert two.answer() == 0
                assert (daemon.server != before) is waits
