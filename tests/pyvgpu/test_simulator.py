import dataclasses
import multiprocessing
import os
import re
import stat
import tempfile
from pathlib import Path

import forked
import pytest
import rights

from pyvgpu import errors, locks, models
from pyvgpu.simulation import simulator


@pytest.mark.parametrize(
    ("spec", "keys"),
    [
        pytest.param("h100", ["h100"], id="one"),
        pytest.param("h100:2", ["h100", "h100"], id="two alike"),
        pytest.param("h100,t4", ["h100", "t4"], id="two different"),
        pytest.param("a100-80g:2,t4,t4", ["a100-80g", "a100-80g", "t4", "t4"], id="mixture"),
        pytest.param(" H100 : 1 ", ["h100"], id="spaces and capitals"),
        pytest.param("t4:16", ["t4"] * 16, id="as many as there can be"),
    ],
)
def test_specification_names_a_model_per_device(spec, keys):
    assert [model.key for model in simulator.parse_machine(spec)] == keys


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        pytest.param("", "unknown model ''; the models are t4, a10, a100", id="nothing"),
        pytest.param("h101", "unknown model 'h101'; the models are t4", id="misspelt"),
        pytest.param("h100,", "unknown model ''", id="comma at the end"),
        pytest.param("h100:", "the number of devices is ''", id="no count"),
        pytest.param("h100:two", "the number of devices is 'two'", id="word"),
        pytest.param("h100:-1", "the number of devices is '-1'", id="negative"),
        pytest.param("h100:1.5", "the number of devices is '1.5'", id="fraction"),
        pytest.param("h100:٢", "the number of devices is", id="foreign digit"),
        pytest.param("h100:" + "9" * 5000, "the number of devices is", id="enormous"),
        pytest.param("h100:0", "1 to 16 devices, such as h100:2", id="zero"),
        pytest.param("h100:17", "1 to 16 devices", id="too many"),
        pytest.param("h100:9,t4:8", "1 to 16 devices", id="too many together"),
    ],
)
def test_bad_specification_gives_a_valid_example(spec, problem):
    with pytest.raises(errors.UsageError, match=re.escape(problem)):
        simulator.parse_machine(spec)


def test_models_have_the_boards_memory():
    boards = {model.key: model.board_mib for model in models.MODELS}
    assert boards["t4"] == 15360
    assert boards["h100"] == 81559
    assert boards["h200"] == 143771


def test_model_keys_are_unique_and_usable_in_a_folder_name():
    assert len(models.BY_KEY) == len(models.MODELS)
    for model in models.MODELS:
        assert re.fullmatch(r"[a-z0-9-]+", model.key)
        assert 0 < model.context_mib + model.reserved_mib < model.board_mib


def test_machine_is_the_same_when_opened_again(tmp_path):
    first = simulator.open_machine("h100:2", tmp_path)
    assert simulator.open_machine("h100:2", tmp_path) == first
    assert simulator.read_machine(first.folder) == first


def test_machines_differ_in_their_identities(tmp_path):
    first = simulator.open_machine("h100:2", tmp_path / "a")
    second = simulator.open_machine("h100:2", tmp_path / "b")
    uuids = [device.uuid for device in first.devices + second.devices]
    assert len(set(uuids)) == 4
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", u) for u in uuids)


def test_devices_are_in_the_order_of_their_buses(tmp_path):
    addresses = [device.pci for device in simulator.open_machine("t4:16", tmp_path).devices]
    assert addresses == sorted(set(addresses))


def test_folder_names_are_safe_in_path_lists(tmp_path):
    folders = {
        simulator.open_machine(spec, tmp_path).folder.name
        for spec in ("h100", "h100:2", "h100,t4", "t4,h100")
    }
    assert folders == {"h100", "h100_2", "h100+t4", "t4+h100"}


def test_folder_and_configuration_are_private(tmp_path):
    folder = simulator.open_machine("t4", tmp_path).folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "machine.conf").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_machines_in_a_shared_base_are_writable_by_all_users(tmp_path, mode):
    tmp_path.chmod(mode)
    folder = simulator.open_machine("t4", tmp_path).folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666}


@rights.as_root
@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_two_users_share_a_machine(mode):
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        base.chmod(mode)
        machine = simulator.open_machine("t4", base)

        def open_it():
            same = simulator.open_machine("t4", base)
            return same, simulator.open_machine("t4", base, mode="free")

        same, changed = forked.call(open_it, uid=forked.OTHER_UID)
        assert same == machine
        assert changed.devices == machine.devices
        assert simulator.open_machine("t4", base, mode="free").devices == machine.devices


def test_base_folder_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PYVGPU_SIMULATED_MACHINES", str(tmp_path))
    machine = simulator.open_machine("t4")
    assert machine.folder == tmp_path / "t4"
    assert machine.environment == {"PYVGPU_SIMULATED_MACHINE": str(tmp_path / "t4")}


