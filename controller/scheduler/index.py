"""Which nodes have a place for what is asked, and how well it would be there: known beforehand.

Pods of one shape are judged alike, so what was found out for one is kept for the next. A node is
judged again when somebody asks after it has changed, and no other node is: so an answer takes as
long as what has changed since the last one of its shape, and the names in it.
"""

from __future__ import annotations

import collections
import contextlib
import enum
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import facts, place, rooms
from pyvgpu.controller.scheduler import asks, listed, score

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from pyvgpu.controller.scheduler.stands import Stand

MOST_SHAPES = 64  # that are known at once; of more, those that nobody asked for longest are not
MOST_GONE = 1024  # nodes of which no more than their names are kept


class Reason(enum.Enum):
    """Why a pod has no place on a node: few words, behind the number of nodes with the same."""

    UNKNOWN = "no devices published (does its agent run?)"
    DAMAGED = "devices published that cannot be read"
    NONSENSE = "units of memory in which nothing is asked for"
    CLOSED = "no healthy device that this pod may use"
    SMALL = "no device that is large enough"
    FEWER = "fewer devices for this pod than asked for"
    TAKEN = "too little left of each device"
    FEW = "too few devices with room"
    APART = "no devices with room near enough to each other"
    TOGETHER = "no room for all containers together"

    @property
    def passes(self) -> bool:
        """Whether it would be another matter if pods there ended."""
        return self in _PASSING


_PASSING = frozenset({Reason.TAKEN, Reason.FEW, Reason.APART, Reason.TOGETHER})


def judge(
    stand: Stand,
    pod: facts.Pod | None,
    patience: place.Patience | None = None,
    own: Collection[str] = (),
) -> Reason | None:
    """Return why *pod* has no place on a node, None if it has one.

    No pod: what is asked for means nothing in this node's units. *patience* is for several nodes.
    What is promised to those called *own*, by uid, counts as free.
    """
    if not stand.unit:
        return Reason.DAMAGED if stand.trouble else Reason.UNKNOWN
    if pod is None:
        return Reason.NONSENSE
    free = stand.without(own) if own else stand.free
    return None if place.fits(free, pod, patience) else _why(free, pod)


def _why(free: Sequence[rooms.Room], pod: facts.Pod) -> Reason:
    """Return why a pod that has no place has none: what would have to change first."""
    may = [it for it in free if not rooms.unfit(it.device, pod.selector)]
    if not may:
        return Reason.CLOSED
    found = None
    for container in pod.containers:
        need = container.need
        large = sum(
            rooms.has(it.device, need, facts.WHOLE, it.device.memory_bytes, untouched=True)
            for it in may
        )
        if large < need.count:
            return Reason.FEWER if large else Reason.SMALL
        serving = sum(
            rooms.has(it.device, need, it.vcore, it.vmemory, untouched=it.untouched) for it in may
        )
        if serving < need.count and found is None:
            found = Reason.FEW if serving else Reason.TAKEN
    if found is not None:
        return found
    return Reason.TOGETHER if len(pod.containers) > 1 else Reason.APART


_FITS = 0
_CODES = {why: number for number, why in enumerate(Reason, 1)}
_REASONS = {number: why for why, number in _CODES.items()}
_UNKNOWN = _CODES[Reason.UNKNOWN]
_UNSCORED = 255  # more than any score


class Scores:
    """How well a shape would be on each node by one policy, as far as somebody asked."""

    __slots__ = ("codes", "outdated")

    def __init__(self) -> None:
        self.codes = bytearray()  # by the numbers of nodes
        self.outdated: set[str] = set()  # of those that had a score, which are another by now

    def forget(self, name: str, number: int) -> None:
        """Note that a node is another."""
        if number < len(self.codes) and self.codes[number] != _UNSCORED:
            self.codes[number] = _UNSCORED
            self.outdated.add(name)


class Meaning:
    """What a shape means on each node."""

    __slots__ = ("_pods", "_shape")

    def __init__(self, shape: asks.Shape) -> None:
        self._shape = shape
        self._pods: dict[int, facts.Pod | None] = {}  # by the bytes of a node's unit

    def pod(self, unit: int) -> facts.Pod | None:
        """Return what is asked for in units of so many bytes; None if that is nothing."""
        try:
            return self._pods[unit]
        except KeyError:
            found = None
            with contextlib.suppress(errors.UsageError):
                found = asks.pod_of(self._shape, max(unit, 1))
            return self._pods.setdefault(unit, found)

    def judge(
        self, stand: Stand, patience: place.Patience, own: Collection[str] = ()
    ) -> Reason | None:
        """Return why there is no place on a node, None if there is one; *own* as in judge."""
        return judge(stand, self.pod(stand.unit), patience, own)


