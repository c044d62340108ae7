"""`make bench-scheduler`: a burst of pods through kube-scheduler, with and without pyvgpu.

Pods with shares are created at once on 500 nodes without kubelets: first kube-scheduler alone
binds them, then it calls `pyvgpu scheduler`. The time ends when a watch shows the last one bound;
the pods' annotations show that no device was overcommitted. It needs access to the cluster; the
record goes to benchmarks/results/scheduler, and the exit code is 1 if the goal was missed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import controllertable  # noqa: E402
import extenders  # noqa: E402
import goals  # noqa: E402
import host  # noqa: E402
import rig  # noqa: E402

from pyvgpu.kube import apiserver  # noqa: E402

DEVICES = 8
SECONDS = 300
QUIET_SECONDS = 5  # of a watch, after which the list is read again


def burst(pods: int) -> dict[str, float]:
    """Create so many pods and wait until all are bound; return how fast that went."""
    sizes = [(40, 6), (40, 6), (20, 4)]
    made = [extenders.pod(f"p-{n}", *sizes[n % len(sizes)]) for n in range(pods)]
    with rig.space() as space:
        begun = time.monotonic()
        extenders.create_in_the_background(space, made)
        bound: dict[str, float] = {}
        while len(bound) < pods:
            if time.monotonic() > begun + SECONDS:
                sys.exit(f"only {len(bound)} of {pods} pods were bound in {SECONDS} s")
            note(space, bound, begun)
        last = max(bound.values())
        found = {"pods": pods, "seconds": round(last, 2), "per_second": round(pods / last, 1)}
        if any(pod["metadata"].get("annotations") for pod in space.pods()):
            used = extenders.assert_not_overcommitted(space)
            found["devices_in_use"] = len(used)
        return found


def note(space: rig.Space, bound: dict[str, float], begun: float) -> None:
    """Note of pods when they were seen to be bound, until the watch ends or nothing happens."""
    found, version = space.server.items(space.path("pods"), {})
    news = space.server.watch(space.path("pods"), {}, version, QUIET_SECONDS)
    with contextlib.suppress(apiserver.ServerError):  # it was cut off: the list is read again
        for thing in itertools.chain(
            found, (changed for event, changed in news if event != "ERROR")
        ):
            if thing["spec"].get("nodeName"):
                bound.setdefault(thing["metadata"]["name"], time.monotonic() - begun)


def main() -> int:
    """Measure both, print and record them; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few nodes and pods, no record")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.pods, options.no_record = 5, 20, True
    rows: dict[str, dict[str, float]] = {}
    nodes = [f"bench-{number:04}" for number in range(options.nodes)]
    with tempfile.TemporaryDirectory() as folder:
        extender = extenders.Extender(Path(folder))
        extender.prepare()
        extender.start()
        alone = Path(folder) / "alone.json"
        extenders.write_scheduler(extender.config)
        extenders.write_scheduler(alone, extended=False)
        try:
            with extenders.fake_nodes(*nodes, count=DEVICES):
                for name, config in (("alone", alone), ("with us", extender.config)):
                    extenders.restart_scheduler(config)
                    extenders.until_scheduling()
                    rows[name] = burst(options.pods)
                    print(name, rows[name])
                memory = extender.figure("process_resident_memory_bytes")
        finally:
            extenders.restart_scheduler(None)
            extender.stop()
    rows["with us"]["resident_mib"] = round(memory / (1 << 20), 1)
    found = {"nodes": options.nodes, "rows": rows}
    code = goals.say(controllertable.of_burst(found))
    if not options.no_record:
        host.keep(host.stamped(found), "scheduler", kind="burst")
    return code


if __name__ == "__main__":
    sys.exit(main())
