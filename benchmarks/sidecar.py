"""`make bench-sidecar`: latency and throughput of ending sidecars, in a real cluster.

Three parts. *latency*: Jobs with each way of ending a sidecar run alternately, and beside them
baselines without pyvgpu: native sidecars, no sidecar at all, a manual image swap; container end
times are the container runtime's. *burst*: many Jobs finish at the same moment, as many in real
pods as the machine holds and the rest on a fake node, whose node part and kubelet respond at once.
*many*: the controller's resource use with many pods. It needs access to the cluster; the record
goes to benchmarks/results/sidecar.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import random
import re
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

import by_hand  # noqa: E402
import host  # noqa: E402
import rig  # noqa: E402
import sidecarcluster as cluster  # noqa: E402
import sidecars  # noqa: E402
import sidecartable  # noqa: E402

from pyvgpu.kube import apiserver, objects  # noqa: E402

LISTEN = "9470"
OBEYS = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"
IGNORES = "trap '' TERM; while :; do sleep 3600 & wait $!; done"
AT_ONCE = 4  # Jobs of the first part that run at the same time
SECONDS = 600  # timeout of waits, never reached normally
GRACE = 1  # of the sidecars that ignore their signal


def side(way: str) -> dict[str, Any]:
    """Return a sidecar that pyvgpu, kubelet or the benchmark ("hand") ends in this *way*."""
    match way:
        case "hand":
            return rig.container("side", OBEYS)
        case "stop":
            return sidecars.sidecar(OBEYS, EXITS_ZERO="true")
        case "hybrid":
            return sidecars.sidecar(IGNORES, GRACE_SECONDS=str(GRACE))
        case "native":
            return rig.container("side", OBEYS, restartPolicy="Always")
        case _:
            return sidecars.sidecar(OBEYS)


class Latency:
    """Jobs with each way of ending a sidecar, in random order, some at a time."""

    def __init__(self, ways: list[str], jobs: int) -> None:
        self._todo = ways * jobs
        random.shuffle(self._todo)
        # By pod: when the API server reported its end, and the controller's record; its phase.
        self._over: dict[str, float] = {}
        self._written: dict[str, float] = {}
        self._phases: dict[str, str] = {}
        self._swapped: set[str] = set()  # pods with an image that the benchmark has swapped
        self._changed = threading.Condition()

    def run(self) -> dict[str, list[dict[str, float]]]:
        """Return, by way, the seconds from the main container's end to each later event."""
        ends = cluster.Ends()
        names: dict[str, str] = {}
        with rig.space() as space, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as hands:

            def note(pod: dict[str, Any], at: float) -> None:
                self._note(pod, at)
                if self._is_for_a_hand(pod):
                    hands.submit(by_hand.swap, space, pod)

            watched = cluster.Watched(space, note)
            for number, way in enumerate(self._todo):
                self._wait_for(len(names) - AT_ONCE + 1)
                names[f"{way}-{number}"] = way
                self._create(space, way, f"{way}-{number}")
            self._wait_for(len(names))
            watched.close()
        time.sleep(1)
        ends.close()
        return {way: self._rows(way, ends) for way in dict.fromkeys(self._todo)}

    def _create(self, space: rig.Space, way: str, name: str) -> None:
        main = rig.container("main", f"sleep {1.5 + random.random():.2f}")
        if way == "native":
            cluster.job(space, name, main, initContainers=[side(way)])
        elif way == "none":
            cluster.job(space, name, main)
        else:
            grace = 30 if way == "hybrid" else 2
            cluster.job(space, name, main, side(way), terminationGracePeriodSeconds=grace)

    def _note(self, pod: dict[str, Any], at: float) -> None:
        if sidecars.record(pod):
            self._written.setdefault(pod["metadata"]["name"], at)
        if rig.has_ended(pod):
            with self._changed:
                self._over.setdefault(pod["metadata"]["name"], at)
                self._phases[pod["metadata"]["name"]] = rig.phase(pod)
                self._changed.notify()

    def _is_for_a_hand(self, pod: dict[str, Any]) -> bool:
        """Return True, once per pod, if the benchmark itself must swap its sidecar's image."""
        name = pod["metadata"]["name"]
        if not name.startswith("hand-") or name in self._swapped or not by_hand.main_is_done(pod):
            return False
        self._swapped.add(name)
        return True

    def _wait_for(self, count: int) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._over) >= count, SECONDS):
                raise SystemExit(f"of {count} pods {len(self._over)} have ended")

    def _rows(self, way: str, ends: cluster.Ends) -> list[dict[str, float]]:
        rows = []
        relists = cluster.relists()
        for pod, over in self._over.items():
            if not pod.startswith(f"{way}-"):
                continue
            main = ends.at.get((pod, "main"))
            sidecar = main if way == "none" else ends.at.get((pod, "side"))
            if not main or not sidecar:
                raise SystemExit(f"the runtime did not say when {pod} ended")
            seen = [
                relists[container] - main[0] for container in ends.ids[pod] if container in relists
            ]
            if not seen:
                raise SystemExit(f"kubelet's log does not say when it saw the end of {pod}")
            row = {
                "signal": sidecar[0] - main[0],
                "terminal": over - main[0],
                "seen_first": min(seen),  # by kubelet: that main has ended
                "seen_last": max(seen),  # that the last container has
                "succeeded": float(self._phases[pod] == "Succeeded"),
            }
            if pod in self._written:
                row["written"] = self._written[pod] - main[0]
            rows.append(row)
        return rows


