"""`make bench-compiled`: speed of loops compiled by Cython, compared with the same in Python.

Two kinds of processes alternate, one that imports the compiled modules and one that imports their
source; the figure is how many times as long the second takes. Reading a ledger consists mostly of
system calls, which compilation cannot speed up: so it is shown without a goal, beside the earlier
variant, in which metrics also read a word of each process; the goal is for its numbers alone.
The record goes to benchmarks/results/compiled; the exit code is 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import pure  # noqa: E402

pure.prefer()

import controllertable  # noqa: E402
import goals  # noqa: E402
import host  # noqa: E402
import schedulerworld as world  # noqa: E402

from pyvgpu import locks, names, quota, region  # noqa: E402
from pyvgpu.allocator import annotations, datatypes  # noqa: E402
from pyvgpu.controller.scheduler import index, name_lists, node_info, pod_request  # noqa: E402
from pyvgpu.device import Device  # noqa: E402
from pyvgpu.region import layout, words  # noqa: E402
from pyvgpu.share import Share  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NODES, QUICK_NODES = 5000, 100
TURNS = 5
DEVICES = 8  # of a region
PROCESSES = 16
GIB = 1 << 30


def best(work: Callable[[], object], times: int) -> float:
    """Return the least of the milliseconds that *work* took."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return 1e3 * min(taken)


def known_nodes(nodes: int) -> dict[str, node_info.NodeInfo]:
    """Return so many *nodes* with eight devices, and the shares of twenty pods on each."""
    draw, found = random.Random(3), {}
    for number in range(nodes):
        note = world.node(number)["metadata"]["annotations"][names.NODE_DEVICES_ANNOTATION]
        info = found[world.name_of(number)] = node_info.NodeInfo(world.name_of(number))
        info.update(annotations.read_node(note), "")
        for pod in range(20):
            vcore, size = draw.choice(world.SIZES)
            share = datatypes.NodeShare(draw.choice(info.devices).uuid, vcore, size * GIB)
            asked = pod_request.read(world.pod(20 * number + pod, vcore, size))
            held = (datatypes.Holding(share, asked.key),)
            info.tenants[asked.uid] = node_info.Reservation(
                asked, info.name, node_info.Certainty.BOUND, held
            )
        info.changed()
    return found


def of_nodes(times: int, nodes: int) -> dict[str, float]:
    """Return how long filtering and scoring all nodes for a new shape take."""
    known = index.Index(known_nodes(nodes))
    called = name_lists.of([world.name_of(number) for number in range(nodes)])
    shapes = [
        pod_request.read(world.pod(1_000_000 + number, 10 + number, 4 + number)).shape
        for number in range(times)
    ]
    fresh = iter(shapes)
    evaluated = best(lambda: known.results_of(next(fresh)), times)
    fresh = iter(shapes)
    scored = best(lambda: known.score(next(fresh), pod_request.NodePolicy.BINPACK, called), times)
    return {"evaluate": evaluated, "score": scored}


def of_names(times: int, nodes: int) -> float:
    """Return how long it takes to look up names, and to write those that fit."""
    draw, roll = random.Random(2), name_lists.Roll()
    called = [world.name_of(number) for number in range(nodes)]
    for name in called:
        roll.number(name)
    draw.shuffle(called)
    codes = bytes(draw.choice((0, 0, 4)) for _ in called)
    text = ('"' + '","'.join(called) + '"').encode()

    def answer() -> object:
        read = name_lists.read(text)
        assert read is not None
        return name_lists.only(read, roll.lookup(read, codes, 6), 0)

    return best(answer, times)


def of_ledgers(times: int) -> dict[str, float]:
    """Return how long it takes to read a ledger for metrics, and with a word of each process."""
    devices = [
        Device(f"GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f{at}", at, "H100", 80 * GIB, 512 << 20)
        for at in range(DEVICES)
    ]
    with tempfile.TemporaryDirectory(prefix="pyvgpu-bench-") as name:
        folder = os.open(name, os.O_RDONLY)
        shares = [Share(device, 30, 4 * GIB, quota.TimePolicy.HARD) for device in devices]
        os.close(region.create(folder, "580.65.06", shares))
        os.close(folder)
        held = [os.open(f"{name}/{names.USAGE_FILE}", os.O_RDWR) for _ in range(PROCESSES)]
        for slot, process in enumerate(held):  # the kernel takes each for another process
            assert locks.take(process, layout.SLOT_BYTE + slot)
        file = os.open(f"{name}/{names.USAGE_FILE}", os.O_RDONLY)

        def each() -> None:
            region.read_compute(file, DEVICES)
            region.read_usage(file, DEVICES)

        found = {
            "figures": best(lambda: region.read_figures(file, DEVICES), times),
            "each": best(each, times),
        }
        for descriptor in (file, *held):
            os.close(descriptor)
    return found


def of_decoding(times: int) -> float:
    """Return how long the numbers of such a ledger take without system calls."""
    draw = random.Random(4)
    row, raw = draw.randbytes(8 * PROCESSES), draw.randbytes(24 * DEVICES)

    def decode() -> None:
        words.columns(raw, DEVICES, 24, (0, 8, 16))
        for _ in range(DEVICES):
            words.held(row, range(PROCESSES), layout.BYTES)

    return best(decode, times)


def measure(nodes: int) -> dict[str, float]:
    """Return all figures of this process, in ms."""
    return {
        **of_nodes(8, nodes),
        "names": of_names(20, nodes),
        **of_ledgers(200),
        "decode": of_decoding(200),
    }


def ask(*options: str, as_python: bool) -> Mapping[str, float]:
    """Return the figures of another process."""
    environment = {**os.environ, pure.WANTED: "1" if as_python else ""}
    command = [sys.executable, __file__, "--measure", *options]
    found: dict[str, float] = json.loads(subprocess.check_output(command, env=environment))
    return found


def main() -> int:
    """Measure in turns, show, keep; return whether all goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="in this process, as JSON")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few nodes, one turn, no record")
    options = parser.parse_args()
    nodes, count = (QUICK_NODES, 1) if options.quick else (NODES, TURNS)
    if options.measure:
        print(json.dumps(measure(nodes)))
        return 0
    more = ["--quick"] if options.quick else []
    turns = [(ask(*more, as_python=False), ask(*more, as_python=True)) for _ in range(count)]
    taken = {
        "nodes": nodes,
        **{
            kind: {
                name: statistics.median(turn[at][name] for turn in turns) for name in turns[0][at]
            }
            for at, kind in enumerate(("compiled", "python"))
        },
    }
    code = goals.say(controllertable.of_compiled(taken))
    if not (options.no_record or options.quick):
        host.keep(host.stamped(taken), "compiled")
    return code


if __name__ == "__main__":
    sys.exit(main())
