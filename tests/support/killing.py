"""Kills the servers of a node at random, and remembers when any of them was away."""

from __future__ import annotations

import datetime
import os
import random
import re
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import rig

from pyvgpu import names

if TYPE_CHECKING:
    from collections.abc import Callable

    from agents import Agent

KUBELET_SOCKET = Path("/var/lib/kubelet/device-plugins/kubelet.sock")

_CLUSTER = Path(__file__).parents[1] / "e2e" / "cluster" / "cluster"
_REGISTERED = re.compile(r"^(\S+ \S+) .* registered pyvgpu\.io/(\S+) with kubelet$", re.MULTILINE)
_SLACK_SECONDS = 2.0  # kubelet may yet be at what it began in a window; times of pods are whole


def cluster(*words: str) -> None:
    """Give the cluster an order."""
    subprocess.run([_CLUSTER, *words], check=True, capture_output=True, timeout=rig.SECONDS)


def serves_since(socket: float) -> bool:
    """Whether another kubelet serves than the one whose *socket* was of that time.

    One that found no runtime has ended; as on a node it is begun again.
    """
    if KUBELET_SOCKET.exists() and KUBELET_SOCKET.stat().st_ctime != socket:
        return True
    cluster("start", "kubelet")
    return False


class Killer:
    """Kills agent, kubelet and containerd, one or all, from :meth:`start` until :meth:`stop`."""

    def __init__(
        self,
        agent: Agent,
        seed: int,
        pause: tuple[float, float],
        options: tuple[object, ...] = (),
        offers: Callable[[], bool] | None = None,
    ) -> None:
        self._agent = agent
        self._options = options  # of the agent
        self._offers = offers or self._counts  # whether the cluster may give out anything
        self._draw = random.Random(seed)
        self._pause = pause
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure: BaseException | None = None
        self.windows: list[tuple[float, float]] = []  # in which something was away
        self.killed: list[str] = []
        self.registered: list[float] = []  # seconds after kubelet's socket was there

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, when all that was killed is back."""
        self._stopped.set()
        self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise what it has failed with."""
        if self._failure is not None:
            raise self._failure

    def was_away(self, since: float, until: float) -> bool:
        """Tell whether anything was away at a time in between."""
        return any(
            begin - _SLACK_SECONDS < until and since < end + _SLACK_SECONDS
            for begin, end in self.windows
        )

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._draw.uniform(*self._pause)):
                names = ["agent", "kubelet", "containerd"]
                if self._draw.random() < 0.75:
                    names = [self._draw.choice(names)]
                self._draw.shuffle(names)
                self.kill(names)
        except BaseException as exc:
            self._failure = exc

    def kill(self, names: list[str]) -> None:
        """Kill these, in that order; be back when all of them serve again."""
        begin = time.time()
        self.windows.append((begin, float("inf")))
        before, socket = self._agent.registrations(), KUBELET_SOCKET.stat().st_ctime
        back = [self._kill(name) for name in names]
        time.sleep(self._draw.uniform(0, 1.5))
        for one in back:
            one()
        if "kubelet" in names:
            self._agent.wait(lambda: serves_since(socket))
        if names != ["containerd"]:
            self._agent.wait(lambda: self._agent.registrations() >= before + 2)
        if "kubelet" in names:
            self._note_registration("agent" in names)
        self._agent.wait(self._offers)
        self.windows[-1] = (begin, time.time())
        self.killed += names

    def _kill(self, name: str) -> Callable[[], None]:
        """Kill one; return what brings it back."""
        if name == "agent":
            self._agent.stop(signal.SIGKILL)
            return lambda: self._agent.begin(*self._options)
        pid = Path(os.environ["CLUSTER_RUN"], f"{name}.pid").read_text().strip()
        subprocess.run(["kill", "-KILL", pid], check=True)
        # Who was killed is not reaped by us: `restart` waits for it and starts another.
        return lambda: cluster("restart", name)

    def _counts(self) -> bool:
        """Whether the scheduler may give out something; of whole devices not all memory is."""
        found = self._agent.allocatable()
        return all(
            found.get(name, "0") != "0" for name in (names.VCORE_RESOURCE, names.VMEMORY_RESOURCE)
        )

    def _note_registration(self, agent_too: bool) -> None:
        if agent_too:
            return  # it was started anew itself
        there = KUBELET_SOCKET.stat().st_ctime
        self._agent.wait(lambda: len(_registrations(self._agent, there)) >= 2)
        self.registered.append(max(_registrations(self._agent, there)) - there)


def _registrations(agent: Agent, since: float) -> list[float]:
    """Return when kubelet has been told of our resources, of all times *since*."""
    found = [
        datetime.datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp()
        for at, _ in _REGISTERED.findall(agent.log.read_text())
    ]
    return [at for at in found if at >= since - 0.002]  # the log has milliseconds
