"""Work of every kind is charged to the time share; work that is only recorded is not."""

import os

import pytest
import work_source

from pyvgpu import names, region

MILLISECOND = 1_000_000
# The largest purchase, part of which may stay unused.
CHUNK_NS = 2 * MILLISECOND


@pytest.fixture
def half(make_room, machine):
    """Return a quota of half of the device's time."""
    return make_room(machine, vcore=50)


def charged(room):
    """Return what the container was charged."""
    file = os.open(room.folder / names.USAGE_FILE, os.O_RDONLY)
    try:
        return region.read_compute(file, 1)[0]
    finally:
        os.close(file)


def charged_ns(room):
    """Return the GPU time that the container was charged."""
    return charged(room).busy_ns


def ask(room, source):
    return room.ask(work_source.LAUNCHES + source)


@pytest.mark.parametrize("form", ["", "_ptsz"])
@pytest.mark.parametrize("launch", ["plain", "extended", "cooperative"])
def test_every_form_of_launch_is_paid_by_what_it_takes(half, launch, form):
    answer = ask(half, f"begin()\nanswer([{launch}({form!r}) for _ in range(40)])\nwait()\n")
    assert answer == [0] * 40
    assert 38 * MILLISECOND < charged_ns(half) < 60 * MILLISECOND


def test_whole_device_pays_nothing(room):
    assert ask(room, "begin()\nanswer([plain() for _ in range(40)])\nwait()\n") == [0] * 40
    assert charged_ns(room) == 0


def test_refused_launch_is_not_paid(half):
    answer = ask(
        half,
        """
begin()
call = cuda.cuLaunchKernel
answer([call(function, 0, 1, 1, 1, 1, 1, 0, stream, arguments, None) for _ in range(2000)][-1])
""",
    )
    assert answer == 1
    assert charged_ns(half) <= CHUNK_NS


def test_work_in_an_invalid_stream_is_refused_without_waiting(half):
    """Events in such a stream fail, too, and it has no work in flight."""
    answer = ask(
        half,
        """
begin()
answer([plain(on=P(77)) for _ in range(4)])
""",
    )
    assert answer == [400] * 4
    assert charged(half).waits == 0


@pytest.mark.parametrize("form", ["", "_ptsz"])
def test_capture_is_not_paid_and_each_launch_of_its_graph_is(half, form):
    captured = ask(
        half,
        f"""
begin()
graph = capture(lambda: [check(plain({form!r})) for _ in range(100)], {form!r})
nodes = SIZE()
check(cuda.cuGraphGetNodes(graph, None, byref(nodes)))
answer(nodes.value)
""",
    )
    assert captured == 100
    assert charged_ns(half) <= CHUNK_NS
    answer = ask(
        half,
        f"""
begin()
spin_ns.value = 400_000
executable = instantiate(capture(lambda: [check(plain()) for _ in range(5)]))
answer([cuda.cuGraphLaunch{form}(executable, stream) for _ in range(20)])
wait()
""",
    )
    assert answer == [0] * 20
    assert 38 * MILLISECOND < charged_ns(half) < 60 * MILLISECOND


def test_graph_in_a_capture_is_recorded_and_not_paid(half):
    answer = ask(
        half,
        """
begin()
child = instantiate(capture(lambda: check(plain())))
answer(capture(lambda: [check(cuda.cuGraphLaunch(child, stream)) for _ in range(50)]).value > 0)
""",
    )
    assert answer
    assert charged_ns(half) <= CHUNK_NS


def test_capture_that_was_broken_leaves_launches_as_they_were(half):
    answer = ask(
        half,
        """
begin()
graph = P()
check(cuda.cuStreamBeginCapture_v2(stream, 2))
check(plain())
broken = cuda.cuStreamSynchronize(stream)
ended = cuda.cuStreamEndCapture(stream, byref(graph))
answer([broken != 0, ended != 0, graph.value, [plain() for _ in range(40)]])
wait()
""",
    )
    assert answer == [True, True, None, [0] * 40]
    assert 38 * MILLISECOND < charged_ns(half) < 60 * MILLISECOND