def burst(parts: sidecars.Parts, folder: str, jobs: int, real: int) -> dict[str, Any]:
    """End *jobs* Jobs at the same moment, *real* of them in pods of this machine."""
    with rig.space() as space, cluster.fake_node():
        kubelet = cluster.FakeKubelet(space)
        go = Path(folder) / "go"
        main = rig.container("main", "until [ -e /work/go ]; do sleep 0.2; done")
        main["volumeMounts"] = [{"name": "work", "mountPath": "/work"}]
        work = [{"name": "work", "hostPath": {"path": str(folder)}}]

        def create(number: int) -> None:
            way = "stop" if number % 2 else "swap"
            where = {"kubernetes.io/hostname": sidecars.NODE} if number < real else {"fake": "yes"}
            cluster.job(space, f"j{number}", main, side(way), volumes=work, nodeSelector=where)

        cluster.in_parallel(create, range(jobs))
        pods = bound(space, jobs)
        fake = [pod for pod in pods if pod["spec"]["nodeName"] == cluster.FAKE_NODE]
        wait_until(lambda: sum(rig.runs(pod, "side") for pod in all_pods(space)) >= real)
        go.touch()
        cluster.in_parallel(lambda pod: kubelet.say(pod, None), fake)
        wait_until(lambda: all(rig.exit_code(pod, "main") == 0 for pod in all_pods(space)))
        begun = time.time()
        parts.start("controller", "--listen", LISTEN)
        jobs_path = space.path("jobs")

        def complete() -> int:
            found = space.server.items(jobs_path, {})[0]
            return sum(bool(rig.condition(job, "Complete")) for job in found)

        wait_until(lambda: all(map(rig.has_ended, all_pods(space))))
        pods_took = time.time() - begun
        wait_until(lambda: complete() == jobs)
        took = time.time() - begun
        kubelet.close()
        by_us = sorted(kubelet.begun.values())
        figures = scrape()
        parts.finish("controller")
        return {
            "jobs": jobs,
            "real": real,
            "complete": complete(),
            "decided": len(by_us),
            "decisions_per_second": (len(by_us) - 1) / max(by_us[-1] - by_us[0], 1e-9),
            "seconds_to_the_last_pod": pods_took,
            "seconds_to_the_last_job": took,
            "writes_per_pod": max(kubelet.writes.values()),
            "api_requests": figures["pyvgpu_api_requests_total"],
            "resident_mib": figures["process_resident_memory_bytes"] / 2**20,
        }


def many(parts: sidecars.Parts, count: int) -> dict[str, Any]:
    """Measure a controller that watches *count* running pods."""
    with rig.space() as space, cluster.fake_node():
        kubelet = cluster.FakeKubelet(space)
        padding = [{"name": f"SETTING_{n}", "value": f"value-{n}" * 3} for n in range(30)]

        def create(number: int) -> None:
            main = rig.container("main", "sleep 1000", env=padding)
            pod = sidecars.admitted(space, rig.pod(f"p{number}", main, side("swap")))
            pod["spec"]["nodeName"] = cluster.FAKE_NODE
            pod["metadata"]["annotations"] |= {"team/note": f"{number} " * 60}
            made = space.create("pods", pod)
            status = {"phase": "Running", "containerStatuses": running(made)}
            path = space.path("pods", f"p{number}") + "/status"
            space.server.call("PATCH", path, body={"status": status}, kind=apiserver.MERGE_PATCH)

        cluster.in_parallel(create, range(count))
        one = space.read("pods", "p0")
        parts.start("controller", "--listen", LISTEN)
        wait_until(lambda: scrape().get("pyvgpu_sidecar_pods", 0) >= count)
        time.sleep(5)
        figures = scrape()
        kubelet.close()
        parts.finish("controller")
        # One request each: a request that deletes all of them takes longer than a request may.
        cluster.in_parallel(lambda number: remove(space, f"p{number}"), range(count))
        return {
            "pods": count,
            "bytes_of_one": len(json.dumps(one)),
            "list_seconds": figures["pyvgpu_list_seconds_sum /api/v1/pods"],
            "resident_mib": figures["process_resident_memory_bytes"] / 2**20,
        }


