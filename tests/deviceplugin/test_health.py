"""A device is unhealthy after an Xid or a failed probe, and recovers by itself."""

import contextlib
import json
import subprocess
import sys

import machine_room
import pytest
import shim_room
import waiting

from pyvgpu import nvml
from pyvgpu.deviceplugin.agent_settings import HealthRules
from pyvgpu.deviceplugin.devices import health
from pyvgpu.deviceplugin.devices.health import Condition
from pyvgpu.simulation import simulator

RULES = HealthRules(recover_seconds=60)
HEALTHY, UNHEALTHY = Condition(), Condition("Xid 48 (double-bit ECC error)", 100)


@pytest.mark.parametrize(
    ("before", "xid", "expected"),
    [
        pytest.param(HEALTHY, 79, "Xid 79 (it has fallen off the bus)", id="a device's own"),
        pytest.param(HEALTHY, 9999, "Xid 9999", id="an unknown one"),
        pytest.param(HEALTHY, 31, "", id="a program's own"),
        pytest.param(UNHEALTHY, 43, UNHEALTHY.reason, id="a program's own on an unhealthy device"),
        pytest.param(UNHEALTHY, 95, "Xid 95 (uncontained ECC error)", id="another one"),
    ],
)
def test_condition_after_an_xid(before, xid, expected):
    assert health.after_xid(before, xid, 200, RULES).reason == expected


def test_ignored_xids_are_configurable():
    rules = HealthRules(ignored_xids=frozenset({79}))
    assert health.after_xid(HEALTHY, 79, 1, rules) == HEALTHY
    assert health.after_xid(HEALTHY, 31, 1, rules).reason == "Xid 31"


@pytest.mark.parametrize(
    ("before", "trouble", "now", "expected"),
    [
        pytest.param(HEALTHY, "", 1e9, HEALTHY, id="healthy"),
        pytest.param(HEALTHY, "lost", 5, Condition("lost", 5), id="silent"),
        pytest.param(UNHEALTHY, "", 159, UNHEALTHY, id="not yet healthy"),
        pytest.param(UNHEALTHY, "", 160, HEALTHY, id="healthy again"),
        pytest.param(UNHEALTHY, "lost", 150, Condition("lost", 150), id="a new error"),
    ],
)
def test_condition_after_a_probe(before, trouble, now, expected):
    assert health.after_probe(before, trouble, now, RULES) == expected


WATCH = """
import json, logging, os, sys, time
from pathlib import Path
from pyvgpu.simulation import simulator
from pyvgpu.deviceplugin.devices import health
from pyvgpu.deviceplugin.agent_settings import HealthRules
logging.disable()
health.PROBE_SECONDS = 0.1
health.AGAIN_SECONDS = 0.05
machine = simulator.read_machine(Path(sys.argv[2]))
at = {one.uuid: index for index, one in enumerate(machine.devices)}
def report(news):
    print(json.dumps({at[uuid]: reason for uuid, reason in news.items()}), flush=True)
uuids = [*at]
if len(sys.argv) > 3:
    at[sys.argv[3]] = 99
    uuids.append(sys.argv[3])
library = Path(sys.argv[1]) / "libnvidia-ml.so.1"
unhealthy = dict.fromkeys(uuids, "") | json.loads(os.environ.get("UNHEALTHY", "{}"))
watcher = health.HealthWatcher(library, unhealthy, HealthRules(recover_seconds=0.3), report)
print(json.dumps("watching"), flush=True)
watcher.start()
sys.stdin.read()
watcher.stop()
"""


@contextlib.contextmanager
def watched(machine, *more, folder=None, unhealthy=None):
    folder = folder or machine_room.driver_folder(machine)
    with subprocess.Popen(
        [sys.executable, "-c", WATCH, folder, machine.folder, *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**machine_room.environment(machine), "UNHEALTHY": json.dumps(unhealthy or {})},
    ) as process:
        assert json.loads(process.stdout.readline()) == "watching"
        yield lambda: json.loads(process.stdout.readline())
        process.stdin.close()
        assert process.wait(timeout=waiting.PROMPT) == 0
        assert process.stdout.read() == ""


@pytest.fixture
def machine(tmp_path):
    return simulator.open_machine("t4:3", tmp_path / "machines")


@pytest.mark.slow
def test_lost_device_is_unhealthy_until_it_is_back(machine):
    with watched(machine) as news:
        simulator.set_faults(machine, "lost 1")
        assert news() == {"1": "it does not answer: GPU is lost"}
        simulator.set_faults(machine)
        assert news() == {"1": ""}
        simulator.set_faults(machine, "xid 1 79")
        assert news() == {"1": "Xid 79 (it has fallen off the bus)"}
        simulator.set_faults(machine)
        assert news() == {"1": ""}