def test_other_stream_works_and_pays_while_one_captures(half):
    """The shim must add nothing to the capture, in the strictest mode."""
    answer = ask(
        half,
        """
begin()
other, graph, nodes = P(), P(), SIZE()
check(cuda.cuStreamCreate(byref(other), UINT(1)))
check(plain(on=other))
check(cuda.cuStreamBeginCapture_v2(stream, 0))
results = [plain(on=other if turn % 2 else stream) for turn in range(80)]
check(cuda.cuStreamEndCapture(stream, byref(graph)))
check(cuda.cuGraphGetNodes(graph, None, byref(nodes)))
answer([set(results) == {0}, nodes.value])
wait()
""",
    )
    assert answer == [True, 40]
    assert 38 * MILLISECOND < charged_ns(half) < 65 * MILLISECOND


@pytest.mark.slow
def test_copies_and_sets_give_the_same_bytes_and_are_paid(half):
    answer = ask(
        half,
        """
begin()
size = 64 * MIB
results = []
there, back = (alloc(size)[1] for _ in range(2))
host = ctypes.create_string_buffer(4)
for value in range(8):
    results += [cuda.cuMemsetD8Async(there, value, SIZE(size), stream),
                cuda.cuMemcpyDtoDAsync_v2(back, there, SIZE(size), stream),
                cuda.cuMemcpyDtoHAsync_v2(host, back, SIZE(4), stream)]
    wait()
    results.append(host.raw != bytes([value] * 4))
answer(sum(results))
""",
    )
    assert answer == 0
    assert charged_ns(half) > 0


def test_fork_in_the_midst_of_a_wait_leaves_the_child_without_a_device_and_the_parent_working(
    half,
):
    answer = ask(
        half,
        """
begin()
spin_ns.value = 20_000_000
made, results = P(), []
check(cuda.cuCtxGetCurrent(byref(made)))
def work():
    check(cuda.cuCtxSetCurrent(made))
    results.extend(plain() for _ in range(10))
thread = threading.Thread(target=work)
thread.start()
codes = []
while not codes or (thread.is_alive() and len(codes) < 20):
    child = os.fork()
    if child == 0:
        os._exit(plain())
    codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
wait()
answer([results, set(codes) == {3}])
""",
    )
    assert answer == [[0] * 10, True]


def test_launch_behind_a_gate_that_its_own_thread_opens_does_not_hang(half):
    answer = ask(
        half,
        """
begin()
gate = threading.Event()
wait_for = ctypes.CFUNCTYPE(None, P)(lambda _: gate.wait())
check(cuda.cuLaunchHostFunc(stream, wait_for, None))
results = [plain() for _ in range(4)]
gate.set()
wait()
answer(results)
""",
    )
    assert answer == [0] * 4


def test_stream_that_waited_for_another_one_is_limited_afterwards(half):
    """The program only launches: no other call checks whether the stream's work has begun."""
    answer = ask(
        half,
        """
begin()
other, event, gate = P(), P(), threading.Event()
check(cuda.cuStreamCreate(byref(other), UINT(1)))
check(cuda.cuEventCreate(byref(event), UINT(0)))
wait_for = ctypes.CFUNCTYPE(None, P)(lambda _: gate.wait())
check(cuda.cuLaunchHostFunc(other, wait_for, None))
check(cuda.cuEventRecord(event, other))
check(cuda.cuStreamWaitEvent(stream, event, UINT(0)))
spin_ns.value = 200_000
results = [plain() for _ in range(50)]
gate.set()
results += [plain() for _ in range(1500)]  # more than a launch queue holds
answer(set(results) == {0})
wait()
""",
    )
    assert answer
    assert charged(half).waits > 0


