"""A tenant: works in kernels of one length for some seconds, and prints when the device ran them.

  python -m kit.tenant KERNEL_NS SECONDS [sync]

Prints ``ready`` and waits for a line; prints as JSON the kernels' [begin, end], ns, and
median and 99th percentile of the time from a launch until it was seen to be done, us.
"""

import ctypes
import json
import sys
import time

from kit import cuda

AHEAD = 64
KERNELS = 1 << 16  # noted at most; further ones write over the first


def main():
    length, seconds = int(sys.argv[1]), float(sys.argv[2])
    ahead = 1 if sys.argv[3:] == ["sync"] else max(2, min(AHEAD, 20_000_000 // length))
    device = cuda.Device()
    device.calibrate()
    stream = device.stream()
    times = device.allocate(16 * KERNELS)
    events = [device.event() for _ in range(ahead)]
    print("ready", flush=True)
    sys.stdin.readline()
    count, until = 0, time.monotonic() + seconds
    launched, latencies = [0] * ahead, []
    while time.monotonic() < until:
        if count >= ahead:
            device.cuda.cuEventSynchronize(events[count % ahead])
            latencies.append((time.perf_counter_ns() - launched[count % ahead]) / 1000)
        launched[count % ahead] = time.perf_counter_ns()
        device.work(length, stream, ctypes.c_uint64(times.value + 16 * (count % KERNELS)))
        device.cuda.cuEventRecord(events[count % ahead], stream)
        count += 1
    device.wait(stream)
    words = device.read(times, 2 * min(count, KERNELS))
    pairs = sorted(zip(words[::2], words[1::2], strict=True))
    latencies = sorted(latencies) or [0.0]
    answer = {
        "count": count, "kernels": pairs,
        "p50": latencies[len(latencies) // 2], "p99": latencies[99 * len(latencies) // 100],
    }  # fmt: skip
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