def remove(space: rig.Space, pod: str) -> None:
    """Delete a pod at once."""
    space.server.call("DELETE", space.path("pods", pod), body={"gracePeriodSeconds": 0})


def running(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Return statuses of containers that all run."""
    now = objects.now()
    return [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"sha256:{'0' * 64}",
            "ready": True,
            "restartCount": 0,
            "containerID": f"containerd://{pod['metadata']['uid']}{container['name']}",
            "state": {"running": {"startedAt": now}},
        }
        for container in pod["spec"]["containers"]
    ]


def all_pods(space: rig.Space) -> list[Any]:
    """Return the pods of a namespace."""
    return list(space.server.items(space.path("pods"), {})[0])


def bound(space: rig.Space, count: int) -> list[Any]:
    """Return the pods once at least *count* of them are bound to nodes."""
    wait_until(lambda: sum("nodeName" in pod["spec"] for pod in all_pods(space)) >= count)
    return all_pods(space)


def wait_until(true: Any) -> None:
    """Wait until something is true."""
    end = time.monotonic() + SECONDS
    while not true():
        if time.monotonic() > end:
            raise SystemExit(f"timed out after {SECONDS} s")
        time.sleep(0.5)


def scrape() -> dict[str, float]:
    """Return the controller's figures: sums over labels, and lists by their path."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{LISTEN}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    found: dict[str, float] = {}
    for name, labels, value in re.findall(r"^(\w+)(\{.*\})? (\S+)$", text, re.MULTILINE):
        keys = {name}
        if path := re.search(r'path="(/[^"]*)"', labels):
            keys.add(f"{name} {path[1]}")
        for key in keys:
            found[key] = found.get(key, 0) + float(value)
    return found


def keep(record: dict[str, Any]) -> None:
    """Write the record, with the parts measured so far."""
    record["host"] = host.describe()
    host.keep(record, "sidecar")


def main() -> int:
    """Measure, record, show; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--jobs", type=int, default=40, metavar="N", help="of each way (%(default)s)")
    add("--burst", type=int, default=1000, metavar="N", help="Jobs at once (%(default)s)")
    add("--real", type=int, default=40, metavar="N", help="of these in real pods (%(default)s)")
    add("--pods", type=int, default=10_000, metavar="N", help="for one controller (%(default)s)")
    add("--only", default="latency,burst,many", metavar="PARTS", help="some of %(default)s")
    add("--no-record", action="store_true", help="write no record")
    add("--quick", action="store_true", help="few Jobs and pods, no record")
    options = parser.parse_args()
    if options.quick:
        options.jobs, options.burst, options.real, options.pods = 1, 5, 2, 20
        options.no_record = True
    only = options.only.split(",")
    rig.apply(sidecars.RIGHTS)
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "options": {key: value for key, value in vars(options).items() if key != "no_record"},
    }
    save = (lambda _: None) if options.no_record else keep
    with tempfile.TemporaryDirectory() as folder:
        parts = sidecars.Parts(Path(folder))
        try:
            if "latency" in only:
                parts.start_controller()
                parts.start_node()
                ways = ["none", "native", "stop", "swap", "hybrid"]
                record["latency"] = Latency(ways, options.jobs).run()
                parts.finish("node")
                alone = Latency(["hand", "native", "swap"], options.jobs).run()
                alone = {f"{way}, alone": rows for way, rows in alone.items()}
                record["latency"] |= alone
                parts.finish("controller")
                save(record)
            if "burst" in only:
                parts.start_node()
                record["burst"] = burst(parts, folder, options.burst, options.real)
                parts.finish("node")
                save(record)
            if "many" in only:
                record["many"] = many(parts, options.pods)
                save(record)
        finally:
            parts.end()
            logs = {path.name: path.read_text()[-3000:] for path in Path(folder).glob("*.log")}
    lines = sidecartable.lines(record)
    print(sidecartable.table(lines))
    print(host.remark())
    if any("Traceback" in text for text in logs.values()):
        print("\n".join(logs.values()), file=sys.stderr)
        return 1
    return 0 if all(line.kept for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
