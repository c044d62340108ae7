"""How long informers, and the gate of a controller, leave the API server alone."""

import collections
import threading
import types

from pyvgpu.kube import backoff, informer


class Pauses:
    """What was drawn of pauses, in seconds, by what makes them one after the other."""

    def __init__(self):
        self._drawn = collections.defaultdict(list)

    def note(self, who, seconds):
        self._drawn[who].append(seconds)

    def __len__(self):
        return sum(map(len, [*self._drawn.values()]))

    @property
    def kept_seconds(self):
        """Return the least time that has passed, if nobody cuts a pause short."""
        return max(sum(drawn[:-1]) for drawn in [*self._drawn.values()])


def noted(monkeypatch, *gates):
    """Let informers and *gates*, which are modules, pause as they do, and note for how long."""
    drawn = Pauses()

    def noting(who):
        def delay(*given):
            seconds = backoff.delay(*given)
            drawn.note(who(), seconds)
            return seconds

        return types.SimpleNamespace(delay=delay, LONGEST_SECONDS=backoff.LONGEST_SECONDS)

    monkeypatch.setattr(informer, "backoff", noting(threading.get_ident))
    for gate in gates:
        monkeypatch.setattr(gate, "backoff", noting(lambda: "the gate"))
    return drawn
