"""Programs under MPS are terminated by MPS before they are killed."""

import contextlib
import dataclasses
import datetime
import os
import signal
import tempfile
from pathlib import Path

import mps_room
import pytest
from waiting import wait_until

from pyvgpu import quota, shim
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.devices import mps_clients, mps_daemons
from pyvgpu.machine import mps_limits
from pyvgpu.simulation import simulator

NOW = 1_800_000_000.0  # seconds since the epoch
CLIENT_TERMINATED = 810
GRANT = "0123456789abcdef"


@pytest.fixture(name="machine")
def fixture_machine(tmp_path):
    return simulator.open_machine("h100", tmp_path / "machines")


@pytest.fixture(name="daemons")
def fixture_daemons(machine):
    """The daemon of the machine's device, which has answered."""
    with running(machine) as made:
        yield made


@contextlib.contextmanager
def running(machine, lost=lambda *_: None):
    """Run the daemons of the machine's devices, which have answered."""
    with tempfile.TemporaryDirectory(prefix="mps-") as run:
        made = mps_daemons.MpsDaemons(Path(run), lambda *_, **__: None, lost)
        root = Path(run) / "root/usr"
        root.mkdir(parents=True)
        (root / "bin").symlink_to(shim.simulator_libraries())
        made.follow(
            [
                mps_daemons.MpsDevice(one.uuid, "gpu", mps_limits.DeviceFacts(False, (9, 0), 132))
                for one in machine.devices
            ],
            driver(machine, root.parent),
        )
        made.poll()
        try:
            yield made
        finally:
            made.stop(lambda _: False)


def driver(machine, root):
    library = shim.simulator_libraries() / "libnvidia-ml.so.1"
    return mps_daemons.MpsDriver(root, library, "1", machine.environment)


def uuid(machine):
    return machine.devices[0].uuid


def client(daemons, machine):
    return mps_room.Daemon(daemons.folder / uuid(machine), machine).client()


def grant(machine, grant_id=GRANT, isolation=quota.Isolation.MPS):
    return grants.Grant(
        grant_id,
        frozenset({"a"}),
        NOW,
        grants.Owner("uid", "space", "p", "a"),
        shares=(datatypes.NodeShare(uuid(machine), 50, 1 << 30),),
        isolation=isolation,
    )


def pod(seconds, grace=30):
    """A pod that kubelet kills in that many seconds."""
    at = datetime.datetime.fromtimestamp(NOW + seconds, datetime.UTC)
    stamp = at.isoformat().replace("+00:00", "Z")
    return {"metadata": {"deletionTimestamp": stamp, "deletionGracePeriodSeconds": grace}}


def leaving(daemons, machine, known, owners, **more):
    return mps_clients.LeavingClients(
        daemons,
        lambda: [grant(machine, **more)],
        lambda _: known,
        lambda pid: owners.get(pid, ""),
        lambda: NOW,
    )


def start(program):
    program.send("context(); answer(enabled())")
    assert program.answer() == 1


@pytest.mark.slow
def test_clients_of_a_pod_end_shortly_before_its_kill_and_others_stay(daemons, machine):
    with client(daemons, machine) as own, client(daemons, machine) as other:
        start(own)
        (pid,) = daemons.clients(uuid(machine))
        start(other)
        owners = dict.fromkeys(daemons.clients(uuid(machine)), "f" * 16) | {pid: GRANT}
        for early in ({"metadata": {}}, pod(20), None):
            leaving(daemons, machine, early, owners).poll()
        quotas = {"isolation": quota.Isolation.QUOTA}
        leaving(daemons, machine, pod(1), owners, **quotas).poll()
        assert own.ask("allocate(1)") == 0
        leaving(daemons, machine, pod(4), owners).poll()
        wait_until(lambda: own.ask("allocate(1)") == CLIENT_TERMINATED)
        assert other.ask("allocate(1)") == 0
        assert not daemons.trouble(uuid(machine))


@pytest.mark.slow
def test_daemon_whose_device_is_gone_is_not_started_again(tmp_path):
    """The agent may have read its devices again in the middle of a check of all daemons."""
    machine = simulator.open_machine("h100:2", tmp_path / "machines")
    first, second = (one.uuid for one in machine.devices)
    lost = []

    def read_again(uuid, _text):
        lost.append(uuid)
        made.follow([], driver(machine, tmp_path))

    with running(machine, read_again) as made:
        made.stop(lambda _: True)  # its own checks
        os.kill(mps_room.Daemon(made.folder / first, machine).pid, signal.SIGKILL)
        made.poll()
        assert lost == [first]
        assert not (made.folder / first).exists()
        assert not (made.folder / second).exists()


@pytest.mark.slow
def test_process_that_the_audit_kills_is_terminated_first(daemons, machine):
    with client(daemons, machine) as own:
        start(own)
        (pid,) = daemons.clients(uuid(machine))
        daemons.before_kill(1)
        assert own.ask("allocate(1)") == 0
        daemons.before_kill(pid)
        wait_until(lambda: own.ask("allocate(1)") == CLIENT_TERMINATED)


@pytest.mark.parametrize(
    ("seconds", "grace", "terminated"),
    [
        pytest.param(6, 30, False, id="early"),
        pytest.param(5, 30, True, id="5 s before the kill"),
        pytest.param(2, 2, False, id="short grace period, early"),
        pytest.param(1, 2, True, id="half of a short grace period"),
        pytest.param(0, 0, True, id="no grace period"),
    ],
)
def test_moment_depends_on_the_grace_period(machine, seconds, grace, terminated):
    @dataclasses.dataclass
    class Daemons:
        ended: list[int] = dataclasses.field(default_factory=list)

        def clients(self, _uuid):
            return (7,)

        def terminate(self, _uuid, pid):
            self.ended.append(pid)
            return True

    found = Daemons()
    leaving(found, machine, pod(seconds, grace), {7: GRANT}).poll()
    assert found.ended == ([7] if terminated else [])
