"""State behind the cluster's status page, refreshed every few seconds for nodes that changed.

Nodes and pods are watched as in the scheduler, but into a separate cache that trusts placement
annotations without verifying their signatures: the page allocates nothing. The reasons for which
pods wait are computed only while a user views the page, for at most MOST_SORTS shapes at a time.
"""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from typing import TYPE_CHECKING, Any

import pyvgpu
from pyvgpu import errors
from pyvgpu.controller.scheduler import cache, wait_reasons
from pyvgpu.controller.scheduler.shell import cache_watch, scheduling_events
from pyvgpu.controller.status import (
    agent_documents,
    claim_pods,
    guard,
    node_rows,
    stored_day,
)
from pyvgpu.kube import informer, objects, threads
from pyvgpu.status import documents, history, site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyvgpu.controller.scheduler import pod_request
    from pyvgpu.http import endpoints, http_messages
    from pyvgpu.kube import apiserver
    from pyvgpu.kube.objects import Object

    Sort = tuple[pod_request.PodShape, tuple[str, ...]]  # pods with the same request

POLL_SECONDS = 5.0  # refresh interval
SYNC_SECONDS = 0.1  # poll interval until all lists are read
SOON_SECONDS = 1.0  # the page's polling interval while an answer is incomplete
AT_ONCE = 50  # nodes refreshed per hold of the cache's lock
MOST_WAITING = 50  # pending pods shown
MOST_SORTS = 10  # shapes of pending pods that one refresh explains
WHY_SECONDS = 30.0  # lifetime of an explanation
WATCHED_SECONDS = 60.0  # pending pods are explained for this long after the last request
MOST_PROBLEMS = 20
EVENTS_PATH = "/api/v1/events"
EVENT_SOURCES = ("pyvgpu", scheduling_events.COMPONENT)  # the agents and the scheduler
MOST_EVENTS = 50  # events shown
_LINES = ("allocated", "memory", "waiting")
_ALL = "all"
_ROOM = "kube-scheduler has not retried since, or something else rules that node out"


@dataclasses.dataclass(frozen=True, slots=True)
class StatusSettings:
    """Settings of the status page."""

    cluster: str  # its name on the page
    agent_namespace: str
    agent_port: int
    claims: bool = False  # show pods that wait for ResourceClaims
    store: str = ""  # URL path of the ConfigMap that keeps the last day; empty: none


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class ShownEvent:
    """An event as the page shows it; the newest compares greatest."""

    at: str  # in the API server's notation
    object: str  # namespace/name of the object that it is about
    kind: str
    reason: str
    text: str


def read_event(event: Object) -> ShownEvent:
    """Return what the page shows of *event*."""
    about = objects.section(event, "involvedObject")
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return ShownEvent(
        str(at or objects.section(event, "metadata").get("creationTimestamp") or ""),
        f"{about.get('namespace')}/{about.get('name')}",
        str(event.get("type") or ""),
        str(event.get("reason") or ""),
        str(event.get("message") or ""),
    )


class RecentEvents:
    """Watches for the newest Events that pyvgpu's components recorded; keeps a bounded number."""

    def __init__(
        self, api: apiserver.ApiServer, counting: informer.Counting | None = None
    ) -> None:
        self._events: dict[str, ShownEvent] = {}
        self._lock = threading.Lock()
        self._followed = [
            informer.Informer(
                api,
                EVENTS_PATH,
                {"fieldSelector": f"source={name}"},
                self._note,
                _ignore,
                counting,
            )
            for name in EVENT_SOURCES
        ]

    @property
    def parts(self) -> tuple[Callable[[threading.Event], None], ...]:
        """The functions to run until an event is set, each in a thread."""
        return tuple(events.run for events in self._followed)

    def document(self) -> list[dict[str, str]]:
        """Return the events as the page takes them, the newest first."""
        with self._lock:
            newest = sorted(self._events.values(), reverse=True)[:MOST_EVENTS]
        return [
            {
                "at": event.at,
                "type": event.kind,
                "reason": event.reason,
                "object": event.object,
                "text": event.text,
            }
            for event in newest
        ]

    def _note(self, event: Object) -> None:
        key = informer.key_of(event)
        with self._lock:
            self._events[key] = read_event(event)
            if len(self._events) > 4 * MOST_EVENTS:
                newest = sorted(self._events, key=lambda key: self._events[key], reverse=True)
                self._events = {key: self._events[key] for key in newest[:MOST_EVENTS]}


def _ignore(_key: str) -> None:
    """Do nothing: the page reads the events on request."""