class Known:
    """What is known of all nodes for one shape."""

    __slots__ = ("_codes", "_meaning", "_roll", "at", "pod", "scores")

    def __init__(self, shape: asks.Shape, roll: listed.Roll) -> None:
        self._meaning = Meaning(shape)
        self.pod = self._meaning.pod
        self._roll = roll
        self._codes = bytearray()  # whether there is a place, by the numbers of nodes
        self.at = 0  # changes that are in it
        self.scores: collections.defaultdict[asks.Policy, Scores] = collections.defaultdict(Scores)

    def judge(self, stand: Stand, name: str, patience: place.Patience) -> None:
        """Note what is to be said of a node now."""
        why = self._meaning.judge(stand, patience)
        self._note(name, self._roll.number(name), _FITS if why is None else _CODES[why])

    def drop(self, name: str) -> None:
        """Note that a node is gone."""
        number = self._roll.find(name)
        if number is not None:
            self._note(name, number, _UNKNOWN)

    def fits(self, name: str) -> bool:
        """Tell whether there is a place on a node."""
        return self._code(name) == _FITS

    def why(self, name: str) -> Reason | None:
        """Return why a node is refused; None if it is not."""
        return _REASONS.get(self._code(name))

    def split(
        self, names: Sequence[str], *, every_reason: bool = True
    ) -> tuple[Sequence[str], dict[Reason, Sequence[str]]]:
        """Return those of *names* that fit, and the others by why not.

        Without *every_reason* the others are left out where one fits.
        """
        codes = self._roll.look(names, self._codes, _UNKNOWN)
        fitting = codes.count(_FITS)
        if fitting == len(codes):
            return names, {}
        if fitting and not every_reason:
            return listed.only(names, codes, _FITS), {}
        found = {code: listed.only(names, codes, code) for code in set(codes)}
        return found.pop(_FITS, []), {_REASONS[code]: refused for code, refused in found.items()}

    def _code(self, name: str) -> int:
        number = self._roll.find(name)
        if number is None or number >= len(self._codes):
            return _UNKNOWN
        return self._codes[number]

    def _note(self, name: str, number: int, code: int) -> None:
        _reach(self._codes, number, _UNKNOWN)
        self._codes[number] = code
        for scores in self.scores.values():
            scores.forget(name, number)


def _reach(codes: bytearray, number: int, code: int) -> None:
    """Let *codes* have one of *number*: *code* for those that are new."""
    codes.extend(bytes((code,)) * (number + 1 - len(codes)))


class Index:
    """Knows for each shape which nodes do; called by one thread at a time."""

    def __init__(self, stands: Mapping[str, Stand]) -> None:
        self._stands = stands
        self._changes: list[str] = []  # names of nodes, the last changes last
        self._forgotten = 0  # how many were before those
        self._roll = listed.Roll()  # has those that are gone, too, for a while
        self._known: collections.OrderedDict[asks.Shape, Known] = collections.OrderedDict()

    @property
    def names(self) -> int:
        """Return of how many nodes the names are kept, those that are gone among them."""
        return len(self._roll)

    def changed(self, name: str) -> None:
        """Note that a node is another."""
        self._changes.append(name)
        if len(self._changes) > 2 * len(self._stands) + 1024:
            self._forget_changes()

    def look(self, shape: asks.Shape) -> Known:
        """Return what is known for *shape*, of the nodes as they are now."""
        if len(self._roll) > 2 * len(self._stands) + MOST_GONE:
            self._roll = listed.Roll()
            self._known.clear()
        known = self._known.get(shape)
        if known is None:
            known = self._known[shape] = Known(shape, self._roll)
            while len(self._known) > MOST_SHAPES:
                self._known.popitem(last=False)
            self._judge(known, self._stands)
        else:
            self._known.move_to_end(shape)
            if known.at < self.version:
                self._judge(known, set(self._changes[known.at - self._forgotten :]))
        known.at = self.version
        return known

    def score(self, shape: asks.Shape, policy: asks.Policy, names: Sequence[str]) -> listed.Codes:
        """Return for each of *names* how well *shape* would be there, from 0 to 10 at best."""
        known = self.look(shape)
        scores = known.scores[policy]
        _reach(scores.codes, len(self._roll) - 1, _UNSCORED)
        found = self._roll.look(names, scores.codes, 0)
        if _UNSCORED in found:  # most often of those that have changed
            self._score_all(known, policy, scores.outdated)
            scores.outdated.clear()
            found = self._roll.look(names, scores.codes, 0)
        if _UNSCORED in found:
            self._score_all(known, policy, listed.only(names, found, _UNSCORED))
            found = self._roll.look(names, scores.codes, 0)
        return found

    def _score_all(self, known: Known, policy: asks.Policy, names: Iterable[str]) -> None:
        codes = known.scores[policy].codes
        for name in names:
            codes[self._roll.number(name)] = self._score(known, policy, name)

    def _score(self, known: Known, policy: asks.Policy, name: str) -> int:
        stand = self._stands.get(name)
        pod = known.pod(stand.unit) if stand and known.fits(name) else None
        return score.of(stand, pod, policy) if stand and pod else 0

    def fits_one_of(self, shape: asks.Shape, names: Collection[str]) -> bool:
        """Tell whether *shape* has a place on one of a few nodes; nothing is kept of it."""
        if shape in self._known:
            return any(map(self.look(shape).fits, names))
        meaning, patience = Meaning(shape), place.Patience()
        stands = (self._stands.get(name) for name in names)
        return any(it and meaning.judge(it, patience) is None for it in stands)

    def shapes(self) -> Iterator[asks.Shape]:
        """Give the shapes that are known."""
        yield from self._known

    def _judge(self, known: Known, names: Iterable[str]) -> None:
        patience = place.Patience()
        for name in names:
            stand = self._stands.get(name)
            if stand is None:
                known.drop(name)
            else:
                known.judge(stand, name, patience)

    @property
    def version(self) -> int:
        """Return how many changes there have been: while it is the same, so are all nodes."""
        return self._forgotten + len(self._changes)

    def _forget_changes(self) -> None:
        """Forget the older half; what is known of shapes from before that is found out anew."""
        half = len(self._changes) // 2
        del self._changes[:half]
        self._forgotten += half
        for shape in [it for it, known in self._known.items() if known.at < self._forgotten]:
            del self._known[shape]
