"""Detection of ledgers that a program other than the shim has changed."""

import dataclasses

import pytest

from pyvgpu import region
from pyvgpu.machine import ledger_reconcile, tampering

MIB = 1 << 20
LAST = region.SLOTS - 1


def slot(number, *charged, started=1):
    return region.SlotUsage(
        number, 100 + number, 0, "train", started, 0, charged, (0,) * len(charged)
    )


def sample(slots, held, owners, after=None):
    return tampering.LedgerSample(slots, held, slots if after is None else after, owners)


def compared(*samples, alive=()):
    """Return the findings of consecutive *samples*."""
    memory = tampering.EarlierSlots(lambda pid: pid in alive)
    found = [memory.compare(one_sample) for one_sample in samples]
    return [lacking for lacking, _ in found], [
        [change.text for change in changes] for _, changes in found
    ]


HONEST = sample([slot(0, 1500 * MIB)], [{7: 1500 * MIB}], {7: 0})
ZEROED = sample([slot(0, 0)], [{7: 1500 * MIB}], {7: 0})
HALVED = sample([slot(0, 700 * MIB)], [{7: 1500 * MIB}], {7: 0})
FREED = sample([slot(0, 500 * MIB)], [{7: 520 * MIB}], {7: 0})
LATE = sample([slot(0, 500 * MIB)], [{7: 1500 * MIB}], {7: 0})


@pytest.mark.parametrize(
    ("samples", "texts"),
    [
        pytest.param([HONEST, HONEST], [], id="honest"),
        pytest.param([HONEST, FREED, FREED], [], id="freed"),
        pytest.param([HONEST, LATE, FREED, FREED], [], id="freed, and NVML says so later"),
        pytest.param(
            [HONEST, ZEROED, ZEROED],
            [
                "the charge of slot 0 fell from 1.5GiB to 0 bytes while process 7 holds 1.5GiB",
            ],
            id="zeroed",
        ),
        pytest.param(
            [HONEST, HALVED, HALVED],
            [
                "the charge of slot 0 fell from 1.5GiB to 700MiB while process 7 holds 1.5GiB",
            ],
            id="made less",
        ),
        pytest.param([HONEST, ZEROED, HONEST], [], id="seen once"),
        pytest.param(
            [ZEROED, ZEROED],
            ["slot 0 is charged nothing, and NVML says that process 7 holds 1.5GiB"],
            id="zeroed before the first poll",
        ),
    ],
)
def test_charges_changed_by_other_programs_are_named(samples, texts):
    _, found = compared(*samples, alive=(7,))
    assert found[-1] == texts
    assert not any(found[:-1])


@pytest.mark.parametrize("step_mib", [64, 10])
def test_small_falls_are_restored_but_not_named(step_mib):
    """NVML shows the same for a program that frees memory and loads code."""
    samples = [
        sample([slot(0, charged * MIB)], [{7: 1500 * MIB}], {7: 0})
        for charged in range(1500, 1000, -step_mib)
    ]
    _, found = compared(*samples, alive=(7,))
    assert not any(found)
    last = samples[-1]
    missing = 1500 * MIB - last.before[0].charged[0]
    excess = ledger_reconcile.find_excess(last.before, last.held, last.after, last.slots)
    assert missing >= 448 * MIB
    assert excess == {(0, 0): missing}


def test_a_larger_fall_is_named():
    less = sample([slot(0, 1500 * MIB - tampering.TOLERANCE_BYTES - 1)], [{7: 1500 * MIB}], {7: 0})
    _, found = compared(HONEST, less, less, alive=(7,))
    assert found[-1]


def test_charges_during_the_nvml_query_are_not_tampering():
    growing = sample([slot(0, 0)], [{7: 900 * MIB}], {7: 0}, after=[slot(0, 900 * MIB)])
    _, found = compared(growing, growing, alive=(7,))
    assert found == [[], []]


def test_a_process_that_leaves_the_device_is_not_tampering():
    gone = sample([slot(0, 0)], [{}], {})
    lacking, found = compared(HONEST, gone, gone, gone, alive=(7,))
    assert lacking == [{}, {}, {}, {}]
    assert not any(found)


def test_charges_kept_by_children_are_restored():
    """NVML lists no process for it, so its last charge is the only evidence of held memory."""
    ended = sample([slot(0, 1400 * MIB)], [{}], {})  # it had freed a little since the last poll
    zeroed = sample([slot(0, 0)], [{}], {})
    lacking, found = compared(HONEST, ended, zeroed, zeroed)
    assert lacking == [{}, {}, {(0, 0): 1400 * MIB}, {(0, 0): 1400 * MIB}]
    assert found[:-1] == [[], [], []]
    assert found[-1] == [
        "the charge of slot 0 fell from 1.4GiB to 0 bytes while its children keep 1.4GiB"
    ]


