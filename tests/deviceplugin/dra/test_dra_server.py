"""The two sockets of a DRA driver, which are recreated if they are gone or do not respond."""

import contextlib
import tempfile
import threading
from pathlib import Path

import claiming_kubelet
import listeners
import pytest
from waiting import PROMPT

from pyvgpu.deviceplugin.dra import dra_server


class Refusing:
    """Prepares nothing."""

    def prepare(self, named):
        return {claim.uid: f"no {claim.namespace}/{claim.name}" for claim in named}

    def unprepare(self, named):
        return {claim.uid: "" for claim in named}

    def stop(self):
        pass


class Polls:
    """Triggers the checks of the sockets explicitly, instead of by time."""

    def __init__(self):
        self._wanted, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._over = False

    def wait(self, seconds):
        assert seconds == dra_server.POLL_SECONDS
        self._done.release()
        assert self._wanted.acquire(timeout=PROMPT)
        return self._over

    def first(self):
        assert self._done.acquire(timeout=PROMPT)

    def again(self):
        self._wanted.release()
        self.first()

    def end(self):
        self._over = True
        self._wanted.release()


@pytest.fixture
def claiming():
    """A kubelet in a folder with a short name: a socket's path may have 107 bytes."""
    with tempfile.TemporaryDirectory() as folder:
        yield claiming_kubelet.ClaimingKubelet(Path(folder))


@pytest.fixture
def polls(claiming):
    """Run both sockets; return the trigger of their checks."""
    health = dra_server.Health()
    health.set({("node-1", "gpu-0"): "", ("node-1", "gpu-1"): "Xid 79"})
    sockets = dra_server.Sockets(claiming.registry, claiming.plugins, Refusing(), health)
    polls = Polls()
    thread = threading.Thread(target=sockets.run, args=(polls.wait,))
    thread.start()
    polls.first()
    yield polls
    polls.end()
    thread.join()
    assert not list(claiming.registry.iterdir())


def answers(claiming):
    assert claiming.meet().type == "DRAPlugin"
    with pytest.raises(claiming_kubelet.RefusedError, match="no team/claim"):
        claiming.prepare(("team", "u", "claim"))
    assert claiming.unprepare(("team", "u", "claim")) == {"u": ""}
    with contextlib.closing(claiming.health()) as health:
        assert next(health) == {"gpu-0": (1, ""), "gpu-1": (2, "Xid 79")}


def test_both_sockets_serve_kubelet(claiming, polls):
    answers(claiming)
    polls.again()
    answers(claiming)


def test_removed_sockets_are_recreated(claiming, polls):
    (claiming.registry / "pyvgpu.io-reg.sock").unlink()
    (claiming.plugins / "pyvgpu.io" / "dra.sock").unlink()
    polls.again()
    answers(claiming)


def test_servers_that_stopped_accepting_are_restarted(claiming, polls):
    answers(claiming)
    assert listeners.shut_down(claiming.registry) == 1
    assert listeners.shut_down(claiming.plugins / "pyvgpu.io") == 1
    polls.again()
    answers(claiming)
