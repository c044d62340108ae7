"""Queue depth at which launches block, and the calls that they block."""

import ctypes
import threading
import time

from kit import cuda

MOST = 20_000
HOLD_SECONDS = 1.5  # a launch that has not returned by then is taken to be blocked


def run(report):
    device = cuda.Device()
    stream, other, event = device.stream(), device.stream(), device.event()
    gate = threading.Event()
    opened = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: gate.wait())
    device.cuda.cuLaunchHostFunc(stream, opened, None)
    launched = [0]
    blocked_at = []

    def fill():
        device.cuda.cuCtxSetCurrent(device.context)
        while launched[0] < MOST and not gate.is_set():
            device.work(1000, stream)
            launched[0] += 1

    thread = threading.Thread(target=fill)
    thread.start()
    while thread.is_alive() and not blocked_at:
        before = launched[0]
        time.sleep(HOLD_SECONDS)
        if launched[0] == before:
            blocked_at.append(before)
    if blocked_at and thread.is_alive():
        report.figure("launches that a stream behind a gate takes", blocked_at[0], "launches")
        beside(report, device, other, event)
    else:
        report.figure(
            "launches that a stream behind a gate takes at least", launched[0], "launches"
        )
    gate.set()
    thread.join()
    device.wait()


def beside(report, device, other, event):
    """What another thread can do while a launch is blocked, each in a thread with a limit.

    A driver may hold a lock while a launch waits for room, so this thread calls nothing of it.
    """
    calls = {
        "query an event": lambda: device.cuda.raw.cuEventQuery(event),
        "create an event": device.event,
        "launch into another stream": lambda: device.work(1000, other),
        "record in another stream": lambda: device.cuda.cuEventRecord(event, other),
        "synchronise another stream": lambda: device.wait(other),
        "create and destroy a stream": lambda: device.cuda.cuStreamDestroy_v2(device.stream()),
        "allocate memory": lambda: device.free(device.allocate(1 << 20)),
    }
    for title, call in calls.items():
        done = threading.Event()

        def work(call=call, done=done):
            device.cuda.cuCtxSetCurrent(device.context)
            call()
            done.set()

        threading.Thread(target=work, daemon=True).start()
        report.fact(f"while a launch is blocked: {title}", "goes on" if done.wait(2) else "blocks")