def test_a_new_process_in_a_slot_inherits_no_charges():
    ended = sample([slot(0, 1400 * MIB)], [{}], {})
    another = sample([slot(0, 0, started=2)], [{}], {})
    lacking, found = compared(HONEST, ended, another, another)
    assert lacking == [{}, {}, {}, {}]
    assert not any(found)


@pytest.mark.parametrize(
    ("slots", "held", "owners", "lacking"),
    [
        pytest.param([slot(0, 500)], [{7: 500}], {7: 0}, {}, id="all have slots"),
        pytest.param(
            [slot(0, 500)], [{7: 500, 8: 90}], {7: 0}, {(0, LAST): 90}, id="one has none"
        ),
        pytest.param([], [{8: 90}], {}, {(0, LAST): 90}, id="none has one"),
        pytest.param([slot(0, 500)], [{7: 500}], {}, {}, id="perhaps it is its slot"),
        pytest.param([slot(0, 500)], [{7: 700}], {}, {(0, LAST): 200}, id="and holds more"),
        pytest.param([slot(0, 500)], [{7: 500, 9: 90}], {7: 0}, {}, id="of another container"),
        pytest.param(
            [slot(0, 5, 6)],
            [{7: 5, 8: 1}, {7: 6, 8: 2}],
            {7: 0},
            {(0, LAST): 1, (1, LAST): 2},
            id="two devices",
        ),
    ],
)
def test_processes_without_a_slot_are_counted_completely(slots, held, owners, lacking):
    found = tampering.find_strangers(sample(slots, held, owners), (7, 8).__contains__, LAST)
    assert found == lacking


class Processes:
    """Processes by pid, with the slot that each claims."""

    def __init__(self):
        self.began, self.slots = {7: b"1", 8: b"2"}, {7: 0, 8: 1}
        self.owners = tampering.Owners(lambda pid, _: self.slots.get(pid), self.began.get)


LIVE = (slot(0, 5), slot(1, 5))


def test_a_process_keeps_its_slot_after_the_slot_changes():
    known = Processes()
    assert known.owners.slot_of(7, LIVE) == 0
    known.slots = {}
    assert known.owners.slot_of(7, LIVE) == 0
    assert set(known.owners.pids) == {7}


def test_a_slot_of_another_process_cannot_be_taken_over():
    known = Processes()
    assert known.owners.slot_of(7, LIVE) == 0
    known.slots[8] = 0
    assert known.owners.slot_of(8, LIVE) is None


def test_a_reused_pid_is_another_process():
    known = Processes()
    assert known.owners.slot_of(7, LIVE) == 0
    known.began[7], known.slots[7] = b"9", 1
    assert not known.owners.is_alive(7)
    known.owners.forget_dead()
    assert known.owners.slot_of(7, LIVE) == 1


def named(number, pid, namespace, *charged):
    return dataclasses.replace(slot(number, *charged), pid=pid, pid_namespace=namespace)


@pytest.mark.parametrize(
    ("entries", "slots", "merged"),
    [
        pytest.param([(0, 7, 1, 5), (1, 8, 1, 6)], {70: 0, 80: 1}, {0: 5, 1: 6}, id="one each"),
        pytest.param([(0, 7, 1, 5), (1, 7, 1, 6)], {70: 0}, {0: 11}, id="a later slot"),
        pytest.param([(0, 7, 1, 5), (1, 7, 1, 6)], {70: 1}, {1: 11}, id="an earlier slot"),
        pytest.param(
            [(0, 7, 1, 5), (1, 7, 2, 6)], {70: 0}, {0: 5, 1: 6}, id="of another namespace"
        ),
        pytest.param(
            [(0, 7, 0, 5), (1, 7, 0, 6)], {70: 0}, {0: 5, 1: 6}, id="of unknown namespaces"
        ),
        pytest.param(
            [(0, 7, 1, 5), (1, 7, 1, 6)], {70: 0, 80: 1}, {0: 5, 1: 6}, id="of another process"
        ),
        pytest.param([(0, 7, 1, 5), (1, 7, 1, 6)], {}, {0: 5, 1: 6}, id="of no known process"),
    ],
)
def test_slots_of_one_process_are_one(entries, slots, merged):
    found = tampering.merge_slots([named(*entry) for entry in entries], slots)
    assert {entry.slot: entry.charged[0] for entry in found} == merged