class Cluster:
    """The data and HTTP handlers of a cluster's page; thread-safe."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        settings: StatusSettings,
        counting: informer.Counting | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self.cache = cache.Cache()
        self._watch = cache_watch.Following(api, self.cache, lambda: None, _nothing, counting)
        self._agents = agent_documents.Agents(
            api, settings.agent_namespace, settings.agent_port, self._touch, counting
        )
        self._events = RecentEvents(api, counting)
        self._claims = claim_pods.ClaimPods(api, counting) if settings.claims else None
        self._guard = guard.TokenGuard(api)
        self._threads = threads.Threads()
        self._lock = threading.Lock()
        self._touched: set[str] = set()
        self.cache.listen(self._touch)
        self._rows: dict[str, node_rows.NodeRow] = {}
        self._listed: list[node_rows.NodeRow] = []
        self._totals = node_rows.totals(())
        self._lines: history.History[str] = history.History()
        self._days = history.DayHistory()
        self._stored = (
            stored_day.StoredDay(api, settings.store, self._days, clock)
            if settings.store
            else None
        )
        self._why: dict[Sort, tuple[float, str, str]] = {}  # time, request, reason
        self._claims_why: dict[str, _ClaimReason] = {}  # by pod
        self._waiting: list[pod_request.PodRequest | claim_pods.ClaimPod] = []
        self._at = 0.0
        self._watched = -math.inf  # time of the last request
        self._hurry = threading.Event()  # set: refresh now

    def run(self, stop: threading.Event) -> None:
        """Refresh until *stop*."""
        parts = (*self._watch.parts, self._agents.run, *self._events.parts)
        parts += self._claims.parts if self._claims else ()
        parts += (self._stored.run,) if self._stored else ()
        self._threads.start(*(_bound(part, stop) for part in parts))
        while not stop.is_set():
            self._hurry.wait(POLL_SECONDS if self._at else SYNC_SECONDS)
            self._hurry.clear()
            if not self.missing and not (self._stored and not self._stored.was_read.is_set()):
                self.poll()

    @property
    def missing(self) -> str:
        """What was not read yet; empty once everything was."""
        agents_missing = (
            "" if self._agents.synced.is_set() else "the agents have not been read yet"
        )
        return self._watch.missing or agents_missing

    def alive(self) -> str:
        """Return which thread failed; empty if all run."""
        return self._threads.alive()

    @property
    def nodes(self) -> int:
        """The number of nodes shown."""
        return len(self._rows)

    def routes(self) -> dict[str, endpoints.Route]:
        """Return the HTTP handlers by path."""
        return site.routes(self._answer)

    def poll(self) -> None:
        """Refresh the rows of changed nodes, the pending pods and the history."""
        with self._lock:
            touched, self._touched = self._touched, set()
        known = dict(self._rows)
        for some in _some(list(touched)):
            with self.cache.lock:
                for name in some:
                    info = self.cache.nodes.get(name)
                    known.pop(name, None)
                    if info is not None:
                        known[name] = node_rows.row_of(info, self._agents.trouble(name))
        if touched:
            self._rows = known
            self._listed = sorted(known.values(), key=lambda row: row.order)
            self._totals = node_rows.totals(self._listed)
        found: list[pod_request.PodRequest | claim_pods.ClaimPod]
        with self.cache.lock:
            found = [pod for pod in self.cache.pods.values() if pod.waits or pod.gated]
        if self._claims:
            keys = {pod.key for pod in found}
            found += [pod for pod in self._claims.waiting() if pod.key not in keys]
        self._waiting = sorted(found, key=lambda pod: (-pod.priority, pod.created, pod.key))
        if time.monotonic() < self._watched + WATCHED_SECONDS:
            self._find_out()
            self._find_out_claims()
        sums = self._totals
        allocated = round(1000 * sums["allocated"] / (sums["devices"] or 1))
        memory = round(1000 * sums["allocatedBytes"] / (sums["memoryBytes"] or 1))
        now = {_ALL: (allocated, memory, len(found))}
        self._at = self._clock()
        self._lines.add(now)
        if self._days.add(now, self._at) and self._stored:
            self._stored.put(self._days.text())

    def _answer(self, asked: endpoints.HttpRequest) -> http_messages.HttpResponse:
        verdict = self._guard.check(asked.fields)
        if verdict.code != 200:
            more = {"WWW-Authenticate": "Bearer"} if verdict.code == 401 else None
            return site.refusal(verdict.code, verdict.why, more)
        try:
            return site.answer(asked, self.document(asked.query))
        except errors.UsageError as exc:
            return site.refusal(400, str(exc))
        except errors.DataError as exc:
            return site.refusal(404, str(exc))
        except errors.UnavailableError as exc:
            return site.refusal(503, str(exc))

    def document(self, query: Mapping[str, str]) -> dict[str, Any]:
        """Return the document that *query* selects.

        UsageError for an invalid query, DataError for an unknown node, UnavailableError until
        everything was read.
        """
        wanted = node_rows.read(query)
        if self.missing or not self._at:
            raise errors.UnavailableError(self.missing or "the first refresh has not finished")
        if time.monotonic() >= self._watched + WATCHED_SECONDS:
            self._hurry.set()
        self._watched = time.monotonic()
        if query.get("node"):
            return self._node(query["node"])
        waiting_rows = [self._row(pod) for pod in self._waiting[:MOST_WAITING]]
        known = all(row["why"] for row in waiting_rows)
        return {
            "kind": "cluster",
            "cluster": self._settings.cluster,
            "version": pyvgpu.__version__,
            "at": documents.when(self._at),
            "seconds": POLL_SECONDS if known else SOON_SECONDS,
            "totals": self._totals,
            "lines": self._lines.lines(_ALL, _LINES),
            "day": self._days.lines(_ALL, _LINES),
            "problems": list(self._problems()),
            "waiting": {"count": len(self._waiting), "rows": waiting_rows},
            "nodes": node_rows.chosen(self._listed, wanted),
            "events": self._events.document(),
        }

    def _problems(self) -> Iterator[dict[str, str]]:
        troubled = [row for row in self._listed if row.troubled and row.state != "cordoned"]
        for row in troubled[:MOST_PROBLEMS]:
            yield documents.problem(row.name, row.why)
        if len(troubled) > MOST_PROBLEMS:
            more = len(troubled) - MOST_PROBLEMS
            yield documents.problem("nodes", f"{more} more: show only those with a problem")

    def _row(self, pod: pod_request.PodRequest | claim_pods.ClaimPod) -> dict[str, Any]:
        trouble = ""
        if isinstance(pod, claim_pods.ClaimPod):
            found = self._claims_why.get(pod.key)
            asked, why = (found.asked, found.why) if found else ("", "")
        else:
            _, asked, why = self._why.get((pod.shape, pod.names), (0.0, "", ""))
            trouble = pod.trouble
        return {
            "pod": pod.key,
            "asks": asked,
            "since": documents.when(pod.created),
            "priority": pod.priority,
            "why": trouble or _gates(pod.gates) or why,
        }

    def _find_out(self) -> None:
        """Explain the pending pods shown whose reason is unknown or older than WHY_SECONDS."""
        now = time.monotonic()
        sorts = {
            (pod.shape, pod.names): pod
            for pod in reversed(self._waiting[:MOST_WAITING])
            if not isinstance(pod, claim_pods.ClaimPod)
        }
        known = {sort: reason for sort, reason in self._why.items() if sort in sorts}
        late = [sort for sort in sorts if sort not in known or now >= known[sort][0] + WHY_SECONDS]
        for sort in late[:MOST_SORTS]:
            why = wait_reasons.find(self.cache, sorts[sort])
            hint = f"; {_ROOM}" if why.fitting else ""
            known[sort] = now, why.asked, f"{why.event()}{hint}"
        self._why = known

    def _find_out_claims(self) -> None:
        """Do the same for pods that wait for claims."""
        if not self._claims or not self._claims.synced:
            return
        now = time.monotonic()
        pods = [
            (pod, self._claims.made(pod))
            for pod in self._waiting[:MOST_WAITING]
            if isinstance(pod, claim_pods.ClaimPod) and not pod.gates
        ]
        known = {
            pod.key: reason
            for pod, made in pods
            if (reason := self._claims_why.get(pod.key)) and reason.made == made
        }
        late = {
            pod.key: (pod, made)
            for pod, made in pods
            if pod.key not in known or now >= known[pod.key].at + WHY_SECONDS
        }
        some = list(late.values())[:MOST_SORTS]
        for key, asked, why in self._claims.explain([pod for pod, _ in some]):
            known[key] = _ClaimReason(now, late[key][1], asked, why)
        self._claims_why = known

    def _node(self, name: str) -> dict[str, Any]:
        """Return a node's document from its agent; if that is silent, without measured use."""
        row = self._rows.get(name)
        if row is None:
            raise errors.DataError(f"node {name[:80]!r}: must be one that has pyvgpu devices")
        try:
            return {**self._agents.ask(name), "node": name}
        except errors.UnavailableError as exc:
            with self.cache.lock:
                info = self.cache.nodes.get(name)
                devices = node_rows.without_agent(info) if info is not None else []
            problem = documents.problem("agent", f"{exc}, so measured use is unknown")
            return documents.node(name, self._at, POLL_SECONDS, devices, problems=[problem])

    def _touch(self, name: str) -> None:
        with self._lock:
            self._touched.add(name)


@dataclasses.dataclass(frozen=True, slots=True)
class _ClaimReason:
    at: float  # seconds, monotonic
    made: tuple[str, ...]  # the pod's claims that existed then
    asked: str
    why: str


def _some(names: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(names), AT_ONCE):
        yield names[first : first + AT_ONCE]


def _bound(part: Callable[[threading.Event], None], stop: threading.Event) -> Callable[[], None]:
    return lambda: part(stop)


def _gates(gates: tuple[str, ...]) -> str:
    """Return why kube-scheduler does not consider a pending pod yet; empty if it does."""
    return f"queued by its schedulingGates: {', '.join(gates)}" if gates else ""


def _nothing() -> None:
    """Do nothing: this cache schedules no pods, so freed capacity wakes none."""
