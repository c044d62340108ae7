"""The scheduler process of benchmarks/scheduler.py.

It is the real program except for the API server: it reads lists of nodes and pods from a file, and
then watch events, line by line, so many a second. With "compare" instead of a rate it compares its
cache with the lists all the time, as a scheduler does every few minutes.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import https_server
import schedulerworld as world

from pyvgpu.controller.scheduler import cache, extender, node_annotation_reader, pod_request
from pyvgpu.controller.scheduler.shell import cache_check, cache_watch, extender_routes, verbs
from pyvgpu.http import replies, tls_server
from pyvgpu.kube import apiserver, process_tuning

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = (world.KEY,)


class Term:
    """A leadership term that handles requests."""

    ready = True

    def __init__(self, known: dict[str, replies.Route]) -> None:
        self.verbs = known


def read(known: cache.Cache, path: Path) -> Iterator[str]:
    """Read the lists in a file; what is left of it, line by line, are news."""
    with path.open() as file:
        for line in file:
            if line == world.NEWS:
                break
            for thing in json.loads(line)["items"]:
                see(known, thing)
        yield ""
        yield from file


def see(known: cache.Cache, thing: dict[str, Any]) -> None:
    """Update the cache with a node or a pod, as agent_watch.py does."""
    meta = thing["metadata"]
    if "namespace" in meta:
        known.see_pod(f"{meta['namespace']}/{meta['name']}", pod_request.read(thing, KEYS))
    else:
        reported = node_annotation_reader.read(thing)
        known.see_node(meta["name"], reported.published, reported.trouble)


def tell(known: cache.Cache, news: Iterator[str], per_second: float) -> None:
    """Feed watch events to the cache."""
    due = time.monotonic()
    for line in news:
        event = json.loads(line)
        if event["type"] == "DELETED":
            known.see_pod(event["key"], None)
        else:
            see(known, event["object"])
        due += 1 / per_second
        time.sleep(max(0.0, due - time.monotonic()))


class Lists(apiserver.ApiServer):
    """The API server's lists of nodes and pods, as JSON in pages."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(None)
        things: dict[str, list[Any]] = {cache_watch.NODES: [], cache_watch.PODS: []}
        with path.open() as file:
            for line in file:
                if line == world.NEWS:
                    break
                for thing in json.loads(line)["items"]:
                    pod = "namespace" in thing["metadata"]
                    things[cache_watch.PODS if pod else cache_watch.NODES].append(thing)
        self._pages = {kind: list(_pages(found, size)) for kind, found in things.items()}

    def _read(self, request: Any) -> bytes:
        """Return the page that *request* is for."""
        return self._pages[request.path][int(request.query["continue"] or 0)]


def _pages(things: list[Any], size: int) -> Iterator[bytes]:
    """Yield a list in pages of *size* objects, as the API server writes them."""
    for number, at in enumerate(range(0, len(things), size), 1):
        following = str(number) if at + size < len(things) else ""
        meta = {"resourceVersion": "1", "continue": following}
        page = {"kind": "List", "apiVersion": "v1", "metadata": meta}
        page["items"] = things[at : at + size]
        yield json.dumps(page, separators=(",", ":")).encode()


class CpuTimes:
    """Notes the CPU time of the event loop's thread from one answer to the next."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._before = 0.0

    def observe(self, _path: str, _result: str, _seconds: float) -> None:
        """Note that a request was answered, in that thread."""
        now = time.thread_time()
        self.seconds.append(now - self._before)
        self._before = now


def memory(field: str) -> int:
    """Return MiB of this process, as the kernel counts them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) >> 10
    return 0


def main() -> None:
    """Load the world, print the address, and serve until the input ends."""
    process_tuning.collect_rarely()
    begun = time.monotonic()
    comparing = sys.argv[2] == "compare"
    known = cache.Cache(cache.SchedulerSettings(resync_seconds=0.0 if comparing else 300.0))
    decider = extender.Decider(known)
    news = read(known, Path(sys.argv[1]))
    next(news)
    answering = verbs.Verbs(decider, None, lambda: KEYS, tuple, ())  # type: ignore[arg-type]
    served = extender_routes.ExtenderRoutes(lambda: None)
    served.begin(Term(dict(answering.all)))  # type: ignore[arg-type]
    times = CpuTimes()
    server = https_server.HttpsServer(
        lambda where, context, _: tls_server.TlsServer(
            where,
            served.routes,
            context,
            times.observe,
            most_bytes=extender_routes.MOST_BYTES,
            quick=extender_routes.QUICK,
        )
    )
    lists = Lists(Path(sys.argv[1]), cache_check.PAGE) if comparing else None
    drift = cache_check.Drift(lists, known, lambda: KEYS, lambda: None)  # type: ignore[arg-type]
    process_tuning.settle()
    started = {
        "seconds": time.monotonic() - begun,
        "pods": len(known.pods),
        "nodes": len(known.nodes),
        "port": server.address[1],
        "authorities": server.bundle.authorities,
    }
    print(json.dumps(started), flush=True)
    work = (drift.run, threading.Event()) if comparing else (tell, known, news, float(sys.argv[2]))
    threading.Thread(target=work[0], args=work[1:], daemon=True).start()
    for _ in sys.stdin:
        found = {"resident": memory("VmRSS"), "peak": memory("VmHWM")}
        found |= {"comparisons": drift.comparisons, "differences": drift.count}
        found["cpu"] = list(times.seconds)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
