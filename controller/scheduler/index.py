"""Index of nodes by pod shape: which nodes fit, and their scores, cached between requests.

Pods of one shape have the same results, which are kept. The next request evaluates only nodes that
have changed: so an answer costs as much as the changes since the last one for its shape, and the
names in it.

Scores are 0 to 10, the scale of scheduler extenders. *binpack* fills devices that are shared
already, then nodes that are in use, so that whole devices and whole nodes stay free for pods that
need them. *spread* is its opposite. *topology* scores how near to each other the devices are that
the pod would get; for a single device, it is binpack.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import itertools
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import (
    capacity,
    codes,
    datatypes,
    free_capacity,
    nearness,
    pod_placement,
    search_budget,
)
from pyvgpu.controller.scheduler import name_lists, pod_request

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyvgpu.controller.scheduler.node_info import NodeInfo

MOST_SHAPES = 64  # cached at once; the least recently used are dropped
MOST_GONE = 1024  # deleted nodes whose names are kept


class RefusalReason(enum.Enum):
    """Why a node refuses a pod: few words, shown after the number of such nodes."""

    UNKNOWN = "no devices published (is its agent running?)"
    DAMAGED = "published devices that cannot be parsed"
    NONSENSE = "memory units in which the request is invalid"
    CLOSED = "no healthy device that this pod may use"
    SMALL = "no device that is large enough"
    FEWER = "fewer devices for this pod than asked for"
    TAKEN = "not enough left on each device"
    FEW = "too few devices with room"
    APART = "no devices with room are close enough to each other"
    TOGETHER = "no room for all containers together"
    PLACES = "no place for the MIG instances"

    @property
    def passes(self) -> bool:
        """Whether the pod could fit if others ended there."""
        return self in _PASSING


_PASSING = frozenset(
    {
        RefusalReason.TAKEN,
        RefusalReason.FEW,
        RefusalReason.APART,
        RefusalReason.TOGETHER,
        RefusalReason.PLACES,
    }
)


_REASONS = {getattr(codes, reason.name): reason for reason in RefusalReason}
_UNSCORED = 255  # more than any score


class Meaning:
    """The request of a shape, in the memory units of each node."""

    __slots__ = ("_asks", "_pods", "_shape")

    def __init__(self, shape: pod_request.PodShape) -> None:
        self._shape = shape
        self._pods: dict[int, datatypes.Pod | None] = {}  # by the bytes of a node's unit
        self._asks: dict[int, capacity.Ask | None] = {}

    def pod(self, unit: int) -> datatypes.Pod | None:
        """Return the request in units of so many bytes; None if it is invalid in them."""
        try:
            return self._pods[unit]
        except KeyError:
            found = None
            with contextlib.suppress(errors.UsageError):
                found = pod_request.pod_of(self._shape, max(unit, 1))
            return self._pods.setdefault(unit, found)

    def asked(self, unit: int) -> capacity.Ask | None:
        """Return the same as plain numbers."""
        try:
            return self._asks[unit]
        except KeyError:
            pod = self.pod(unit)
            return self._asks.setdefault(unit, None if pod is None else free_capacity.asked(pod))

    @property
    def is_searched(self) -> bool:
        """Whether numbers do not suffice, in any of the units seen so far."""
        return any(pod and not pod_placement.is_by_count(pod) for pod in self._pods.values())

    @property
    def asks_several(self) -> bool:
        """Whether a container requests several devices."""
        pods = filter(None, self._pods.values())
        return any(container.need.count > 1 for pod in pods for container in pod.containers)

    def evaluate(
        self, info: NodeInfo, budget: search_budget.SearchBudget, own: Collection[str] = ()
    ) -> RefusalReason | None:
        """Return why a node does not fit, None if it does.

        *budget* is shared by several nodes. Reservations of the pods *own*, by uid, count as
        free.
        """
        free = info.without(own) if own else info.free
        numbers = info.capacity if free is info.free else free_capacity.numbers(info.unit, free)
        said = bytearray(1)
        capacity.evaluate_all([numbers], (0,), self.asked, said)
        return _REASONS.get(self.settle(said[0], info, free, budget))

    def settle(
        self,
        code: int,
        info: NodeInfo,
        free: Sequence[free_capacity.FreeCapacity],
        budget: search_budget.SearchBudget,
    ) -> int:
        """Return the final code of a node for which the numbers give *code*."""
        if code == codes.UNKNOWN and info.trouble:
            return codes.DAMAGED
        pod = self.pod(info.unit) if code == codes.FITS else None
        if (
            pod is None
            or pod_placement.is_by_count(pod)
            or pod_placement.find(free, pod, budget) is not None
        ):
            return code
        if pod.selector.mig:
            return codes.PLACES
        return codes.TOGETHER if len(pod.containers) > 1 else codes.APART


class Scores:
    """Scores of all nodes for one shape and policy."""

    __slots__ = ("outdated", "points")

    def __init__(self, nodes: int) -> None:
        self.points = bytearray(nodes)  # by node number
        self.outdated = set(range(nodes))  # numbers of nodes that have changed since


class ShapeResults:
    """Cached results of all nodes for one shape."""

    __slots__ = ("_roll", "at", "fitting", "meaning", "scores")

    def __init__(self, shape: pod_request.PodShape, roll: name_lists.Roll) -> None:
        self.meaning = Meaning(shape)
        self._roll = roll
        self.fitting = bytearray()  # a code, by node number
        self.at = 0  # changes included
        self.scores: dict[pod_request.NodePolicy, Scores] = {}

    def fits(self, name: str) -> bool:
        """Return whether a node fits."""
        return self._code(name) == codes.FITS

    @property
    def fits_any(self) -> bool:
        """Whether any node fits."""
        return codes.FITS in self.fitting

    def why(self, name: str) -> RefusalReason | None:
        """Return why a node does not fit; None if it does."""
        return _REASONS.get(self._code(name))

    def split(
        self, names: Sequence[str], *, every_reason: bool = True
    ) -> tuple[Sequence[str], dict[RefusalReason, Sequence[str]]]:
        """Return those of *names* that fit, and the others by reason.

        Without *every_reason* the others are left out where any node fits.
        """
        said = self._roll.lookup(names, self.fitting, codes.UNKNOWN)
        fitting = said.count(codes.FITS)
        if fitting == len(said):
            return names, {}
        if fitting and not every_reason:
            return name_lists.only(names, said, codes.FITS), {}
        found = {code: name_lists.only(names, said, code) for code in set(said)}
        fit = found.pop(codes.FITS, [])
        return fit, {_REASONS[code]: refused for code, refused in found.items()}

    def _code(self, name: str) -> int:
        number = self._roll.find(name)
        if number is None or number >= len(self.fitting):
            return codes.UNKNOWN
        return self.fitting[number]


def _reach(found: bytearray, count: int, code: int) -> None:
    """Extend *found* to at least *count* entries; new ones get *code*."""
    found.extend(bytes((code,)) * (count - len(found)))


class Index:
    """Knows which nodes fit each shape; called by one thread at a time."""

    def __init__(self, infos: Mapping[str, NodeInfo]) -> None:
        self._nodes = infos
        self._changes: list[str] = []  # names of changed nodes, the latest last
        self._forgotten = 0  # how many came before those
        self._known: collections.OrderedDict[pod_request.PodShape, ShapeResults] = (
            collections.OrderedDict()
        )
        self._begin()

    def _begin(self) -> None:
        """Start empty."""
        self._known.clear()
        self._roll = name_lists.Roll()  # keeps deleted nodes, too, for a while
        self._numbers: list[capacity.Capacity | None] = []  # by node number
        self._at = 0  # changes included
        self._follow(self._nodes)

    @property
    def names(self) -> int:
        """Return how many names of nodes are kept, including deleted ones."""
        return len(self._roll)

    def changed(self, name: str) -> None:
        """Note that a node has changed."""
        self._changes.append(name)
        if len(self._changes) > 2 * len(self._nodes) + 1024:
            self._forget_changes()

    def results_of(self, shape: pod_request.PodShape) -> ShapeResults:
        """Return the results for *shape*, brought up to date."""
        if len(self._roll) > 2 * len(self._nodes) + MOST_GONE:
            self._begin()
        if self._at < self._forgotten:
            self._follow(self._nodes)
        elif self._at < self.version:
            self._follow(self._since(self._at))
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = ShapeResults(shape, self._roll)
            while len(self._known) > MOST_SHAPES:
                self._known.popitem(last=False)
            self._evaluate(known, range(len(self._numbers)))
        else:
            self._known.move_to_end(shape)
            if known.at < self.version:
                numbers = {self._roll.number(name) for name in self._since(known.at)}
                self._evaluate(known, numbers)
                for scores in known.scores.values():
                    scores.outdated |= numbers
        known.at = self.version
        return known

    def score(
        self, shape: pod_request.PodShape, policy: pod_request.NodePolicy, names: Sequence[str]
    ) -> name_lists.Codes:
        """Return the score of each of *names* for *shape*, from 0 to 10 (best)."""
        known = self.results_of(shape)
        scores = known.scores.get(policy)
        if scores is None:
            scores = known.scores[policy] = Scores(len(self._numbers))
        if scores.outdated:
            self._score(known, policy, scores)
        found = self._roll.lookup(names, scores.points, 0)
        if _UNSCORED in found:
            for name in name_lists.only(names, found, _UNSCORED):
                info = self._nodes[name]
                pod = known.meaning.pod(info.unit)
                points = score_nearness(info.free, pod) if pod else 0
                scores.points[self._roll.number(name)] = points
            found = self._roll.lookup(names, scores.points, 0)
        return found

    def _follow(self, names: Iterable[str]) -> None:
        """Update the numbers of nodes."""
        for name in names:
            number = self._roll.number(name)
            if number == len(self._numbers):
                self._numbers.append(None)
            info = self._nodes.get(name)
            self._numbers[number] = None if info is None else info.capacity
        self._at = self.version

    def _score(self, known: ShapeResults, policy: pod_request.NodePolicy, scores: Scores) -> None:
        """Score changed nodes; by nearness only on demand."""
        fitting, points = known.fitting, scores.points
        _reach(points, len(self._numbers), 0)
        if known.meaning.asks_several and policy is pod_request.NodePolicy.TOPOLOGY:
            for number in scores.outdated:  # each is slow: scored only on request
                points[number] = _UNSCORED if fitting[number] == codes.FITS else 0
        else:
            capacity.score_all(
                self._numbers,
                scores.outdated,
                known.meaning.asked,
                policy is pod_request.NodePolicy.SPREAD,
                fitting,
                points,
            )
        scores.outdated.clear()

    def fits_one_of(self, shape: pod_request.PodShape, names: Collection[str]) -> bool:
        """Return whether *shape* fits one of a few nodes; adds nothing to the index."""
        if shape in self._known:
            return any(map(self.results_of(shape).fits, names))
        meaning, budget = Meaning(shape), search_budget.SearchBudget()
        infos = (self._nodes.get(name) for name in names)
        return any(info and meaning.evaluate(info, budget) is None for info in infos)

    def shapes(self) -> Iterator[pod_request.PodShape]:
        """Yield the cached shapes."""
        yield from self._known

    def _evaluate(self, known: ShapeResults, numbers: Collection[int]) -> None:
        """Evaluate nodes again."""
        meaning, fitting, budget = known.meaning, known.fitting, search_budget.SearchBudget()
        _reach(fitting, len(self._numbers), codes.UNKNOWN)
        capacity.evaluate_all(self._numbers, numbers, meaning.asked, fitting)
        searched = meaning.is_searched
        if not searched and codes.UNKNOWN not in fitting:
            return
        for number in numbers:
            if searched or fitting[number] == codes.UNKNOWN:
                info = self._nodes.get(self._roll.name(number))
                if info is not None:
                    fitting[number] = meaning.settle(fitting[number], info, info.free, budget)

    @property
    def version(self) -> int:
        """Return the number of changes so far: while it is constant, so are all nodes."""
        return self._forgotten + len(self._changes)

    def _since(self, version: int) -> set[str]:
        """Return the names of nodes changed since; those changes must still be kept."""
        return set(self._changes[version - self._forgotten :])

    def _forget_changes(self) -> None:
        """Drop the older half, and the shapes that were last evaluated before the rest."""
        half = len(self._changes) // 2
        del self._changes[:half]
        self._forgotten += half
        for shape in [shape for shape, known in self._known.items() if known.at < self._forgotten]:
            del self._known[shape]


def score_nearness(free: Sequence[free_capacity.FreeCapacity], pod: datatypes.Pod) -> int:
    """Return 10 for devices that are all linked by NVLink, 2 less for each level farther apart."""
    placed = pod_placement.find(free, pod)
    if placed is None:
        return 0
    table = nearness.table(tuple(room.device for room in free))
    at = {room.device.uuid: position for position, room in enumerate(free)}
    furthest = max(
        nearness.worst(table, [at[share.uuid] for share in shares])
        for shares in itertools.chain(placed.values())
    )
    return max(0, codes.BEST - 2 * furthest)
