"""For whom room is made, when kube-scheduler asks at any moment."""

import threading

import scheduling_api as make

from pyvgpu.controller import work
from pyvgpu.controller.scheduler import asks, book, deciding
from pyvgpu.controller.scheduler.shell import budgets, evicting, telling


class AskedAgain(work.Queue):
    """Asks about a pod once more in the moment in which that is taken to be looked at."""

    def __init__(self, ask):
        super().__init__()
        self.ask, self.taken = ask, []

    def take(self):
        if len(self.taken) == 2:
            self.close()
        name = super().take()
        if name is not None:
            self.taken.append(name)
            if len(self.taken) == 1:
                self.ask()
        return name


def test_a_pod_that_is_asked_about_while_it_is_taken_is_looked_at_once(cluster, monkeypatch):
    monkeypatch.setattr(evicting, "KNOWN_SECONDS", 0.0)
    _, connection = cluster
    known = book.Book()
    evictor = evicting.Evictor(
        connection,
        deciding.Decider(known),
        budgets.Reader(connection, list, known),
        lambda: True,
        telling.Teller(connection, lambda pod, names: ""),
    )
    pod = asks.read(make.pod("high", priority=100))
    queue = evictor._queue = AskedAgain(lambda: evictor.consider(pod, ["node-1"]))
    evictor.consider(pod, ["node-1"])
    evictor.run(threading.Event())
    assert queue.taken == [pod.uid, pod.uid]
    assert evictor._asked == {}