@pytest.mark.slow
def test_xid_affects_only_its_device_and_application_xids_none(machine):
    with watched(machine) as news:
        # Events before the watcher has subscribed are lost, so repeat them until it reports one.
        simulator.set_faults(machine, "lost 0")
        assert news() == {"0": "it does not answer: GPU is lost"}
        simulator.set_faults(machine, "xid 2 31")
        assert news() == {"0": ""}
        simulator.set_faults(machine, "xid 2 13", "xid 2 48", "xid 1 43")
        assert news() == {"2": "Xid 48 (double-bit ECC error)"}
        assert news() == {"2": ""}


def test_missing_device_is_reported_at_once(machine):
    with watched(machine, "GPU-00000000-0000-0000-0000-000000000000") as news:
        assert news() == {"99": "it is not there any more"}


def test_without_a_driver_all_devices_are_unhealthy(machine, tmp_path):
    with watched(machine, folder=tmp_path) as news:
        found = news()
        assert set(found) == {"0", "1", "2"}
        assert all(reason.startswith("NVML does not answer") for reason in found.values())


def test_device_in_mig_mode_is_unhealthy_until_it_is_off(machine):
    with watched(machine) as news:
        simulator.set_faults(machine, "mig 1")
        assert news() == {"1": nvml.MIG_MODE}
        simulator.set_faults(machine)
        assert news() == {"1": ""}


def test_recovery_of_an_initially_unhealthy_device_is_reported(machine):
    with watched(machine, unhealthy={machine.devices[2].uuid: nvml.MIG_MODE}) as news:
        assert news() == {"2": ""}


PROBE = """
import json, sys
from pathlib import Path
from pyvgpu import nvml
from pyvgpu.deviceplugin.devices import health
with nvml.session(Path(sys.argv[1]) / "libnvidia-ml.so.1"):
    print(json.dumps([health.probe(uuid).__getstate__() for uuid in sys.argv[2:]]))
"""


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        pytest.param(3, "", id="a board without MIG"),
        pytest.param(13, "", id="a driver that knows no MIG"),
        pytest.param(999, "it does not answer: Unknown Error", id="no answer"),
    ],
)
def test_device_without_mig_support_is_healthy(machine, code, trouble):
    simulator.set_faults(machine, f"call nvmlDeviceGetMigMode * {code}")
    command = (PROBE, machine_room.driver_folder(machine), machine.devices[0].uuid)
    found = subprocess.run(
        [sys.executable, "-c", *command],
        env=machine_room.environment(machine),
        capture_output=True,
        text=True,
        check=True,
    )
    ((said, *_),) = json.loads(found.stdout)
    assert said == trouble


def test_probe_returns_usage_and_bus_id(machine):
    source = (
        shim_room.PRELUDE + "context()\nanswer([alloc(GIB)[0], os.getpid()])\nsys.stdin.read()"
    )
    uuids = [device.uuid for device in machine.devices]
    with subprocess.Popen(
        [sys.executable, "-c", source],
        env=shim_room.bare_environment(machine),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as using:
        assert json.loads(using.stdout.readline())[0] == 0
        found = subprocess.run(
            [sys.executable, "-c", PROBE, machine_room.driver_folder(machine), *uuids, "GPU-x"],
            env=machine_room.environment(machine),
            capture_output=True,
            text=True,
            check=True,
        )
        using.stdin.close()
    *answers, strange = json.loads(found.stdout)
    assert [trouble for trouble, *_ in answers] == ["", "", ""]
    used = [size for _, size, _, _ in answers]
    assert used[0] - used[1] >= 1 << 30
    assert used[1] == used[2]
    assert all(0 <= busy <= 1 for _, _, busy, _ in answers)
    assert len({bus_id for *_, bus_id in answers}) == 3
    assert strange[0] == "it is not there any more"


NO = health.NO_INSTANCE


@pytest.mark.parametrize(
    ("source", "event", "concerned"),
    [
        pytest.param(("GPU-a",), ("GPU-a", NO, NO), True, id="a whole GPU"),
        pytest.param(("GPU-a",), ("GPU-b", NO, NO), False, id="another GPU"),
        pytest.param(("GPU-a", 2, 0), ("GPU-a", NO, NO), True, id="all MIG devices of its GPU"),
        pytest.param(("GPU-a", 2, 0), ("GPU-a", 2, 0), True, id="its own instances"),
        pytest.param(("GPU-a", 2, 0), ("GPU-a", 2, NO), True, id="its GPU instance"),
        pytest.param(("GPU-a", 2, 0), ("GPU-a", 2, 1), False, id="another compute instance"),
        pytest.param(("GPU-a", 2, 0), ("GPU-a", 1, 0), False, id="another GPU instance"),
        pytest.param(("GPU-a", 2, 0), ("GPU-b", 2, 0), False, id="those ids on another GPU"),
    ],
)
def test_xid_concerns_the_devices_that_have_its_instances(source, event, concerned):
    assert health.HealthSource(*source).concerns(*event) is concerned
