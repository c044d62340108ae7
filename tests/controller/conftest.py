"""An API server for the shells of the controllers, and how long they leave it alone."""

import collections
import threading
import types

import pytest

from pyvgpu.controller import informer, pace
from pyvgpu.controller.sidecar import backoff


@pytest.fixture
def small():
    """A small API server and a connection to it."""
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client")
    import small_api

    with small_api.running() as made:
        yield made


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


@pytest.fixture
def pauses(monkeypatch):
    """Let informers and the gate of a controller pause as they do, and note for how long."""
    noted = Pauses()

    def noting(who):
        def delay(*given):
            seconds = backoff.delay(*given)
            noted.note(who(), seconds)
            return seconds

        return types.SimpleNamespace(delay=delay, LONGEST_SECONDS=backoff.LONGEST_SECONDS)

    monkeypatch.setattr(informer, "backoff", noting(threading.get_ident))
    monkeypatch.setattr(pace, "backoff", noting(lambda: "the gate"))
    return noted