def test_settings_are_recorded(tmp_path):
    machine = simulator.open_machine(
        "t4", tmp_path, mode="free", pools="placed", kernel_ns=7, kernels={"vector_add": 5000}
    )
    assert simulator.read_machine(machine.folder) == machine
    assert (machine.mode, machine.pools, machine.kernel_ns) == ("free", "placed", 7)
    assert machine.kernels == (("vector_add", 5000),)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        pytest.param({"mode": "fast"}, "mode='fast': must be timed or free", id="mode"),
        pytest.param({"pools": "x"}, "pools='x': must be flat or placed", id="pools"),
        pytest.param({"kernel_ns": -1}, "kernel_ns=-1: must be 0 or more", id="negative"),
        pytest.param({"kernels": {"k": -5}}, "k=-5: must be 0 or more", id="negative kernel"),
        pytest.param({"kernels": {"a=b": 1}}, "kernel 'a=b': must be", id="kernel name"),
        pytest.param({"kernels": {"a\nb": 1}}, "kernel 'a\\nb': must be", id="two lines"),
    ],
)
def test_bad_settings_are_refused_and_leave_no_machine(tmp_path, settings, problem):
    with pytest.raises(errors.UsageError, match=re.escape(problem)):
        simulator.open_machine("t4", tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


def hold_lock(path):
    """Hold a lock like that of a driver's process record: of the open file description."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    assert locks.take(descriptor, 64)
    return descriptor


def test_idle_machine_takes_new_settings_and_keeps_its_devices(tmp_path):
    before = simulator.open_machine("t4", tmp_path)
    after = simulator.open_machine("t4", tmp_path, mode="free")
    assert after == dataclasses.replace(before, mode="free")
    assert simulator.read_machine(after.folder) == after


def test_machine_in_use_is_neither_changed_nor_removed(tmp_path):
    machine = simulator.open_machine("t4", tmp_path)
    descriptor = hold_lock(machine.folder / "state")
    with pytest.raises(simulator.MachineBusyError, match="in use with mode=timed"):
        simulator.open_machine("t4", tmp_path, mode="free")
    with pytest.raises(simulator.MachineBusyError, match="in use, so it stays"):
        simulator.remove_machine(machine)
    assert simulator.open_machine("t4", tmp_path) == machine
    os.close(descriptor)
    simulator.remove_machine(machine)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", "first line must be 'pyvgpu-machine 1'", id="empty"),
        pytest.param("pyvgpu-machine 2\n", "first line must be", id="another version"),
        pytest.param("pyvgpu-machine 1\n", "it has no device", id="no device"),
        pytest.param("pyvgpu-machine 1\nmode\n", ":2: 'mode' must be key=value", id="no value"),
        pytest.param("pyvgpu-machine 1\ndevice=1\n", ":2: device=1: devices count", id="gap"),
        pytest.param("pyvgpu-machine 1\nmode=timed\ndevice=0\n", "is missing", id="no keys"),
    ],
)
def test_damaged_configuration_is_named(tmp_path, text, problem):
    (tmp_path / "t4").mkdir()
    (tmp_path / "t4" / "machine.conf").write_text(text)
    with pytest.raises(simulator.MachineError, match=re.escape(problem)):
        simulator.open_machine("t4", tmp_path)


def test_value_that_is_not_a_number_is_named(tmp_path):
    path = simulator.open_machine("t4", tmp_path).folder / "machine.conf"
    path.write_text(path.read_text().replace("sm_count=40", "sm_count=forty"))
    with pytest.raises(simulator.MachineError, match=r"machine\.conf: .*'forty'"):
        simulator.read_machine(path.parent)


def test_folder_of_another_machine_is_refused(tmp_path):
    machine = simulator.open_machine("t4", tmp_path)
    machine.folder.rename(tmp_path / "h100")
    with pytest.raises(simulator.MachineError, match="another machine than 'h100'"):
        simulator.open_machine("h100", tmp_path)


def test_folder_without_configuration_is_refused(tmp_path):
    with pytest.raises(simulator.MachineError, match=r"no machine\.conf in it"):
        simulator.read_machine(tmp_path)


def test_folder_that_cannot_be_created_is_no_invalid_machine(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(
        errors.UnavailableError,
        match="t4: the folder cannot be created: Not a d.*MACHINES names another, such as /dev",
    ):
        simulator.open_machine("t4", tmp_path / "file" / "machines")


@pytest.mark.skipif(not Path("/sys/kernel").is_dir(), reason="needs /sys")
def test_folder_that_may_not_be_created_is_a_denied_access():
    with pytest.raises(errors.PermissionDeniedError, match="t4: the folder cannot be created: "):
        simulator.open_machine("t4", Path("/sys/pyvgpu"))


def test_comments_and_keys_of_later_versions_are_ignored(tmp_path):
    machine = simulator.open_machine("t4", tmp_path)
    path = machine.folder / "machine.conf"
    path.write_text(path.read_text().replace("mode=", "# a comment\n\nlater=1\nmode="))
    machine_again = simulator.read_machine(machine.folder)
    assert machine_again == machine


def open_many_times(base, uuids):
    for _ in range(20):
        uuids.put(simulator.open_machine("t4", base).devices[0].uuid)


@pytest.mark.slow
def test_concurrent_processes_open_one_machine(tmp_path):
    context = multiprocessing.get_context("spawn")
    uuids = context.Queue()
    workers = [context.Process(target=open_many_times, args=(tmp_path, uuids)) for _ in range(4)]
    for worker in workers:
        worker.start()
    seen = {uuids.get(timeout=60) for _ in range(80)}
    for worker in workers:
        worker.join()
    assert len(seen) == 1


def test_faults_are_written_and_cleared(tmp_path):
    machine = simulator.open_machine("t4", tmp_path)
    simulator.set_faults(machine, "call cuMemAlloc_v2 3 2", "xid 0 79")
    assert (machine.folder / "faults").read_text() == "call cuMemAlloc_v2 3 2\nxid 0 79\n"
    simulator.set_faults(machine)
    assert (machine.folder / "faults").read_text() == ""


@pytest.mark.parametrize("line", ["", "call cuInit", "lost", "xid 0", "burn 0", "lost 0\nlost 1"])
def test_bad_fault_gives_a_valid_example(tmp_path, line):
    machine = simulator.open_machine("t4", tmp_path)
    with pytest.raises(errors.UsageError, match="such as 'call cuMemAlloc_v2 3 2'"):
        simulator.set_faults(machine, line)
