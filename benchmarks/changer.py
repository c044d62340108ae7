"""Changes the vcore of a container at given moments; a program of its own, by the stage's clock.

changer.py QUOTA    then "FROM UNTIL AT VCORE AT VCORE ...", moments in ns of CLOCK_MONOTONIC
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

import rooms

from pyvgpu import region, simulator


def main() -> int:
    """Follow the plan on standard input."""
    quota = int(sys.argv[1])
    machine = simulator.read_machine(Path(os.environ["PYVGPU_SIMULATED_MACHINE"]))
    release = region.read_limits(quota).driver_release
    share = rooms.share(machine, 1)
    print("ready", flush=True)
    _, _, *plan = map(int, sys.stdin.readline().split())
    for at_ns, vcore in zip(plan[::2], plan[1::2], strict=True):
        while time.monotonic_ns() < at_ns:
            time.sleep(max(0, at_ns - time.monotonic_ns()) / 1e9)
        region.update(quota, release, [dataclasses.replace(share, vcore=vcore)])
    return 0


if __name__ == "__main__":
    sys.exit(main())