def test_unseen_kernel_behind_a_gate_does_not_hang_beside_a_busy_thread(half):
    """Progress of another thread does not imply that the gate opens; the launch must return."""
    answer = ask(
        half,
        """
begin()
made, known, other, unseen = P(), P(), P(), P()
module, gate, over = P(), threading.Event(), threading.Event()
check(cuda.cuCtxGetCurrent(byref(made)))
check(cuda.cuStreamCreate(byref(known), UINT(1)))
check(cuda.cuStreamCreate(byref(other), UINT(1)))
check(cuda.cuModuleLoadData(byref(module), IMAGE))
check(cuda.cuModuleGetFunction(byref(unseen), module, b"sim_spin"))
def launch(on):
    return cuda.cuLaunchKernel(unseen, 7, 1, 1, 1, 1, 1, 0, on, arguments, None)
spin_ns.value = 100_000
busy = []
def go_on():
    check(cuda.cuCtxSetCurrent(made))
    while not over.is_set():
        check(plain(on=known))
        check(cuda.cuStreamSynchronize(known))
        busy.append(1)
thread = threading.Thread(target=go_on)
thread.start()
while len(busy) < 50:
    time.sleep(0.001)
wait_for = ctypes.CFUNCTYPE(None, P)(lambda _: gate.wait())
check(cuda.cuLaunchHostFunc(stream, wait_for, None))
results = [launch(stream), launch(other)]
gate.set()
over.set()
thread.join()
wait()
answer(results)
""",
    )
    assert answer == [0] * 2


def test_streams_and_contexts_that_end_meanwhile(half):
    answer = ask(
        half,
        """
begin()
results = []
for _ in range(20):
    made, own = P(), P()
    check(cuda.cuCtxCreate_v2(byref(made), 0, 0))
    check(cuda.cuStreamCreate(byref(own), UINT(1)))
    module, here = P(), P()
    check(cuda.cuModuleLoadData(byref(module), IMAGE))
    check(cuda.cuModuleGetFunction(byref(here), module, b"sim_spin"))
    for _ in range(3):
        results.append(cuda.cuLaunchKernel(here, 1, 1, 1, 1, 1, 1, 0, own, arguments, None))
    results.append(cuda.cuStreamDestroy_v2(own))
    results.append(cuda.cuCtxDestroy_v2(made))
answer(set(results) == {0})
""",
    )
    assert answer
    assert charged_ns(half) > 55 * MILLISECOND


def test_stream_that_captures_is_not_marked_by_its_own_thread(half):
    """It has earlier work, whose end another launch of the thread would check."""
    answer = ask(
        half,
        """
begin()
other, graph, results = P(), P(), []
check(cuda.cuStreamCreate(byref(other), UINT(1)))
spin_ns.value = 100_000
for mode in (0, 1, 2):
    results += [plain(), plain(), cuda.cuStreamBeginCapture_v2(stream, mode), plain()]
    for _ in range(3):
        time.sleep(0.006)
        results += [plain(on=other) for _ in range(40)]
    results += [plain(), cuda.cuStreamEndCapture(stream, byref(graph))]
answer(sorted(set(results)))
wait()
""",
    )
    assert answer == [0]


def test_other_threads_go_on_while_a_stream_that_waits_is_full(make_room, machine):
    """Setting a mark in it would wait for the gate, which the same thread may have to open."""
    answer = ask(
        make_room(machine, vcore=97),
        """
begin()
other, made, gate = P(), P(), threading.Event()
check(cuda.cuCtxGetCurrent(byref(made)))
check(cuda.cuStreamCreate(byref(other), UINT(1)))
spin_ns.value = 1000
for _ in range(300):
    check(plain())
    check(plain(on=other))
wait()
wait_for = ctypes.CFUNCTYPE(None, P)(lambda _: gate.wait())
check(cuda.cuLaunchHostFunc(stream, wait_for, None))
def fill():
    check(cuda.cuCtxSetCurrent(made))
    for _ in range(3000):
        check(plain())
thread = threading.Thread(target=fill)
thread.start()
time.sleep(0.05)
results = {plain(on=other) for _ in range(2000)}
gate.set()
thread.join()
wait()
answer(sorted(results))
""",
    )
    assert answer == [0]


