"""`make bench-claim-pods`: start-up latency of a pod with a claim, in a real cluster.

It alternates with a pod that has as much of a device by extended resources, from the same agent,
and one with no device. All have a service account token, as pods usually do. Each is created when
the previous one is gone. *bound* is when a watch shows that kube-scheduler has chosen the node,
*started* when the pod's process has written a line, by the container runtime's time stamp, and
*running* when a watch shows it; in seconds since just before the creation. It needs access to the
cluster; the record goes to benchmarks/results/claim-pods, and the exit code is 1 if a goal was
missed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import agent_set  # noqa: E402
import agents  # noqa: E402
import claimed  # noqa: E402
import claimstable  # noqa: E402
import goals  # noqa: E402
import host  # noqa: E402
import rig  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

VCORE, UNITS = 30, 8  # of 256 MiB
STAYS = "trap 'exit 0' TERM; echo begun; sleep 1000 & wait"
TEMPLATE = "share"


@contextlib.contextmanager
def agent() -> Iterator[None]:
    """Run an agent that offers one device as extended resources, and one for claims."""
    with (
        tempfile.TemporaryDirectory(prefix="pyvgpu-bench-") as folder,
        agent_set.rights_of("agent/dra.yaml", "dra.enabled=true"),
        claimed.device_class(),
        agents.running(Path(folder)) as made,
    ):
        second = made.machine.devices[1].uuid
        made.begin("--allocation-api", f"{second}=dra")
        made.wait(lambda: set(claimed.published()) == {second})
        made.wait(lambda: made.allocatable().get("pyvgpu.io/vcore") == "100")
        yield
        made.until_idle()


def pod(way: str, name: str, *, token: bool) -> Any:
    """Return a pod that has its device in one *way*."""
    more = {"automountServiceAccountToken": token}
    if way == "claim":
        return claimed.pod(name, claimed.container("main", STAYS), of=TEMPLATE, **more)
    counted = (VCORE, UNITS) if way == "counters" else (0, 0)
    return rig.pod(name, agents.container("main", *counted, STAYS), **more)


def life(space: rig.Space, thing: Any) -> dict[str, float]:
    """Run a pod until it is gone; return the times of its observed events, seconds."""
    name = thing["metadata"]["name"]
    begun, before = time.time(), time.monotonic()
    space.create("pods", thing)
    space.until("pods", name, lambda it: it["spec"].get("nodeName"))
    bound = time.monotonic() - before
    space.until("pods", name, lambda it: rig.runs(it, "main"))
    running = time.monotonic() - before
    started = wrote_at(space, name) - begun
    space.server.call("DELETE", space.path("pods", name))
    assert space.until_gone("pods", name), name
    found = {"bound": bound, "started": started, "running": running}
    return {key: round(seconds, 4) for key, seconds in found.items()}


def wrote_at(space: rig.Space, name: str) -> float:
    """Return when a pod's process has written its first line, seconds since the epoch."""
    assert space.first_line(name, "main") == b"begun"
    command = ["kubectl", "logs", "--timestamps", "--namespace", space.name, name]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    at, nanoseconds = said.split()[0].removesuffix("Z").split(".")
    return datetime.datetime.fromisoformat(f"{at}+00:00").timestamp() + float(f".{nanoseconds}")


def measure(rounds: int, *, token: bool) -> dict[str, list[dict[str, float]]]:
    """Return the times of all pods, by their way; the order differs in each round."""
    seen: dict[str, list[dict[str, float]]] = {way: [] for way in claimstable.WAYS}
    draw = random.Random(7)
    with agent(), rig.space() as space:
        sizes = claimed.request(VCORE, f"{UNITS * agents.UNIT >> 20}Mi")
        space.create("resourceclaimtemplates", claimed.template(TEMPLATE, sizes))
        for number in range(rounds + 1):
            for way in draw.sample(claimstable.WAYS, len(claimstable.WAYS)):
                found = life(space, pod(way, f"{way}-{number}", token=token))
                if number:  # the first of each way finds cold caches
                    seen[way].append(found)
    return seen


def main() -> int:
    """Measure, show, record; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--no-token", action="store_true", help="of pods without it; no record")
    parser.add_argument("--quick", action="store_true", help="one round, no record")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.no_record = 1, True
    record = host.stamped({"pods": measure(options.rounds, token=not options.no_token)})
    code = goals.say(claimstable.of_pods(record))
    if not options.no_record and not options.no_token:
        host.keep(record, "claim-pods")
    return code


if __name__ == "__main__":
    sys.exit(main())
