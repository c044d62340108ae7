"""Parameters of a simulated machine change what its devices and driver do."""

import pytest
import shim_room
import work_source

from pyvgpu import errors, simulator

GATE = """
import threading
begin()
gate, other = threading.Event(), P()
opened = ctypes.CFUNCTYPE(None, P)(lambda _: gate.wait())
check(cuda.cuStreamCreate(byref(other), UINT(1)))
check(cuda.cuLaunchHostFunc(stream, opened, None))
"""


@pytest.fixture
def ask(tmp_path):
    """Return a function that runs a program on the bare driver of a machine with a law."""

    def run(source, **law):
        machine = simulator.open_machine("h100", root=tmp_path, law=simulator.Law(**law))
        return shim_room.ask_bare(machine, work_source.LAUNCHES + GATE + source)

    return run


def test_a_stream_that_waits_holds_up_no_other(ask):
    """However much is launched into the other: more than all places of a machine of before."""
    answer = ask(
        """
spin_ns.value = 1000
behind = [plain() for _ in range(20)]
beside = [plain(on=other) for _ in range(3000)]
check(cuda.cuStreamSynchronize(other))
answer([set(behind + beside), cuda.cuStreamQuery(stream)])
gate.set()
wait()
""".replace("set(behind + beside)", "sorted(set(behind + beside))")
    )
    assert answer == [[0], 600]


LAUNCH_MANY = """
spin_ns.value = 1000
made, count = P(), [0]
check(cuda.cuCtxGetCurrent(byref(made)))
def launch():
    check(cuda.cuCtxSetCurrent(made))
    for _ in range(40):
        check(plain())
        count[0] += 1
thread = threading.Thread(target=launch)
thread.start()
"""


def test_a_launch_into_a_full_stream_waits_until_there_is_room(ask):
    answer = ask(
        LAUNCH_MANY
        + """
while count[0] < 15:
    time.sleep(0.001)
for _ in range(1000):
    check(plain(on=other))
    check(cuda.cuStreamSynchronize(other))
before = count[0]
gate.set()
thread.join()
wait()
answer([before, count[0]])
""",
        queue_depth=16,
    )
    assert answer == [15, 40]


def test_a_deeper_stream_has_room(ask):
    answer = ask(LAUNCH_MANY + "thread.join()\nanswer(count[0])\ngate.set()\nwait()\n")
    assert answer == 40


PAIRS = """
spin_ns.value = 100_000
events = [P() for _ in range(3)]
for event in events:
    check(cuda.cuEventCreate(byref(event), 0))
def record(event):
    check(cuda.cuEventRecord(event, stream))
def microseconds(begin, end):
    passed = ctypes.c_float()
    check(cuda.cuEventElapsedTime(byref(passed), begin, end))
    return round(passed.value * 1000, 2)
record(events[0])
record(events[1])
check(plain())
record(events[2])
gate.set()
wait()
answer([microseconds(events[0], events[1]), microseconds(events[1], events[2])])
"""


def test_events_take_the_time_that_the_law_says(ask):
    assert ask(PAIRS) == [0, 100]
    assert ask(PAIRS, event_ns=3000, event_late_ns=1500) == [3, 103]


@pytest.mark.parametrize(
    ("law", "complaint"),
    [
        ({"slice_ns": 0}, "slice_ns=0: must be from 1 to 1000000000"),
        ({"switch_ns": -1}, "switch_ns=-1: must be from 0 to 1000000000"),
        ({"event_ns": 3, "event_late_ns": 4}, "event_late_ns=4: must be from 0 to event_ns=3"),
        ({"queue_depth": 8193}, "queue_depth=8193: must be from 1 to 8192"),
    ],
)
def test_a_law_that_cannot_be_names_the_value_and_the_rule(law, complaint):
    with pytest.raises(errors.UsageError, match=complaint):
        simulator.Law(**law)


def test_events_cost_nothing_where_nothing_takes_time(tmp_path):
    with pytest.raises(errors.UsageError, match="event_ns=3000: must be 0 where mode=free"):
        simulator.open_machine(
            "h100", root=tmp_path, mode="free", law=simulator.Law(event_ns=3000)
        )


def test_a_machine_keeps_its_law(tmp_path):
    law = simulator.Law(slice_ns=2_500_000, switch_ns=100_000, queue_depth=256)
    made = simulator.open_machine("t4", root=tmp_path, law=law)
    assert simulator.read_machine(made.folder).law == law
    conf = made.folder / "machine.conf"
    conf.write_text(
        "".join(
            ln for ln in conf.read_text().splitlines(True) if "_ns=" not in ln or "kernel" in ln
        )
    )
    assert simulator.read_machine(made.folder).law == simulator.Law(queue_depth=256)


def test_a_kernel_tells_when_the_device_ran_it(ask):
    answer = ask("""
image, working = P(), P()
text = IMAGE.replace(b"sim_spin(.param .u64 ns)", b"sim_work(.param .u64 ns, .param .u64 out)")
check(cuda.cuModuleLoadData(byref(image), text))
check(cuda.cuModuleGetFunction(byref(working), image, b"sim_work"))
out = alloc(64)[1]
for i in range(2):
    ns, at = U64(300_000), U64(out.value + 16 * i)
    both = (P * 2)(ctypes.addressof(ns), ctypes.addressof(at))
    check(cuda.cuLaunchKernel(working, 1, 1, 1, 1, 1, 1, 0, other, both, None))
check(cuda.cuStreamSynchronize(other))
times = (U64 * 4)()
check(cuda.cuMemcpyDtoH_v2(times, out, SIZE(32)))
gate.set()
wait()
answer([times[1] - times[0], times[3] - times[2], times[2] >= times[1] > 0])
""")
    assert answer == [300_000, 300_000, True]