@pytest.mark.slow
@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize(
    "wait",
    [
        "check(cuda.cuStreamSynchronize(stream))",
        "check(cuda.cuCtxSynchronize())",
        "while cuda.cuStreamQuery(stream) == 600: time.sleep(0.0005)",
    ],
)
def test_long_kernel_behind_a_short_one_is_paid_although_it_is_not_expected(half, wait, new):
    """It is not sampled, and its expected time is too short for a mark."""
    ask(
        half,
        f"""
begin()
def launch(number):
    grid = number if {new} else 1
    check(cuda.cuLaunchKernel(function, grid, 1, 1, 1, 1, 1, 0, stream, arguments, None))
for number in range(1, 41, 2):
    spin_ns.value = 2000
    launch(number)
    spin_ns.value = 25_000_000
    launch(number + 1)
    {wait}
answer(0)
""",
    )
    assert 440 * MILLISECOND < charged_ns(half) < 560 * MILLISECOND


@pytest.mark.slow
@pytest.mark.parametrize("legacy", [False, True])
def test_synchronising_one_context_settles_no_other(half, legacy):
    ask(
        half,
        f"""
begin()
one, two = P(), P()
check(cuda.cuCtxGetCurrent(byref(one)))
check(cuda.cuCtxCreate_v2(byref(two), 0, 0))
for _ in range(20):
    check(cuda.cuCtxSetCurrent(one))
    for spin_ns.value in (2000, 25_000_000):
        check(plain(on=P(1) if {legacy} else stream))
    check(cuda.cuCtxSetCurrent(two))
    check(cuda.cuStreamSynchronize(None) if {legacy} else cuda.cuCtxSynchronize())
    time.sleep(0.026)
check(cuda.cuCtxSetCurrent(one))
wait()
answer(0)
""",
    )
    assert 400 * MILLISECOND < charged_ns(half) < 560 * MILLISECOND


@pytest.mark.slow
def test_end_of_a_context_keeps_measurements_of_another(half):
    ask(
        half,
        """
begin()
two = P()
spin_ns.value = 1_500_000_000
check(plain())
check(cuda.cuCtxCreate_v2(byref(two), 0, 0))
check(cuda.cuCtxDestroy_v2(two))
check(cuda.cuStreamSynchronize(stream))
answer(0)
""",
    )
    assert 1400 * MILLISECOND < charged_ns(half) < 1600 * MILLISECOND


@pytest.mark.slow
@pytest.mark.parametrize(
    "wait", ["check(cuda.cuStreamSynchronize(stream))", "check(cuda.cuCtxSynchronize())"]
)
def test_work_launched_by_one_thread_and_awaited_by_another_is_paid(half, wait):
    """As frameworks do: one thread computes gradients, another waits for them.

    On busy cores it starts to wait late, and the start of the preceding work is unknown.
    """
    waited_ns = ask(
        half,
        f"""
begin()
context = P()
check(cuda.cuCtxGetCurrent(byref(context)))
given, done = threading.Semaphore(0), threading.Semaphore(0)
def launch():
    check(cuda.cuCtxSetCurrent(context))
    for _ in range(20):
        done.acquire()
        for spin_ns.value in (2000, 25_000_000):
            check(plain())
        given.release()
thread = threading.Thread(target=launch)
thread.start()
waited_ns = 0
for _ in range(20):
    done.release()
    given.acquire()
    began_ns = time.monotonic_ns()
    {wait}
    waited_ns += time.monotonic_ns() - began_ns
thread.join()
answer(waited_ns)
""",
    )
    assert min(400 * MILLISECOND, waited_ns * 9 // 10) < charged_ns(half) < 560 * MILLISECOND
