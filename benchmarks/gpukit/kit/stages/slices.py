"""Time slices of processes: their length, and the cost of a switch.

Each process launches kernels back to back, which note when they ran. A process was away from the
device where one kernel ends long before the next begins, or takes longer than it does alone.
"""

import ctypes
import json
import statistics
import sys

from kit import cuda, shimmed

SECONDS, SIMULATED_SECONDS = 1.0, 0.4
IN_MPS = "processes are clients of MPS"
KERNEL_NS = 200_000
AWAY_NS = 100_000  # a shorter pause is the host's
BATCH = 64  # kernels between events: a process that waits for one ends its turn


def one():
    """A process of its own: begin at a line on standard input; print the kernels' times."""
    device = cuda.Device()
    device.calibrate()
    stream = device.stream()
    seconds = SIMULATED_SECONDS if cuda.simulated() else SECONDS
    count = int(seconds * 1e9 / KERNEL_NS)
    times = device.allocate(16 * count)
    print("ready", flush=True)
    sys.stdin.readline()
    events = [device.event() for _ in range(2)]
    for i in range(count):
        batch = i // BATCH
        if batch > 1 and i % BATCH == 0:
            device.cuda.cuEventSynchronize(events[batch % 2])
        device.work(KERNEL_NS, stream, ctypes.c_uint64(times.value + 16 * i))
        if (i + 1) % BATCH == 0:
            device.cuda.cuEventRecord(events[batch % 2], stream)
    device.wait(stream)
    print(json.dumps(device.read(times, 2 * count)), flush=True)


def run(report):
    driver = cuda.driver()
    driver.cuInit(0)
    report.fact(IN_MPS, cuda.in_mps(driver))  # whose clients have no turns
    cuda.calibrate_alone()
    for count in (1, 2, 3, 4):
        turns(report, count, f"{count} processes")


def turns(report, count, name, variables=()):
    program = shimmed.python("from kit.stages import slices; slices.one()")
    noted = shimmed.together([shimmed.start(None, program, variables) for _ in range(count)])
    kernels = [list(zip(words[::2], words[1::2], strict=True)) for words in noted]
    begin = max(times[0][0] for times in kernels)
    end = min(times[-1][1] for times in kernels)
    lengths = [b - a for times in kernels for a, b in times]
    report.median(f"{name}: kernel of {KERNEL_NS // 1000} us", [n / 1000 for n in lengths], "us")
    shares = [
        100 * min(lengths) * sum(a >= begin and b <= end for a, b in times) / max(end - begin, 1)
        for times in kernels
    ]
    report.figure(f"{name}: device busy", sum(shares), "%")
    report.fact(f"{name}: shares in percent", [round(share, 2) for share in shares])
    away = sorted(
        ns for times in kernels for ns in away_of(times, begin, end, alone_ns=min(lengths))
    )
    if len(away) > 3:
        report.figure(
            f"{name}: away from the device", statistics.median(away) / 1000, "us",
            [away[len(away) // 10] / 1000, away[-1 - len(away) // 10] / 1000],
        )  # fmt: skip
        report.figure(f"{name}: times away", len(away), "times")


def away_of(times, begin, end, alone_ns):
    """Return how long the process was away, each time, between *begin* and *end*."""
    found, last = [], None
    for a, b in times:
        if a >= begin and b <= end:
            found += [b - a - alone_ns, a - last if last is not None else 0]
        last = b
    return [ns for ns in found if ns > AWAY_NS]
