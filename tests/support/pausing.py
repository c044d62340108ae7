"""Records the backoff pauses of informers and of the controllers' API gates."""

import collections
import threading
import types

from pyvgpu.kube import backoff, informer


class Pauses:
    """Backoff pauses drawn, in seconds, by the thread or gate that makes them in sequence."""

    def __init__(self):
        self._drawn = collections.defaultdict(list)

    def note(self, source, seconds):
        self._drawn[source].append(seconds)

    def __len__(self):
        return sum(map(len, [*self._drawn.values()]))

    @property
    def kept_seconds(self):
        """Return the least time that has passed, if no pause was cut short."""
        return max(sum(drawn[:-1]) for drawn in [*self._drawn.values()])


def noted(monkeypatch, *gates):
    """Record the backoff pauses of informers and *gates* (modules) without changing them."""
    drawn = Pauses()

    def noting(source):
        def delay(*given):
            seconds = backoff.delay(*given)
            drawn.note(source(), seconds)
            return seconds

        return types.SimpleNamespace(delay=delay, longest=backoff.longest)

    monkeypatch.setattr(informer, "backoff", noting(threading.get_ident))
    for gate in gates:
        monkeypatch.setattr(gate, "backoff", noting(lambda: "the gate"))
    return drawn
