"""A student's exercise: `python3 exercise.py NUMBER`.

It computes `NUMBER * x + y` on the GPU, checks the result, and keeps its share until the lesson
ends, which is when standard input is closed.
"""

import sys

import gpu

COUNT = 1 << 16  # floats of each vector


def main(number: int) -> None:
    """Compute, check and wait; SystemExit if the result is wrong."""
    device = gpu.Device()
    x, y = device.floats(COUNT, 2), device.floats(COUNT, 1)
    device.saxpy(y, x, number, COUNT)
    found = set(device.read(y, COUNT))
    if found != {2.0 * number + 1}:
        raise SystemExit(f"student {number}: {sorted(found)[:3]}: must be {2.0 * number + 1}")
    memory = device.memory()[1] >> 20
    print(
        f"student {number} with {memory} MiB: {number} * 2 + 1 = {found.pop()} is right",
        flush=True,
    )
    sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
