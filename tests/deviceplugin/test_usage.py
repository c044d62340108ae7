"""Usage of containers stays plausible, whatever a container writes to its ledger."""

import json
import os

import granted
import pytest
import rights
import work_source
from granted import GIB, grant_of, share_of

from pyvgpu import names
from pyvgpu._region import ffi
from pyvgpu.deviceplugin.telemetry import usage
from pyvgpu.deviceplugin.telemetry.usage import Reading, Use

SECOND = 10**9
OUT_OF_MEMORY = 2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(Reading(0), Reading(4), Use(), id="idle"),
        pytest.param(
            Reading(10, 2 * SECOND, SECOND, 5, 1),
            Reading(14, 3 * SECOND, 2 * SECOND, 8, 3, GIB, 2),
            Use(0.25, 1, GIB, 2, 3, 1, 2),
            id="a quarter of the time",
        ),
        pytest.param(
            Reading(0), Reading(2, 9 * SECOND), Use(1.0, 2.0), id="no more than all of the time"
        ),
        pytest.param(
            Reading(0, SECOND, SECOND, 5, 5), Reading(2), Use(), id="time does not go back"
        ),
        pytest.param(Reading(5), Reading(5, SECOND), Use(), id="at one moment"),
        pytest.param(
            Reading(5),
            Reading(10, suspended=True, host_bytes=GIB),
            Use(suspended=True, host_bytes=GIB),
            id="just suspended",
        ),
        pytest.param(
            Reading(5, suspended=True, host_bytes=GIB),
            Reading(10, suspended=True, host_bytes=GIB),
            Use(suspended=True, host_bytes=GIB, suspended_seconds=5),
            id="suspended",
        ),
    ],
)
def test_usage_from_two_readings(old, new, expected):
    assert usage.used(Use(), old, new) == expected


def test_sums_accumulate():
    before = Use(0.5, 7, GIB, 1, 2, 3, 4)
    after = usage.used(before, Reading(0), Reading(4, SECOND, SECOND, 1, 1))
    assert after == Use(0.25, 8, 0, 2, 3, 4, 0)


@pytest.fixture
def granted_two(places, machine, driver):
    """Two grants, and their usage."""
    made = {
        made_grant.id: made_grant
        for made_grant in (grant_of(share_of(machine), number=n) for n in (1, 2))
    }
    for grant in made.values():
        places.make(grant, driver)
    return made, usage.Uses(places, lambda: made)


def write(places, grant, busy_ns):
    """Write to a ledger like its container."""
    at = ffi.offsetof("struct usage_file", "compute") + ffi.offsetof(
        "struct usage_compute", "busy_ns"
    )
    file = os.open(places.path(grant.id) / names.USAGE_FILE, os.O_WRONLY)
    os.pwrite(file, busy_ns.to_bytes(8, "little"), at)
    os.close(file)


def test_invalid_ledger_keeps_the_last_usage(granted_two, places):
    made, using = granted_two
    first, second = made.values()
    uuid = first.shares[0].uuid
    using.poll()
    for grant in made.values():
        write(places, grant, 1000)
    using.poll()
    assert using.of(first.id, uuid).busy_seconds == pytest.approx(1e-6)
    os.truncate(places.path(first.id) / names.USAGE_FILE, 100)
    write(places, second, 10**18)
    using.poll()
    assert using.of(first.id, uuid).busy_seconds == pytest.approx(1e-6)  # the last known value
    assert 0 < using.of(second.id, uuid).ratio <= 1


def test_usage_of_ended_grants_is_dropped(granted_two):
    made, using = granted_two
    first, _ = made.values()
    using.poll()
    del made[first.id]
    using.poll()
    assert using.of(first.id, first.shares[0].uuid) == usage.NOTHING


WORKS = (
    work_source.LAUNCHES
    + """
begin()
for _ in range(50):
    check(plain())
wait()
answer([alloc(GIB)[0], alloc(4 * GIB)[0]])
sys.stdin.read()
"""
)


@rights.needs_mounts
def test_usage_of_a_real_container_returns_to_zero(granted_two, places, tmp_path):
    made, using = granted_two
    grant, idle = made.values()
    uuid = grant.shares[0].uuid
    edits = granted.edits_of(places.specification(grant.id))
    with granted.start(edits, tmp_path / "root", WORKS) as process:
        assert json.loads(process.stdout.readline()) == [0, OUT_OF_MEMORY]
        using.poll()
        found = using.of(grant.id, uuid)
        assert found.busy_seconds >= 0.04  # of 50 launches of a millisecond each
        assert 0 < found.ratio <= 1
        assert (found.refused, found.processes) == (1, 1)
        assert found.held_bytes >= GIB
        assert found.waits > 0
        process.stdin.close()
    using.poll()
    after = using.of(grant.id, uuid)
    assert (after.ratio, after.held_bytes, after.processes) == (0, 0, 0)
    assert after.busy_seconds == pytest.approx(found.busy_seconds)
    assert using.of(idle.id, uuid) == usage.NOTHING
