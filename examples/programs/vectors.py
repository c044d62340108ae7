"""Compute on a GPU with a copy, a sum and a saxpy, and check the results: `python3 vectors.py`.

A simulated device computes these three kernels, too, so the output is the same without a GPU.
"""

import ctypes

import gpu

COUNT = 1 << 16  # floats of each vector


def check(device: gpu.Device, text: str, at: ctypes.c_uint64, expected: float) -> None:
    """Print one result; SystemExit if any of its floats is not *expected*."""
    found = device.read(at, COUNT)
    if set(found) != {expected}:
        raise SystemExit(f"{text}: {found[:4]}...: must be {expected} everywhere")
    print(f"{text}: {expected}, {COUNT} times")


def main() -> None:
    """Run the three kernels and check what each has written."""
    device = gpu.Device()
    x, y, z = (device.floats(COUNT, value) for value in (3, 1, 0))
    device.copy(z, x, COUNT)
    check(device, "copy   z = x", z, 3.0)
    device.add(y, x, COUNT)
    check(device, "add    y = y + x", y, 4.0)
    device.saxpy(z, y, 0.5, COUNT)
    check(device, "saxpy  z = 0.5 * y + z", z, 5.0)


if __name__ == "__main__":
    main()
