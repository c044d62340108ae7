"""Cost of events, and the meaning of their times."""

import ctypes
import time

from kit import cuda

LENGTHS_US = (0, 1, 2, 5, 20, 100, 1000, 30000)
ROUNDS = 50


def run(report):
    device = cuda.Device()
    device.calibrate()
    stream = device.stream()
    pairs = [(device.event(), device.event()) for _ in range(ROUNDS)]
    empty_pairs(report, device, stream, pairs)
    for length in LENGTHS_US:
        kernels(report, device, stream, pairs, length)
    host_costs(report, device, stream)


def record(device, event, stream):
    device.cuda.cuEventRecord(event, stream)


def empty_pairs(report, device, stream, pairs):
    device.work(2_000_000, stream)  # all of them are queued before the first is passed
    for begin, end in pairs:
        record(device, begin, stream)
        record(device, end, stream)
    device.wait(stream)
    report.median("empty pair, back to back", [device.elapsed_us(*pair) for pair in pairs], "us")
    report.figure(  # from the first event to the last there are twice as many less one
        "two events in a queue, by throughput",
        device.elapsed_us(pairs[0][0], pairs[-1][1]) / (len(pairs) - 0.5), "us",
    )  # fmt: skip


def kernels(report, device, stream, pairs, length_us):
    """Kernels between events: by events, by their own timer, and idle against back to back."""
    rounds = pairs[: max(3, min(ROUNDS, 60_000 // max(length_us, 1)))]
    times = device.allocate(16 * len(rounds))
    for title, queued in (("back to back", True), ("idle", False)):
        if queued:
            device.work(2_000_000, stream)
        for i, (begin, end) in enumerate(rounds):
            record(device, begin, stream)
            device.work(length_us * 1000, stream, ctypes.c_uint64(times.value + 16 * i))
            record(device, end, stream)
            if not queued:
                device.wait(stream)
        device.wait(stream)
        noted = device.read(times, 2 * len(rounds))
        own = [(noted[2 * i + 1] - noted[2 * i]) / 1000 for i in range(len(rounds))]
        by_events = [device.elapsed_us(*pair) for pair in rounds]
        name = f"kernel of {length_us} us, {title}"
        report.median(f"{name}: by events", by_events, "us")
        report.median(f"{name}: by its own timer", own, "us")
        report.median(
            f"{name}: events above its own timer",
            [seen - true for seen, true in zip(by_events, own, strict=True)], "us",
        )  # fmt: skip
    device.free(times)


def host_costs(report, device, stream):
    begin, end, many = device.event(), device.event(), 500
    milliseconds, current = ctypes.c_float(), ctypes.c_void_p()
    record(device, begin, stream)
    record(device, end, stream)
    device.wait(stream)
    calls = {
        "record": lambda: device.cuda.cuEventRecord(end, stream),
        "query": lambda: device.cuda.raw.cuEventQuery(begin),
        "elapsed": lambda: device.cuda.raw.cuEventElapsedTime(
            ctypes.byref(milliseconds), begin, begin),
        "cuStreamGetCtx": lambda: device.cuda.cuStreamGetCtx(stream, ctypes.byref(current)),
        "cuCtxGetCurrent": lambda: device.cuda.cuCtxGetCurrent(ctypes.byref(current)),
        "nothing (the loop)": lambda: None,
    }  # fmt: skip
    for title, call in calls.items():
        begun = time.perf_counter_ns()
        for _ in range(many):
            call()
        report.figure(f"host time: {title}", (time.perf_counter_ns() - begun) / many, "ns")
    device.wait(stream)
