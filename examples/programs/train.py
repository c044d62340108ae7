"""Toy training on a GPU: each step changes all weights, which are checked at the end.

`python3 train.py STEPS`. In a distributed job it prints its rank.
"""

import os
import sys

import gpu

WEIGHTS = 1 << 20
RATE = 0.5  # added to each weight per step


def main(steps: int) -> None:
    """Run the steps, and check the weights."""
    device = gpu.Device()
    free, total = device.memory()
    rank, ranks = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    print(f"rank {rank} of {ranks}: {free >> 20} MiB free of {total >> 20} MiB", flush=True)
    weights, gradient = device.floats(WEIGHTS, 0), device.floats(WEIGHTS, RATE)
    for step in range(1, steps + 1):
        device.add(weights, gradient, WEIGHTS)
        device.compute(milliseconds=20)
        if step % 10 == 0:
            print(f"step {step} of {steps}", flush=True)
    if set(device.read(weights, WEIGHTS)) != {RATE * steps}:
        raise SystemExit("the weights are wrong")
    print("done, and the weights are right")


if __name__ == "__main__":
    main(int(sys.argv[1]))
